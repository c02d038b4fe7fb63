package watch

import (
	"fmt"
	"slices"

	"vipd/balancer"
	"vipd/store/etcd/client"
)

// troubleKey is where a missing right to read the scope is kept among the troubles: a key that can't be written.
func troubleKey(s client.Scope) rawKey { return rawKey(s.Key + "\x00denied") }

// deniedScope is the problem of who may not read the scope.
func deniedScope(s client.Scope, c client.Config) *record {
	return &record{key: s.Key, problems: []balancer.Problem{{
		Severity: balancer.SeverityWarning, Origin: balancer.Origin{Key: s.Key},
		Text: fmt.Sprintf("%s may not read it: give its role that right; until then %s", c.Who(), s.Without),
	}}}
}

// deny tells which scopes may not be read, and that the others may.
func (s *state) deny(all, denied []client.Scope, c client.Config) {
	for _, each := range all {
		if slices.Contains(denied, each) {
			s.setProblems(troubleKey(each), deniedScope(each, c))
		} else {
			s.setProblems(troubleKey(each), &record{})
		}
	}
}

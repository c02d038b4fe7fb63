package watch

import (
	"fmt"
	"slices"

	"vipd/balancer"
	"vipd/store/etcd/client"
)

// troubleKey returns the key for the problem about a scope that the user may not read. It differs
// from all keys in etcd.
func troubleKey(s client.Scope) rawKey { return rawKey(s.Key + "\x00denied") }

// deniedScope returns the problem about a scope that the user may not read.
func deniedScope(s client.Scope, c client.Config) *record {
	return &record{key: s.Key, problems: []balancer.Problem{{
		Severity: balancer.SeverityWarning, Origin: balancer.Origin{Key: s.Key},
		Text: fmt.Sprintf("%s may not read it: give its role that permission; until then, %s", c.Who(), s.Without),
	}}}
}

// deny sets the problems of the denied scopes, and clears the problems of all other scopes.
func (s *state) deny(all, denied []client.Scope, c client.Config) {
	for _, each := range all {
		if slices.Contains(denied, each) {
			s.setProblems(troubleKey(each), deniedScope(each, c))
		} else {
			s.setProblems(troubleKey(each), &record{})
		}
	}
}

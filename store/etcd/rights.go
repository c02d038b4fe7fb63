package etcd

import (
	"fmt"
	"slices"

	"vipd/balancer"
)

// troubleKey is where a missing right to read the scope is kept among the troubles: a key that can't be written.
func troubleKey(s scope) rawKey { return rawKey(s.key + "\x00denied") }

// deniedScope is the problem of who may not read the scope.
func deniedScope(s scope, c Config) *record {
	return &record{key: s.key, problems: []balancer.Problem{{
		Severity: balancer.SeverityWarning, Origin: balancer.Origin{Key: s.key},
		Text: fmt.Sprintf("%s may not read it: give its role that right; until then %s", c.who(), s.without),
	}}}
}

// deny tells which scopes may not be read, and that the others may.
func (s *state) deny(all, denied []scope, c Config) {
	for _, each := range all {
		if slices.Contains(denied, each) {
			s.trouble(troubleKey(each), deniedScope(each, c))
		} else {
			s.trouble(troubleKey(each), &record{})
		}
	}
}

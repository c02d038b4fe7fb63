package quorum

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"vipd/balancer"
)

// Text describes the votes: "2 of 3 nodes: connection refused (host1, host3); host2 says up:
// connected".
func (s *Tally) Text() string {
	agree, causes := 0, map[string][]string{}
	var rest []string
	for _, n := range s.TimedOut {
		rest = append(rest, fmt.Sprintf("%s has not voted", n))
	}
	for _, n := range slices.Sorted(maps.Keys(s.Votes)) {
		v, counts := s.Votes[n], slices.Contains(s.Checkers, n)
		switch {
		case !counts: // a former checker
		case v.Verdict == balancer.HealthUnknown:
			rest = append(rest, fmt.Sprintf("%s can't check: %s", n, v.Cause))
		case v.Verdict == s.Verdict:
			agree++
			causes[v.Cause] = append(causes[v.Cause], string(n))
		default:
			rest = append(rest, fmt.Sprintf("%s reports %s: %s", n, v.Verdict, v.Cause))
		}
	}
	var found []string
	for _, cause := range slices.Sorted(maps.Keys(causes)) {
		found = append(found, fmt.Sprintf("%s (%s)", cause, strings.Join(causes[cause], ", ")))
	}
	text := fmt.Sprintf("%d of %d nodes", agree, len(s.Checkers))
	if agree > 0 {
		text += ": " + strings.Join(found, ", ")
	}
	return strings.Join(append([]string{text}, rest...), "; ")
}

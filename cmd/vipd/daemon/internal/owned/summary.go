package owned

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"vipd/cmd/internal/api"
)

// Summary says in a line how owning goes on this host; "" means it owns no VIPs.
func (t *Teller) Summary() string {
	if t == nil {
		return ""
	}
	s := t.Status()
	if s == nil {
		return "vipd owner does not answer"
	}
	return summary(s)
}

func summary(s *api.OwnerStatus) string {
	if s.Gate != "open" {
		return "NOT confirmed: VIPs rest"
	}
	here := fmt.Sprintf("%d VIPs here", len(s.Bound))
	if len(s.Bound) == 1 {
		here = "1 VIP here"
	}
	var by, silent []string
	for _, node := range slices.Sorted(maps.Keys(s.Confirmed)) {
		if age := s.Confirmed[node]; age >= 0 && age < 1 {
			by = append(by, node)
		} else {
			silent = append(silent, node)
		}
	}
	switch {
	case s.Etcd != "":
		return here + "; etcd away: owners stay, nothing can move"
	case len(by) == 0 && len(silent) > 0:
		return here + "; confirmed by etcd only: " + strings.Join(silent, ", ") + " silent: a failure of etcd would end it"
	case len(by) == 0:
		return here + "; confirmed by etcd only, as no other host takes part"
	}
	return here + "; confirmed by " + strings.Join(by, ", ") + "; gate open"
}

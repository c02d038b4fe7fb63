package failover

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/wording"
)

// Summary describes the state of vipd owner in one line. text is "" if this host owns no VIPs.
// confirmed maps hosts to the ages of their confirmations.
func (r *Reporter) Summary() (text string, confirmed map[string]float64) {
	if r == nil {
		return "", nil
	}
	s := r.Status()
	if s == nil {
		return "vipd owner does not answer", nil
	}
	text = summary(s)
	if standby := r.memory.standby(); standby != nil {
		text = fmt.Sprintf("on standby %s, until \"vipctl node resume\"; %s", by(standby.By, standby.Reason), text)
	}
	return text, s.Confirmed
}

func summary(s *api.OwnerStatus) string {
	if s.VRRP != nil {
		return summaryByVRRP(s.VRRP)
	}
	if s.Gate != "open" {
		return "NOT confirmed: VIPs are silent"
	}
	here := wording.Count(len(s.Bound), "VIP") + " here"
	var by, silent []string
	oldest := 0.0
	for _, node := range slices.Sorted(maps.Keys(s.Confirmed)) {
		if age := s.Confirmed[node]; age >= 0 && age < 1 {
			by, oldest = append(by, node), max(oldest, age)
		} else {
			silent = append(silent, node)
		}
	}
	switch {
	case s.Etcd != "":
		here += "; etcd unreachable for " + about(s.EtcdAway) + ": owners stay, no VIP can move"
	case len(by) == 0 && len(silent) > 0:
		here += "; confirmed by etcd only, because " + wording.List(silent, "and") + " " + wording.Do(len(silent)) + " not answer, so a failure of etcd would end the confirmation"
	case len(by) == 0:
		here += "; confirmed by etcd only, because no other host participates"
	default:
		here += fmt.Sprintf("; confirmed by %s (%.2fs ago); gate open", strings.Join(by, ", "), oldest)
	}
	for _, node := range slices.Sorted(maps.Keys(s.Waiting)) {
		who := s.Waiting[node]
		here += fmt.Sprintf("; VIPs of %s have no owner: %s %s silent; if %s is off: vipctl node fence %s --is-off", node, wording.List(who, "and"), wording.Be(len(who)), node, node)
	}
	return here
}

// summaryByVRRP describes the state of each VRRP group.
func summaryByVRRP(s *vrrp.Status) string {
	var all []string
	for i := range s.Groups {
		all = append(all, groupSummary(&s.Groups[i]))
	}
	if len(all) == 0 {
		return "by VRRP; no group is on this host"
	}
	return strings.Join(all, "; ")
}

func groupSummary(g *vrrp.GroupStatus) string {
	switch {
	case g.State == vrrp.Active:
		return fmt.Sprintf("%s here in %s (router_id %d, version %d, priority %d); last advert sent %.2fs ago",
			wording.Count(len(g.Bound), "VIP"), g.Name, g.RouterID, g.Version, g.Priority, g.Advertised.Seconds())
	case g.Owner.IsValid():
		text := fmt.Sprintf("%s is %s of %s", g.Name, g.State, g.Owner)
		for _, r := range g.Routers {
			if r.Addr == g.Owner && r.Age >= 0 {
				text += fmt.Sprintf(" (priority %d, %.2fs ago)", r.Priority, r.Age.Seconds())
			}
		}
		return fmt.Sprintf("%s; priority %d here", text, g.Priority)
	}
	return fmt.Sprintf("%s is %s, and no owner is known; priority %d here", g.Name, g.State, g.Priority)
}

func about(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%ds", int(d.Seconds()))
}

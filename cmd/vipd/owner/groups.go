package owner

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
)

// reportedGroups holds the groups of the VIPs that vipd reports. vipd applies changes to [vips]
// immediately, but vipd owner reads [ownership] only when it starts. If the two no longer match, a
// group keeps its previous settings and VIPs.
type reportedGroups struct {
	// last holds the groups in the last report, sorted by name.
	last []config.VRRPGroup
}

// follow returns the groups in a report, and an error for each group that keeps its previous
// settings.
func (x *reportedGroups) follow(report *api.OwnerReport, find func(*api.OwnerReport) ([]config.VRRPGroup, []balancer.Problem)) (all []config.VRRPGroup, texts []string) {
	all, problems := find(report)
	found := map[string]bool{}
	elsewhere := map[netip.Addr]bool{}
	for _, g := range all {
		found[g.Name] = true
		for _, a := range g.VIPs {
			elsewhere[a] = true
		}
	}
	gone := func(a netip.Addr) bool {
		_, reported := report.VIPs[a]
		return !reported || elsewhere[a]
	}
	for _, g := range x.last {
		if found[g.Name] {
			continue
		}
		g.VIPs = slices.DeleteFunc(slices.Clone(g.VIPs), gone)
		g.Advertise = slices.DeleteFunc(slices.Clone(g.Advertise), gone)
		if len(g.Advertise) > 0 { // an advert must contain a VIP
			all = append(all, g)
		}
	}
	slices.SortFunc(all, func(a, b config.VRRPGroup) int { return cmp.Compare(a.Name, b.Name) })
	x.last = all
	for _, p := range problems {
		texts = append(texts, fmt.Sprintf("%s: %s; fix the cause. If [ownership] has changed: systemctl restart vipd-owner", p.Field, p.Text))
	}
	return all, texts
}

package owner

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
)

// TestReportedGroups reports VIPs from a newer configuration to a vipd owner that still uses an
// older configuration. Changes to [vips] must not remove a group that still has a VIP, and each
// error must be reported as a problem.
func TestReportedGroups(t *testing.T) {
	const a, b, peer = "10.9.0.1", "10.9.0.2", "10.9.0.12"
	many := func() (all []string) {
		for i := range 256 {
			all = append(all, fmt.Sprintf("10.9.1.%d main", i))
		}
		return all
	}()
	for _, test := range []struct {
		name    string
		vips    []string // "ADDRESS GROUP"
		groups  string   // "NAME NUMBER-OF-VIPS ADVERTISED", where ADVERTISED lists all advertised VIPs
		problem string
		other   bool
	}{
		{name: "removed from advertise", vips: []string{a + " main"}, groups: "main 1 10.9.0.1"},
		{name: "renamed group", vips: []string{a + " web", b + " web"}, groups: "main 2 10.9.0.1,10.9.0.2", problem: "there is no table [ownership.vrrp.web]"},
		{name: "peer", vips: []string{a + " main", b + " main", peer + " main"}, groups: "main 2 10.9.0.1,10.9.0.2", problem: peer + " is a VIP of the group"},
		{name: "all VIPs removed"},
		{name: "moved to another group", vips: []string{a + " other", b + " other"}, groups: "other 2 10.9.0.1,10.9.0.2", other: true},
		{name: "too many", vips: append(many, a+" main"), groups: "main 1 10.9.0.1", problem: "an advert can list only 255"},
	} {
		t.Run(test.name, func(t *testing.T) {
			main := config.VRRP{RouterID: 51, Peers: []netip.Addr{netip.MustParseAddr(peer)}}
			if test.name != "too many" {
				main.Advertise = []netip.Addr{netip.MustParseAddr(a), netip.MustParseAddr(b)}
			}
			c := config.Default()
			c.Ownership.Enabled, c.Ownership.By, c.Ownership.VRRP = true, config.ByVRRP, map[string]config.VRRP{"main": main}
			if test.other {
				c.Ownership.VRRP["other"] = config.VRRP{RouterID: 52}
			}
			find := func(r *api.OwnerReport) ([]config.VRRPGroup, []balancer.Problem) { return c.VRRPGroupsOf(r.Groups()) }
			var x reportedGroups
			if all, problems := x.follow(reportOf(a+" main", b+" main"), find); len(all) != 1 || len(problems) > 0 {
				t.Fatalf("before the change: groups = %v, problems = %q, want one group and no problems", all, problems)
			}
			all, problems := x.follow(reportOf(test.vips...), find)
			var got []string
			for _, g := range all {
				got = append(got, fmt.Sprintf("%s %d %s", g.Name, len(g.VIPs), strings.Trim(strings.ReplaceAll(fmt.Sprint(g.Advertise), " ", ","), "[]")))
			}
			if text := strings.Join(got, "; "); text != test.groups {
				t.Errorf("groups = %q, want %q", text, test.groups)
			}
			text := strings.Join(problems, "\n")
			if !strings.Contains(text, test.problem) || (text == "") != (test.problem == "") || text != "" && !strings.Contains(text, "systemctl restart vipd-owner") {
				t.Errorf("problems = %q, want %q and the command that restarts vipd-owner", text, test.problem)
			}
		})
	}
}

// reportOf returns a report that contains VIPs. Each argument has the form "ADDRESS GROUP".
func reportOf(vips ...string) *api.OwnerReport {
	r := &api.OwnerReport{VIPs: map[netip.Addr]api.OwnedVIP{}}
	for _, v := range vips {
		addr, group, _ := strings.Cut(v, " ")
		r.VIPs[netip.MustParseAddr(addr)] = api.OwnedVIP{Serves: true, Group: group}
	}
	return r
}

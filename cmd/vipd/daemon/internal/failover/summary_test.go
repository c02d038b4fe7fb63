package failover

import (
	"net/netip"
	"testing"
	"time"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
)

func TestSummary(t *testing.T) {
	vip := []netip.Addr{netip.MustParseAddr("192.168.1.100")}
	for _, c := range []struct {
		status api.OwnerStatus
		want   string
	}{
		{api.OwnerStatus{Gate: "closed"}, "NOT confirmed: VIPs are silent"},
		{api.OwnerStatus{Gate: "open", Bound: vip, Confirmed: map[string]float64{"gw3": 0.02, "gw2": 0.03}}, "1 VIP here; confirmed by gw2, gw3 (0.03s ago); gate open"},
		{
			api.OwnerStatus{Gate: "open", Confirmed: map[string]float64{"gw2": -1, "gw3": 9}},
			"0 VIPs here; confirmed by etcd only, because gw2 and gw3 do not answer, so a failure of etcd would end the confirmation",
		},
		{
			api.OwnerStatus{Gate: "open", Bound: vip, Etcd: "etcd is silent", EtcdAway: 185, Confirmed: map[string]float64{"gw2": 0}},
			"1 VIP here; etcd unreachable for 3m: owners stay, no VIP can move",
		},
		{
			api.OwnerStatus{Gate: "open", Bound: vip, Confirmed: map[string]float64{"gw1": 9, "gw3": 9}, Waiting: map[string][]string{"gw1": {"gw1", "gw3"}}},
			"1 VIP here; confirmed by etcd only, because gw1 and gw3 do not answer, so a failure of etcd would end the confirmation; " +
				"VIPs of gw1 have no owner: gw1 and gw3 are silent; if gw1 is off: vipctl node fence gw1 --is-off",
		},
	} {
		if got := summary(&c.status); got != c.want {
			t.Errorf("summary = %q, want %q", got, c.want)
		}
	}
}

// TestSummaryByVRRP describes a group in each state, and a host without groups.
func TestSummaryByVRRP(t *testing.T) {
	peer := netip.MustParseAddr("192.168.1.11")
	group := func(state vrrp.State, owner netip.Addr) *vrrp.Status {
		return &vrrp.Status{Groups: []vrrp.GroupStatus{{
			Name: "main", RouterID: 51, Version: 3, State: state, Priority: 150, Owner: owner, Advertised: 100 * time.Millisecond,
			Bound: []netip.Addr{peer.Next()}, Routers: []vrrp.RouterStatus{{Addr: peer, Priority: 200, Age: 50 * time.Millisecond}},
		}}}
	}
	for _, c := range []struct {
		status *vrrp.Status
		want   string
	}{
		{group(vrrp.Active, peer.Prev()), "1 VIP here in main (router_id 51, version 3, priority 150); last advert sent 0.10s ago"},
		{group(vrrp.Backup, peer), "main is Backup of 192.168.1.11 (priority 200, 0.05s ago); priority 150 here"},
		{group(vrrp.Backup, netip.Addr{}), "main is Backup, and no owner is known; priority 150 here"},
		{&vrrp.Status{}, "by VRRP; no group is on this host"},
	} {
		if got := summary(&api.OwnerStatus{VRRP: c.status}); got != c.want {
			t.Errorf("summary = %q, want %q", got, c.want)
		}
	}
}

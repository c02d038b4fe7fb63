package owner

import (
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/config"
	onhost "vipd/dataplane/failover"
)

// TestWitnessOfGroups configures a group whose VIPs are on lan, and hosts that must be within reach
// of lan and of another interface. Only the hosts on lan may be witnesses. If they are withdrawn,
// the group must still have a witness, and a problem must be reported.
func TestWitnessOfGroups(t *testing.T) {
	gateway, other := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.8.0.1")
	main := config.VRRPGroup{Name: "main", VIPs: []netip.Addr{vip}}
	layout := func(lan ...netip.Addr) onhost.Layout {
		reach := map[string][]netip.Addr{"lan": lan, "sync": {other}}
		return onhost.Layout{Places: onhost.Places{Devices: map[netip.Addr]string{vip: "lan"}, Reach: reach}}
	}
	w := witness{takes: true}
	for _, c := range []struct {
		name      string
		lan       []netip.Addr
		want      vrrp.Witness
		changed   []string
		withdrawn bool
	}{
		{name: "no host on lan", want: vrrp.NoWitness},
		{name: "a gateway", lan: []netip.Addr{gateway}, want: vrrp.WitnessRequired},
		{name: "withdrawn", want: vrrp.WitnessRequired, withdrawn: true},
		{name: "back", lan: []netip.Addr{gateway}, want: vrrp.WitnessRequired},
		{name: "replaced", lan: []netip.Addr{netip.MustParseAddr("10.9.0.2")}, want: vrrp.WitnessRequired, changed: []string{"main"}},
	} {
		changed := w.follow(layout(c.lan...), []config.VRRPGroup{main})
		if got := w.of(&main); got != c.want || !slices.Equal(changed, c.changed) || (len(w.problems()) > 0) != c.withdrawn {
			t.Errorf("%s: witness = %q, changed = %q, problems = %q; want %q, %q, problems = %t", c.name, got, changed, w.problems(), c.want, c.changed, c.withdrawn)
		}
		if got := w.groups["lan"]; !slices.Equal(got, []string{"main"}) || len(w.groups["sync"]) > 0 {
			t.Errorf("%s: groups = %v, want main on lan", c.name, w.groups)
		}
	}
	const want = "main could not be taken over here: no host of ownership.reach answers (10.9.0.2); fix ownership.reach, or set ownership.reach_takes = false"
	if got := w.silent([]string{"main"}); len(got) != 1 || got[0] != want {
		t.Errorf("silent() = %q, want %q", got, want)
	}
}

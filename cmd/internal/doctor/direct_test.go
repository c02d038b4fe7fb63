package doctor

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/dataplane/host"
)

// TestDirect checks three direct-routing endpoints: a neighbor that answers ARP, a neighbor that
// does not answer, and an endpoint behind a router. The host's bridges pass frames to netfilter.
// There must be warnings about the bridge and the second neighbor, and a note about the endpoint
// behind a router.
func TestDirect(t *testing.T) {
	m := newFakeHost()
	m.Modes = append(m.Modes, trialOf(config.NFTablesMode, true, nil))
	m.Status.Mode.InUse = "nftables"
	f := Frontend{Key: balancer.Key{Addr: netip.MustParseAddr("10.96.0.20"), Port: 80, Proto: balancer.TCP}, Service: "web"}
	for _, a := range []string{"10.4.0.11:80", "10.4.0.12:80", "10.9.0.9:80"} {
		f.AddDirect(balancer.DRForward, netip.MustParseAddrPort(a), balancer.Active)
	}
	f.AddDirect(balancer.DRForward, netip.MustParseAddrPort("10.4.0.13:80"), balancer.Down)
	m.Frontends = append(m.Frontends, f)
	m.Neighbor = func(a netip.Addr) (host.Neighbor, error) {
		n := host.Neighbor{Device: "eth0", MAC: "02:00:00:00:00:01"}
		switch a.String() {
		case "10.4.0.12", "10.4.0.13":
			n = host.Neighbor{Device: "eth0", Silent: true, Addr: a}
		case "10.9.0.9":
			n = host.Neighbor{}
		}
		return n, nil
	}
	m.files["/proc/sys/net/bridge/bridge-nf-call-iptables"] = "1\n"
	m.Interfaces = func() ([]Interface, error) {
		return []Interface{{Name: "br0", Bridge: true, Addrs: []netip.Addr{netip.MustParseAddr("10.4.0.1")}}, {Name: "br1", Bridge: true}}, nil
	}
	found := checkDirect(t.Context(), observe(t.Context(), m.Host))
	if len(found) != 3 || found[0].Level != Warning || !strings.HasSuffix(found[0].What, ": br0") {
		t.Fatalf("findings = %+v, want three findings, the first a warning about br0", found)
	}
	if found = found[1:]; found[0].Level != Warning || found[0].What != "direct-routing endpoints do not answer ARP on eth0: 10.4.0.12 (web)" ||
		found[1].Level != Note || !strings.Contains(found[1].What, "10.9.0.9 (web)") {
		t.Errorf("findings = %+v, want a warning about 10.4.0.12 and a note about 10.9.0.9", found)
	}
	if all := Watched(context.Background(), m.Host); !slices.ContainsFunc(all, func(f Finding) bool { return f.What == found[0].What }) {
		t.Errorf("daemon's findings = %+v, want a warning among them", all)
	}
}

package dnat

import (
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
)

// TestLeadsTo checks whether flows to several destinations belong to a frontend. A flow to a
// removed backend must belong to it. A flow whose destination was never a backend, such as a
// proxy's port, must not.
func TestLeadsTo(t *testing.T) {
	at := netip.MustParseAddrPort
	key, err := balancer.ParseKey("10.96.0.10:80/tcp")
	if err != nil {
		t.Fatal(err)
	}
	f := &balancer.Frontend{Key: key, Backends: []balancer.Backend{
		{Addr: at("10.0.0.1:8080"), State: balancer.Active}, {Addr: at("10.0.0.2:8080"), State: balancer.Removed},
	}}
	fl := NewFlows(nil, nil)
	for _, test := range []struct {
		backend string
		want    bool
	}{{"10.0.0.1:8080", true}, {"10.0.0.2:8080", true}, {"127.0.0.1:40001", false}, {"10.0.0.1:40001", false}} {
		if got := fl.leadsTo(f, at(test.backend)); got != test.want {
			t.Errorf("%s: leadsTo = %t, want %t", test.backend, got, test.want)
		}
	}
	fl.leaving[key] = &leave{until: time.Now().Add(time.Minute), port: counters.Port{Service: "web"}, since: map[netip.AddrPort]bool{at("10.0.0.1:8080"): true}}
	if !fl.leadsTo(f, at("10.0.0.9:8080")) {
		t.Error("earlier frontend's backend: leadsTo = false, want true")
	}
}

// TestRangeOfFlow looks up the frontend of flows to port 7009, which several ranges contain. A
// range with the flow's endpoint must be preferred to a removed, narrower range. Endpoint ports are
// higher by 100.
func TestRangeOfFlow(t *testing.T) {
	at, vip := netip.MustParseAddrPort, netip.MustParseAddr("10.96.0.10")
	narrow, wide := balancer.NewPortRange(7000, 7009), balancer.NewPortRange(7000, 7011)
	for name, test := range map[string]struct {
		wanted, removed []balancer.PortRange
		endpoint        string // of the flow
		want            balancer.PortRange
	}{
		"both serve":               {wanted: []balancer.PortRange{narrow, wide}, endpoint: "10.0.0.1:7109", want: narrow},
		"narrow removed":           {wanted: []balancer.PortRange{wide}, removed: []balancer.PortRange{narrow}, endpoint: "10.0.0.1:7109", want: wide},
		"wide removed":             {wanted: []balancer.PortRange{narrow}, removed: []balancer.PortRange{wide}, endpoint: "10.0.0.1:7109", want: narrow},
		"endpoint of narrow":       {wanted: []balancer.PortRange{wide}, removed: []balancer.PortRange{narrow}, endpoint: "10.0.0.2:7109", want: narrow},
		"other port of endpoint":   {wanted: []balancer.PortRange{wide}, removed: []balancer.PortRange{narrow}, endpoint: "10.0.0.1:7009", want: narrow},
		"endpoint of neither":      {wanted: []balancer.PortRange{narrow, wide}, endpoint: "10.0.0.2:7109", want: narrow},
		"endpoint of removed wide": {removed: []balancer.PortRange{wide}, endpoint: "10.0.0.2:7109", want: wide},
	} {
		fl := NewFlows(nil, nil)
		for _, ports := range test.wanted {
			k := balancer.Key{Addr: vip, Port: ports, Proto: balancer.TCP}
			fl.wanted[k] = &balancer.Frontend{Key: k, Backends: []balancer.Backend{{Addr: at("10.0.0.1:7100"), State: balancer.Active}}}
			fl.addRangeLocked(k)
		}
		for _, ports := range test.removed {
			k := balancer.Key{Addr: vip, Port: ports, Proto: balancer.TCP}
			fl.leaving[k] = &leave{until: time.Now().Add(time.Minute)}
			fl.addRangeLocked(k)
		}
		client := at("10.1.0.2:1000")
		flow := &conntrack.Flow{
			Proto: balancer.TCP, Status: conntrack.DstNAT,
			Orig: conntrack.Tuple{Src: client, Dst: netip.AddrPortFrom(vip, 7009)}, Reply: conntrack.Tuple{Src: at(test.endpoint), Dst: client},
		}
		if fl.placeLocked(flow); flow.Ports != test.want {
			t.Errorf("%s: range = %s, want %s", name, flow.Ports, test.want)
		}
	}
}

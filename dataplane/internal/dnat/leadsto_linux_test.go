package dnat

import (
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/counters"
)

// TestLeadsTo checks whether flows to several destinations belong to a frontend. A flow to a
// removed backend must belong to it. If the destination was never a backend, but for example the
// port of a proxy, the flow must not belong to it.
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
		t.Error("leadsTo for a backend of the earlier frontend = false, want true")
	}
}

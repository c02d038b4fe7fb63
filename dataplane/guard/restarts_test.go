package guard

import (
	"net/netip"
	"testing"

	"vipd/balancer"
)

// TestDeadEndpointsOfRanges changes the endpoints' ports of a range. An address counts as dead only
// if none of its backends serves the range, because a range's entries have no endpoint port.
func TestDeadEndpointsOfRanges(t *testing.T) {
	f := &balancer.Frontend{
		Key: balancer.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: balancer.NewPortRange(7000, 7009), Proto: balancer.TCP},
		Backends: []balancer.Backend{
			{Addr: netip.MustParseAddrPort("10.1.0.1:8000"), State: balancer.Removed},
			{Addr: netip.MustParseAddrPort("10.1.0.1:9000"), State: balancer.Active, Weight: 1},
			{Addr: netip.MustParseAddrPort("10.1.0.2:8000"), State: balancer.Removed},
		},
	}
	dead := endpointsThat(balancer.Backend.Dead)(f)
	if len(dead) != 1 || dead[0].To.Addr() != f.Backends[2].Addr.Addr() {
		t.Errorf("dead endpoints = %v, want only %s", dead, f.Backends[2].Addr.Addr())
	}
}

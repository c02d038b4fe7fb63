package status

import (
	"fmt"
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/dataplane"
)

// TestRefusedServices lists problems of services that are missing from the snapshot. A service must
// be listed as refused only if its definition has an error.
func TestRefusedServices(t *testing.T) {
	v := &View{State: &model.State{}}
	for _, test := range []struct {
		name    string
		problem balancer.Problem
		want    bool
	}{
		{"error in the definition", balancer.Problem{Severity: balancer.SeverityError, Field: "vips", Text: "is missing"}, true},
		{"not granted", balancer.Problem{Severity: balancer.SeverityError, Kind: balancer.Refused}, true},
		{"warning", balancer.Problem{Severity: balancer.SeverityWarning, Field: "vips"}, false},
		{"left of a removed service", balancer.Problem{Severity: balancer.SeverityError, Kind: balancer.Unapplied}, false},
		{"endpoint of a removed service", balancer.Problem{Severity: balancer.SeverityError, Kind: balancer.Unanswered}, false},
	} {
		if got := v.refused("web", []balancer.Problem{test.problem}); got != test.want {
			t.Errorf("%s: refused = %v, want %v", test.name, got, test.want)
		}
	}
}

// TestEndpointsOfRange lists an endpoint of a service that has a single port and a port range, and
// an endpoint that only drains. The entries of the range must have its target ports.
func TestEndpointsOfRange(t *testing.T) {
	vip, a, drained := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("192.0.2.9"), netip.MustParseAddrPort("192.0.2.10:9000")
	s := &balancer.Service{Name: "ftp", VIPs: []netip.Addr{vip}, Endpoints: []balancer.Endpoint{{Address: a, Weight: 1}}, Ports: []balancer.Port{
		{Name: "control", Port: 21, Protocol: balancer.TCP, TargetPort: 21},
		{Name: "data", Port: balancer.NewPortRange(8000, 8999), Protocol: balancer.TCP, TargetPort: balancer.NewPortRange(9000, 9999)},
	}}
	v := &View{State: &model.State{}, sums: map[traffic.Port]dataplane.FrontendCount{}}
	key := balancer.Key{Addr: vip, Port: s.Ports[1].Port, Proto: balancer.TCP}
	v.State.Desired.Frontends = v.State.Desired.Frontends.Set(key, &balancer.Frontend{
		Key: key, Service: s.Name, Backends: []balancer.Backend{{Addr: drained, State: balancer.Removed}},
	})
	want := []string{"192.0.2.9:21 0 192.0.2.9:21", "192.0.2.9:9000 9000-9999 192.0.2.9:9000-9999", "192.0.2.10:9000 9000-9999 192.0.2.10:9000-9999"}
	all := v.EndpointsOf(s)
	for i := range all {
		if got := fmt.Sprint(all[i].Address, " ", all[i].TargetPorts, " ", all[i].Place()); i >= len(want) || got != want[i] {
			t.Errorf("endpoint %d = %s, want %s", i, got, want)
		}
	}
	if len(all) != len(want) {
		t.Errorf("number of endpoints = %d, want %d", len(all), len(want))
	}
}

package status

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/model"
)

// TestUncheckedOfMany requests the reason why endpoints of a large service have no check. Finding
// the reason must not require a scan of all endpoints, because many registrations would then delay
// scrapes and requests.
func TestUncheckedOfMany(t *testing.T) {
	s := &balancer.Service{
		Name: "web", Origin: balancer.Origin{Key: "/vipd/services/web"}, VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Health: &balancer.Health{Type: balancer.TCPHealth},
	}
	for port := range balancer.PortRange(100) {
		s.Ports = append(s.Ports, balancer.Port{Name: fmt.Sprintf("p%d", port), Port: 1 + port, Protocol: balancer.TCP})
	}
	v := &View{State: &model.State{}}
	v.State.Inputs.Services = v.State.Inputs.Services.Set(s.Name, s)
	register := func(n int, first string) {
		a := netip.MustParseAddr(first)
		for i := range n {
			id := balancer.EndpointID{Service: s.Name, ID: fmt.Sprintf("%s-%05d", first, i)}
			v.State.Inputs.Endpoints = v.State.Inputs.Endpoints.Set(id, &balancer.Endpoint{Address: a, Weight: 1})
			a = a.Next()
		}
	}
	register(2501, "10.1.0.0") // one endpoint more than the limit for a service with 100 ports
	register(1000, "169.254.0.1")
	for address, want := range map[string]string{
		"169.254.0.7": "with a loopback or link-local address are not used here", "10.1.9.196": "the service has too many endpoints", "10.1.9.195": "a tcp check can't test",
	} {
		target := balancer.Target{Service: s.Name, Addr: netip.MustParseAddr(address), Port: 80}
		if got := v.unchecked(s, target); !strings.Contains(got, want) {
			t.Errorf("%s: text = %q, want a text that contains %q", address, got, want)
		}
	}
	target := balancer.Target{Service: s.Name, Addr: netip.MustParseAddr("169.254.0.7"), Port: 80}
	if n := testing.AllocsPerRun(10, func() { v.unchecked(s, target) }); n > 2 {
		t.Errorf("second report: allocations = %v, want at most 2", n)
	}
}

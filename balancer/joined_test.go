package balancer_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"vipd/balancer"
)

// TestTooLarge decodes services that are too large for a host. They must be refused quickly,
// without a search for other problems.
func TestTooLarge(t *testing.T) {
	text := func(vips, ports, endpoints int) map[string]any {
		list := func(n int, write func(i int) any) (all []any) {
			for i := range n {
				all = append(all, write(i))
			}
			return all
		}
		return map[string]any{
			"vips":  list(vips, func(i int) any { return fmt.Sprintf("10.96.%d.%d", i>>8, i&255) }),
			"ports": list(ports, func(i int) any { return map[string]any{"name": fmt.Sprintf("p%d", i), "port": int64(1 + i%65535)} }),
			"endpoints": list(endpoints, func(i int) any {
				return map[string]any{"address": fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255)}
			}),
		}
	}
	for _, c := range []struct {
		vips, ports, endpoints int
		want                   string
	}{
		{4, 1024, 61, ""},
		{4, 1025, 0, "ports: 1025 ports at 4 VIPs make 4100 frontends; the limit is 4096: split the service"},
		{4097, 1, 1, "ports: 1 ports at 4097 VIPs make 4097 frontends; the limit is 4096: split the service"},
		{1, 40000, 1, "ports: 40000 ports at 1 VIPs make 40000 frontends; the limit is 4096: split the service"},
		{2, 12, 10000, ""},
		{1, 1000, 1000, "endpoints: 1000 endpoints behind 1000 frontends make 1000000 backends; the limit is 250000: split the service"},
	} {
		s, problems := balancer.DecodeService("web", text(c.vips, c.ports, c.endpoints), nil, nil, balancer.SeverityError)
		got := ""
		if len(problems) > 0 {
			got = strings.TrimPrefix(problems[0].String(), "service web: ")
		}
		if len(problems) > 1 || got != c.want || (s == nil) != (c.want != "") {
			t.Errorf("%d VIPs, %d ports, %d endpoints: problem = %q, want %q", c.vips, c.ports, c.endpoints, got, c.want)
		}
	}
}

// TestTooManyRegistered registers more endpoints than a service may have. The excess registered
// endpoints must be omitted and reported. Defined endpoints must never be omitted.
func TestTooManyRegistered(t *testing.T) {
	s := oneService("web", 0, 10)
	s.VIPs = append(s.VIPs, netip.MustParseAddr("10.97.0.1"))
	s.Ports = nil
	for i := range 100 {
		s.Ports = append(s.Ports, balancer.Port{Name: fmt.Sprintf("p%d", i), Port: balancer.PortRange(80 + i), Protocol: balancer.TCP, TargetPort: 8080})
	}
	var in balancer.Inputs
	in.Services = in.Services.Set("web", s)
	const most = balancer.MaxBackends / 200
	for i := range most + 5 - 10 {
		id := balancer.EndpointID{Service: "web", ID: fmt.Sprintf("%06d", i)}
		in.Endpoints = in.Endpoints.Set(id, &balancer.Endpoint{Address: netip.AddrFrom4([4]byte{192, 169, byte(i >> 8), byte(i)}), Weight: 1})
	}
	d := balancer.Compile(plainEnv(), in)
	const want = "1255 endpoints behind 200 frontends exceed the limit of 250000 backends: the last 5 by key are not used. Split the service"
	if p := found(d); len(p) != 1 || p[0].Severity != balancer.SeverityError || p[0].Field != "endpoints" || p[0].Text != want {
		t.Errorf("problems = %v, want one error with the text %s", p, want)
	}
	for k, f := range d.Frontends.All() {
		if len(f.Backends) != most || f.Backends[0].Addr.Addr() != s.Endpoints[0].Address {
			t.Fatalf("frontend %s: backends = %d, want %d; first backend = %s, want the first defined endpoint", k, len(f.Backends), most, f.Backends[0].Addr)
		}
	}
	in.Endpoints = in.Endpoints.Delete(balancer.EndpointID{Service: "web", ID: "000000"})
	if got := found(balancer.Compile(plainEnv(), in)); len(got) != 1 || !strings.Contains(got[0].Text, "the last 4 by key") {
		t.Errorf("after an endpoint was removed: problems = %v, want one, about 4 unused endpoints", got)
	}
}

// TestVIPsShareBackends compiles a service with many VIPs. To save memory, all frontends with the
// same port and address family must share one list of backends.
func TestVIPsShareBackends(t *testing.T) {
	s := oneService("web", 0, 3)
	s.Endpoints = append(s.Endpoints, balancer.Endpoint{Address: netip.MustParseAddr("fd00::1"), Weight: 1})
	s.Ports = append(s.Ports, balancer.Port{Name: "other", Port: 81, Protocol: balancer.TCP, TargetPort: 8080})
	for i := range 50 {
		s.VIPs = append(s.VIPs, netip.AddrFrom4([4]byte{10, 98, 0, byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd00:96::%x", i)))
	}
	var in balancer.Inputs
	in.Services = in.Services.Set("web", s)
	var c balancer.Compiler
	for name, d := range map[string]balancer.Desired{"Compile": balancer.Compile(plainEnv(), in), "Next": c.Once(plainEnv(), in)} {
		made := map[*balancer.Backend]bool{}
		for _, f := range d.Frontends.All() {
			made[&f.Backends[0]] = true
		}
		if d.Frontends.Len() != 202 || len(made) != 4 {
			t.Errorf("%s: frontends = %d, backend lists = %d; want 202 frontends, and 1 list per port and family", name, d.Frontends.Len(), len(made))
		}
	}
}

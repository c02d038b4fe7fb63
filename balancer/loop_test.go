package balancer_test

import (
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// TestNoFrontendLeadsToItself adds an endpoint with the address and port of the service's own
// frontend. The frontend must not be its own backend, and must keep its other backends.
func TestNoFrontendLeadsToItself(t *testing.T) {
	endpoint := func(a string, port uint16) balancer.Endpoint {
		return balancer.Endpoint{Address: addr(a), Port: port, Weight: 1}
	}
	port := func(p balancer.Port) []balancer.Port {
		p.Name, p.Protocol = "p", balancer.TCP
		return []balancer.Port{p}
	}
	for _, c := range []struct {
		name      string
		ports     []balancer.Port
		endpoints []balancer.Endpoint
		published string // address of a registered endpoint
		want      string // backends of the frontend 10.96.0.10:80/tcp
		field     string // that the problem names
	}{
		{"alone", port(balancer.Port{Port: 80, TargetPort: 80}), []balancer.Endpoint{endpoint("10.96.0.10", 0)}, "", "", "endpoints[0].address"},
		{"beside another", port(balancer.Port{Port: 80, TargetPort: 80}), []balancer.Endpoint{endpoint("10.0.0.9", 0), endpoint("10.96.0.10", 0)}, "", "9:active/1", "endpoints[1].address"},
		{"a port of its own", port(balancer.Port{Port: 80, TargetPort: 8080}), []balancer.Endpoint{endpoint("10.96.0.10", 80)}, "", "", "endpoints[0].address"},
		{"another port", port(balancer.Port{Port: 80, TargetPort: 8080}), []balancer.Endpoint{endpoint("10.96.0.10", 0)}, "", "10:active/1", ""},
		{"published apart", port(balancer.Port{Port: 80, TargetPort: 80}), nil, "10.96.0.10", "", "endpoints"},
		{"node port", port(balancer.Port{Port: 80, TargetPort: 3000, NodePort: 3000}), []balancer.Endpoint{endpoint("192.168.1.5", 0)}, "", "5:active/1", "endpoints[0].address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := plainEnv()
			env.NodePortAddresses = append(env.NodePortAddresses, addr("192.168.1.5"))
			var in balancer.Inputs
			s := &balancer.Service{Name: "web", Ports: c.ports, Endpoints: c.endpoints, Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, Forward: balancer.NATForward}}
			s.VIPs = append(s.VIPs, addr("10.96.0.10"))
			in.Services = in.Services.Set(s.Name, s)
			if c.published != "" {
				in.Endpoints = in.Endpoints.Set(balancer.EndpointID{Service: "web", ID: "a"}, &balancer.Endpoint{Address: addr(c.published), Weight: 1})
			}
			if got := states(env, in, "10.96.0.10:80/tcp"); got != c.want {
				t.Errorf("backends = %q, want %q", got, c.want)
			}
			if c.name == "node port" {
				if got := states(env, in, "192.168.1.5:3000/tcp"); got != "" {
					t.Errorf("node port: backends = %q, want none", got)
				}
			}
			wantLeadsBack(t, balancer.Compile(env, in).Problems, c.field)
		})
	}
}

func wantLeadsBack(t *testing.T, problems snap.Map[balancer.Name, *[]balancer.Problem], field string) {
	t.Helper()
	var all []balancer.Problem
	if p := problems.At("web"); p != nil {
		all = slices.DeleteFunc(slices.Clone(*p), func(p balancer.Problem) bool { return p.Severity == balancer.SeverityWarning })
	}
	switch {
	case field == "" && len(all) == 0:
	case len(all) != 1 || all[0].Field != field || all[0].Severity != balancer.SeverityError || !strings.Contains(all[0].Text, "because they would loop"):
		t.Errorf("problems = %v, want one error about the field %q", all, field)
	}
}

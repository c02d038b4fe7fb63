package balancer_test

import (
	"net/netip"
	"strings"
	"testing"

	"vipd/balancer"
)

// TestAgentAnswer reads a sequence of lines from agents. Each answer must have the state and
// percentage that its line means in HAProxy. Draining and going down must not affect each other. A
// line without a known word must be refused.
func TestAgentAnswer(t *testing.T) {
	a := balancer.FirstAnswer()
	for _, c := range []struct {
		line    string
		state   balancer.AgentState
		percent int
		known   bool
	}{
		{"75%", "", 75, true},
		{"drain", "drain", 75, true},
		{"50% # drain is over", "drain", 50, true},
		{"ready 10%", "", 10, true},
		{"MAINT", "drain", 10, true},
		{"up,120%", "drain", 100, true},
		{"maint up", "drain", 100, true},
		{"ready", "", 100, true},
		{"stopped #disk full", "down", 100, true},
		{"fail", "down", 100, true},
		{"hello -3% 1000000000000% 5", "down", 100, false},
		{"# up", "down", 100, false},
		{"", "down", 100, false},
		{"ready", "down", 100, true},
		{"maint", "down", 100, true},
		{"up", "drain", 100, true},
		{"down", "down", 100, true},
		{"up ready", "", 100, true},
		{"0%", "", 0, true},
	} {
		next, known := a.NextAnswer(c.line)
		if known != c.known || known && (next.State != c.state || next.Percent != c.percent || next.Text != c.line) {
			t.Errorf("NextAnswer(%q) = %+v, %v, want %q, %d%%, %v", c.line, next, known, c.state, c.percent, c.known)
		}
		if known {
			a = next
		}
	}
}

// TestAgentWeights compiles endpoints whose agents have answered. The weights must follow the
// answers, and must never exceed the configured weights. Overrides must have priority over the
// answers.
func TestAgentWeights(t *testing.T) {
	s := &balancer.Service{
		Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: []balancer.Port{{Port: 80, TargetPort: 80, Protocol: balancer.TCP}},
		Health: &balancer.Health{Type: balancer.TCPHealth},
	}
	weights := []int{1, 2, 65535}
	for i, w := range weights {
		s.Endpoints = append(s.Endpoints, balancer.Endpoint{Address: netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)}), Weight: w})
	}
	target := func(i int) balancer.Target {
		return balancer.Target{Service: "web", Addr: s.Endpoints[i].Address, Port: 80}
	}
	five, no := 5, false
	for _, c := range []struct {
		name      string
		weights   []int // of the endpoints in the definition; 0 keeps the default list
		answers   map[int]balancer.AgentAnswer
		overrides map[int]*balancer.Override
		want      []balancer.Backend
	}{
		{"none", []int{1, 2, 3}, nil, nil, []balancer.Backend{{State: balancer.Active, Weight: 1}, {State: balancer.Active, Weight: 2}, {State: balancer.Active, Weight: 3}}},
		{"share", []int{1, 2, 3}, map[int]balancer.AgentAnswer{0: {Percent: 75}}, nil, []balancer.Backend{{State: balancer.Active, Weight: 75}, {State: balancer.Active, Weight: 200}, {State: balancer.Active, Weight: 300}}},
		{"maximum", nil, map[int]balancer.AgentAnswer{2: {Percent: 50}}, nil, []balancer.Backend{{State: balancer.Active, Weight: 1}, {State: balancer.Active, Weight: 2}, {State: balancer.Active, Weight: 32767}}},
		{"states", []int{1, 2, 3}, map[int]balancer.AgentAnswer{0: {State: "drain", Percent: 100}, 1: {State: "down", Percent: 100}, 2: {Percent: 100}}, nil, []balancer.Backend{{State: balancer.Draining}, {State: balancer.Down, Failing: true}, {State: balancer.Active, Weight: 3}}},
		{"zero", []int{1, 2, 3}, map[int]balancer.AgentAnswer{0: {Percent: 0}}, nil, []balancer.Backend{{State: balancer.ZeroWeight}, {State: balancer.Active, Weight: 2}, {State: balancer.Active, Weight: 3}}},
		{"overrides", []int{1, 2, 3}, map[int]balancer.AgentAnswer{0: {Percent: 10}, 1: {State: "drain", Percent: 100}}, map[int]*balancer.Override{0: {Weight: &five}, 1: {Draining: &no}}, []balancer.Backend{{State: balancer.Active, Weight: 5}, {State: balancer.Active, Weight: 2}, {State: balancer.Active, Weight: 3}}},
	} {
		var in balancer.Inputs
		service := *s
		service.Endpoints = append([]balancer.Endpoint(nil), s.Endpoints...)
		for i, w := range c.weights {
			service.Endpoints[i].Weight = w
		}
		in.Services = in.Services.Set("web", &service)
		for i, a := range c.answers {
			in.Agents = in.Agents.Set(target(i), a)
		}
		for i, o := range c.overrides {
			in.Overrides = in.Overrides.Set(target(i), o)
		}
		desired := balancer.Compile(plainEnv(), in)
		f := desired.Frontends.At(balancer.Key{Addr: s.VIPs[0], Port: 80, Proto: balancer.TCP})
		if f == nil || len(f.Backends) != len(c.want) {
			t.Fatalf("%s: frontend = %+v, want a frontend with %d backends", c.name, f, len(c.want))
		}
		for i, b := range f.Backends {
			if w := c.want[i]; b.State != w.State || b.Weight != w.Weight || b.Failing != w.Failing {
				t.Errorf("%s: backend %d = %+v, want %+v", c.name, i, b, w)
			}
		}
	}
}

// TestAgentsInPanic compiles a service with four endpoints. The first is drained by its agent. The
// second is down according to its agent. The third fails its check, and the fourth is up. When
// panic_threshold applies, only the last two may get connections.
func TestAgentsInPanic(t *testing.T) {
	s := &balancer.Service{
		Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: []balancer.Port{{Port: 80, TargetPort: 80, Protocol: balancer.TCP}},
		Health: &balancer.Health{Type: balancer.TCPHealth, Agent: &balancer.Agent{Port: 9}},
	}
	var in balancer.Inputs
	target := func(i int) balancer.Target {
		return balancer.Target{Service: "web", Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), Port: 80}
	}
	for i := range 4 {
		s.Endpoints = append(s.Endpoints, balancer.Endpoint{Address: target(i + 1).Addr, Weight: 1})
	}
	in.Agents = in.Agents.Set(target(1), balancer.AgentAnswer{State: balancer.AgentDrained, Percent: 100}).Set(target(2), balancer.AgentAnswer{State: balancer.AgentDown, Percent: 100})
	in.Health = in.Health.Set(target(3), balancer.HealthDown).Set(target(4), balancer.HealthUp)
	for threshold, want := range map[int]string{
		50: "1:draining/0 2:down/0 3:down/0 4:active/1", // half of endpoints 3 and 4 are up; endpoints 1 and 2 are not counted
		51: "1:draining/0 2:down/0 3:active/1 4:active/1",
	} {
		changed := *s
		changed.Health = &balancer.Health{Type: balancer.TCPHealth, Agent: s.Health.Agent, PanicThreshold: threshold}
		in.Services = in.Services.Set("web", &changed)
		if got := states(plainEnv(), in, "10.0.0.1:80"); got != want {
			t.Errorf("panic_threshold = %d: backends = %s, want %s", threshold, got, want)
		}
	}
}

// TestIdleByAgents drains one endpoint through its agent and the other by its definition. The
// problem must name both reasons.
func TestIdleByAgents(t *testing.T) {
	s := &balancer.Service{
		Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Ports: []balancer.Port{{Port: 80, TargetPort: 80, Protocol: balancer.TCP}},
		Endpoints: []balancer.Endpoint{{Address: netip.MustParseAddr("10.1.0.1"), Weight: 1}, {Address: netip.MustParseAddr("10.1.0.2"), Weight: 1, Draining: true}},
		Health:    &balancer.Health{Type: balancer.TCPHealth, Agent: &balancer.Agent{Port: 9}},
	}
	var in balancer.Inputs
	in.Services = in.Services.Set("web", s)
	for _, e := range s.Endpoints {
		in.Agents = in.Agents.Set(balancer.Target{Service: "web", Addr: e.Address, Port: 80}, balancer.AgentAnswer{State: balancer.AgentDrained, Percent: 100})
	}
	const want = "no endpoint accepts new connections: 1 drained by agents, 1 with draining = true"
	if got := problemsOf(balancer.Compile(plainEnv(), in).Problems.At("web")); !strings.Contains(got, want) {
		t.Errorf("problems = %s, want a problem that contains %q", got, want)
	}
}

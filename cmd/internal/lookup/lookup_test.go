package lookup

import (
	"fmt"
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

// TestOther looks up unknown names. The text must suggest the most similar name or, if no name is
// similar, list the known names.
func TestOther(t *testing.T) {
	for _, test := range []struct {
		name  string
		known []string
		want  string
	}{
		{"wbe", []string{"dns", "web"}, "; did you mean web?"},
		{"nope", []string{"dns", "web"}, "; there are dns, web"},
		{"nope", []string{"web"}, "; there is web"},
		{"nope", nil, "; there are none"},
	} {
		if got := Other(test.name, test.known); got != test.want {
			t.Errorf("Other(%q, %q) = %q, want %q", test.name, test.known, got, test.want)
		}
	}
}

// TestSpares drains endpoints of a service. CheckCapacity must refuse the request if, and only if,
// new connections would fail. Each letter is an endpoint: u is usable, d is down, b is a usable
// backup, and B is a backup that is down. Agents affect three endpoints: m is drained, f is
// reported as down, and 0 has the weight 0. M and O are like m and 0, but have an override.
func TestSpares(t *testing.T) {
	const none = "no usable endpoint would remain for service web (port 80/tcp), so new connections would fail: nothing was changed; --force changes it anyway"
	const few = "fewer usable endpoints than min_usable would remain for service web (port 80/tcp; min_usable = 2), so new connections would fail: nothing was changed; --force changes it anyway"
	one, yes, no := 1, true, false
	agents := map[rune]balancer.AgentAnswer{
		'm': {State: balancer.AgentDrained, Percent: 100}, 'f': {State: balancer.AgentDown, Percent: 100}, '0': {},
		'M': {State: balancer.AgentDrained, Percent: 100}, 'O': {},
	}
	overrides := map[rune]*balancer.Override{'M': {Draining: &no}, 'O': {Weight: &one}}
	for _, test := range []struct {
		endpoints string
		minUsable int
		drained   []int // positions of the drained endpoints, from 1
		want      string
	}{
		{"uu", 0, []int{1}, ""},
		{"uu", 0, []int{1, 2}, none},
		{"ud", 0, []int{1}, none},
		{"ub", 0, []int{1}, ""},
		{"ub", 0, []int{1, 2}, none},
		{"uB", 0, []int{1}, none},
		{"uuu", 2, []int{1}, ""},
		{"uu", 2, []int{1}, few},
		{"uuu", 2, []int{1, 2}, few},
		{"uud", 2, []int{1}, few},
		{"uu", 2, []int{1, 2}, none},
		{"uub", 2, []int{1}, ""},
		{"uuB", 2, []int{1}, few},
		{"uub", 2, []int{1, 3}, few},
		{"uub", 2, []int{3}, ""},
		{"ub", 2, []int{2}, few},
		{"ubb", 2, []int{2}, ""},
		{"uud", 2, []int{3}, ""}, // the drained endpoint is already down
		{"um", 0, []int{1}, none},
		{"uf", 0, []int{1}, none},
		{"u0", 0, []int{1}, none},
		{"um", 0, []int{2}, ""}, // the agent already drains the endpoint
		{"uM", 0, []int{1}, ""},
		{"uO", 0, []int{1}, ""},
	} {
		s := &balancer.Service{Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []balancer.Port{{Port: 80, TargetPort: 8080, Protocol: balancer.TCP}}}
		s.MinUsable = test.minUsable
		in := &balancer.Inputs{}
		target := func(place int) balancer.Target {
			return balancer.Target{Service: "web", Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(place)})}
		}
		for i, kind := range test.endpoints {
			at := target(i + 1)
			s.Endpoints = append(s.Endpoints, balancer.Endpoint{Address: at.Addr, Weight: 1, Backup: kind == 'b' || kind == 'B'})
			if at.Port = 8080; kind == 'd' || kind == 'B' {
				in.Health = in.Health.Set(at, balancer.HealthDown)
			}
			if answer, answers := agents[kind]; answers {
				in.Agents = in.Agents.Set(at, answer)
			}
			if o := overrides[kind]; o != nil {
				in.Overrides = in.Overrides.Set(at, o)
			}
		}
		// The first endpoint is also registered. It must count only once.
		in.Endpoints = in.Endpoints.Set(balancer.EndpointID{Service: "web", ID: "a"}, &s.Endpoints[0])
		in.Services = in.Services.Set("web", s)
		var targets []balancer.Target
		for _, place := range test.drained {
			targets = append(targets, target(place))
		}
		for _, force := range []bool{false, true} {
			want := test.want
			if force {
				want = ""
			}
			got := ""
			if err := CheckCapacity(in, &api.OverrideRequest{Service: "web", Draining: &yes, Force: force}, targets); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("drain %s in %q, min_usable = %d, force = %v: error = %q, want %q", fmt.Sprint(test.drained), test.endpoints, test.minUsable, force, got, want)
			}
		}
	}
}

// TestSparesDefinedWeight removes weights that operators have set. CheckCapacity must refuse the
// request if no endpoint has a weight above 0 afterwards.
func TestSparesDefinedWeight(t *testing.T) {
	five, reset, zero := 5, balancer.ResetWeight, 0
	at := netip.MustParseAddr("10.0.0.1")
	for _, test := range []struct {
		name             string
		defined          int // weight in the definition
		set, wide        *int
		requested        *int
		port             uint16
		otherWeight      int
		agent, wantError bool
	}{
		{name: "the definition has the weight 0", set: &five, requested: &reset, wantError: true},
		{name: "another endpoint is usable", set: &five, requested: &reset, otherWeight: 1},
		{name: "the definition has a weight", defined: 1, set: &five, requested: &reset},
		{name: "the definition's weight is set", set: &five, requested: &five},
		{name: "the weight of all ports remains", set: &five, wide: &five, requested: &reset, port: 8080},
		{name: "the weight 0 of all ports remains", defined: 1, set: &five, wide: &zero, requested: &reset, port: 8080, wantError: true},
		{name: "the agent's weight 0 applies again", defined: 1, set: &five, requested: &reset, agent: true, wantError: true},
	} {
		s := &balancer.Service{Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []balancer.Port{{Port: 80, TargetPort: 8080, Protocol: balancer.TCP}}}
		s.Endpoints = []balancer.Endpoint{{Address: at, Weight: test.defined}, {Address: at.Next(), Weight: test.otherWeight}}
		in := &balancer.Inputs{}
		in.Services = in.Services.Set("web", s)
		in.Overrides = in.Overrides.Set(balancer.Target{Service: "web", Addr: at, Port: 8080}, &balancer.Override{Weight: test.set})
		if test.wide != nil {
			in.Overrides = in.Overrides.Set(balancer.Target{Service: "web", Addr: at}, &balancer.Override{Weight: test.wide})
		}
		if test.agent {
			in.Agents = in.Agents.Set(balancer.Target{Service: "web", Addr: at, Port: 8080}, balancer.AgentAnswer{})
		}
		targets := []balancer.Target{{Service: "web", Addr: at, Port: test.port}}
		if err := CheckCapacity(in, &api.OverrideRequest{Weight: test.requested}, targets); (err != nil) != test.wantError {
			t.Errorf("%s: error = %v, want an error: %v", test.name, err, test.wantError)
		}
	}
}

// TestTargetsByName requests endpoints by DNS names. All of a name's known addresses must be
// selected, and unknown names must be refused.
func TestTargetsByName(t *testing.T) {
	s := &balancer.Service{Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []balancer.Port{{Port: 80, TargetPort: 8080}}}
	s.Endpoints = []balancer.Endpoint{{Name: "web.example.org"}, {Name: "new.example.org"}, {Name: "own.example.org", Port: 9000}, {Address: netip.MustParseAddr("192.0.2.9")}}
	in := &balancer.Inputs{}
	in.Services = in.Services.Set("web", s)
	for name, addresses := range map[string][]string{"web.example.org": {"192.0.2.1", "192.0.2.2"}, "own.example.org": {"192.0.2.1"}} {
		r := &balancer.Resolution{}
		for _, a := range addresses {
			r.Records = append(r.Records, balancer.LookupRecord{Addr: netip.MustParseAddr(a)})
		}
		in.Resolved = in.Resolved.Set(balancer.LookupID{Service: "web", Lookup: balancer.Lookup{Kind: balancer.HostLookup, Name: name, V4: true}}, r)
	}
	for name, want := range map[string]string{
		"web.example.org":   "[web/192.0.2.1 web/192.0.2.2] <nil>",
		"WEB.example.org.":  "[web/192.0.2.1 web/192.0.2.2] <nil>",
		"own.example.org":   "[web/192.0.2.1:9000] <nil>",
		"new.example.org":   "[] the addresses of new.example.org, an endpoint of service web, are not known here",
		"webs.example.org":  "[] service web has no endpoint with the name webs.example.org; did you mean web.example.org?",
		"192.168.1":         `[] "192.168.1" is not an endpoint's ADDRESS or ADDRESS:PORT, such as 192.168.1.11, 192.168.1.11:8080 or [fd00::1]:8080`,
		"web.example.org:1": `[] "web.example.org:1" is not an endpoint's ADDRESS or ADDRESS:PORT, such as 192.168.1.11, 192.168.1.11:8080 or [fd00::1]:8080`,
	} {
		targets, err := Place{Inputs: in}.Targets(&api.OverrideRequest{Service: "web", Address: name})
		if got := fmt.Sprint(targets, " ", err); got != want {
			t.Errorf("Targets(%s) = %s, want %s", name, got, want)
		}
	}
}

// TestTargetsOfRange requests an endpoint by its port range, or by the first port of the range.
// Other ranges must be refused with an error that lists the existing ranges.
func TestTargetsOfRange(t *testing.T) {
	s := &balancer.Service{Name: "ftp", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []balancer.Port{
		{Name: "control", Port: 21, TargetPort: 21}, {Name: "data", Port: balancer.NewPortRange(8000, 8999), TargetPort: balancer.NewPortRange(9000, 9999)},
	}}
	s.Endpoints = []balancer.Endpoint{{Address: netip.MustParseAddr("192.0.2.9")}, {Address: netip.MustParseAddr("fd00::9")}}
	in := &balancer.Inputs{}
	in.Services = in.Services.Set("ftp", s)
	const has = "it has 192.0.2.9:21, 192.0.2.9:9000-9999, [fd00::9]:21, [fd00::9]:9000-9999"
	for address, want := range map[string]string{
		"192.0.2.9":           "[ftp/192.0.2.9] <nil>",
		"192.0.2.9:9000":      "[ftp/192.0.2.9:9000] <nil>",
		"192.0.2.9:9000-9999": "[ftp/192.0.2.9:9000] <nil>",
		"[fd00::9]:9000-9999": "[ftp/[fd00::9]:9000] <nil>",
		"192.0.2.9:9000-9500": "[] service ftp has no endpoint 192.0.2.9:9000-9500; " + has,
		"192.0.2.9:21-9999":   "[] service ftp has no endpoint 192.0.2.9:21-9999; " + has,
		"192.0.2.9:all":       "[] service ftp has no endpoint 192.0.2.9:all; " + has,
		"192.0.2.9:9001":      "[] service ftp has no endpoint 192.0.2.9:9001; " + has,
	} {
		targets, err := Place{Inputs: in}.Targets(&api.OverrideRequest{Service: "ftp", Address: address})
		if got := fmt.Sprint(targets, " ", err); got != want {
			t.Errorf("Targets(%s) = %s, want %s", address, got, want)
		}
	}
}

package balancer_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// states compiles a service, and formats each backend of the frontend key as BYTE:STATE/WEIGHT,
// where BYTE is the last byte of its address.
func states(env balancer.Env, in balancer.Inputs, key string) string {
	k, err := balancer.ParseKey(key)
	if err != nil {
		panic(err)
	}
	f := balancer.Compile(env, in).Frontends.At(k)
	if f == nil {
		return "no frontend"
	}
	var words []string
	for _, b := range f.Backends {
		a := b.Addr.Addr().As16()
		words = append(words, fmt.Sprintf("%d:%s/%d", a[15], b.State, b.Weight))
	}
	return strings.Join(words, " ")
}

func TestChoice(t *testing.T) {
	e := func(last int, change func(*balancer.Endpoint)) balancer.Endpoint {
		out := balancer.Endpoint{Address: addr(fmt.Sprintf("192.168.1.%d", last)), Weight: 1}
		if change != nil {
			change(&out)
		}
		return out
	}
	backup := func(e *balancer.Endpoint) { e.Backup = true }
	draining := func(e *balancer.Endpoint) { e.Draining = true }
	weight := func(w int) func(*balancer.Endpoint) { return func(e *balancer.Endpoint) { e.Weight = w } }
	at := func(node, zone string) func(*balancer.Endpoint) {
		return func(e *balancer.Endpoint) { e.Node, e.Zone = node, zone }
	}
	for _, c := range []struct {
		name      string
		locality  balancer.Locality
		endpoints []balancer.Endpoint
		down      []int
		want      string
	}{
		{"weights", "", []balancer.Endpoint{e(1, weight(3)), e(2, nil)}, nil, "1:active/3 2:active/1"},
		{"weight 0", "", []balancer.Endpoint{e(1, weight(0)), e(2, nil)}, nil, "1:zero-weight/0 2:active/1"},
		{"draining", "", []balancer.Endpoint{e(1, draining), e(2, nil)}, nil, "1:draining/0 2:active/1"},
		{"backup stands by", "", []balancer.Endpoint{e(1, nil), e(2, backup)}, nil, "1:active/1 2:standby/0"},
		{"backup serves when the other drains", "", []balancer.Endpoint{e(1, draining), e(2, backup)}, nil, "1:draining/0 2:active/1"},
		{"backup serves when the other is down", "", []balancer.Endpoint{e(1, nil), e(2, backup)}, []int{1}, "1:down/0 2:active/1"},
		{"all down", "", []balancer.Endpoint{e(1, nil), e(2, nil)}, []int{1, 2}, "1:down/0 2:down/0"},
		{"prefer zone", balancer.PreferZone, []balancer.Endpoint{e(1, at("n1", "z1")), e(2, at("n2", "z2"))}, nil, "1:active/1 2:remote/0"},
		{"prefer zone, none there", balancer.PreferZone, []balancer.Endpoint{e(1, at("n1", "z3")), e(2, at("n2", "z2"))}, nil, "1:active/1 2:active/1"},
		{"prefer zone, the one there is down", balancer.PreferZone, []balancer.Endpoint{e(1, at("n1", "z1")), e(2, at("n2", "z2"))}, []int{1}, "1:down/0 2:active/1"},
		{"prefer node", balancer.PreferNode, []balancer.Endpoint{e(1, at("n1", "z1")), e(2, at("n2", "z1"))}, nil, "1:active/1 2:remote/0"},
		{"prefer node, else the zone", balancer.PreferNode, []balancer.Endpoint{e(1, at("n3", "z1")), e(2, at("n2", "z2"))}, nil, "1:active/1 2:remote/0"},
		{"node only", balancer.NodeOnly, []balancer.Endpoint{e(1, at("n1", "")), e(2, at("n2", ""))}, nil, "1:active/1 2:remote/0"},
		{"node only, none there", balancer.NodeOnly, []balancer.Endpoint{e(2, at("n2", ""))}, nil, "2:remote/0"},
		{"node only, a backup there", balancer.NodeOnly, []balancer.Endpoint{e(1, func(e *balancer.Endpoint) { e.Node, e.Backup = "n1", true }), e(2, at("n2", ""))}, nil, "1:active/1 2:remote/0"},
		{"a backup nearby is only a backup", balancer.PreferNode, []balancer.Endpoint{e(1, func(e *balancer.Endpoint) { e.Node, e.Backup = "n1", true }), e(2, at("n2", ""))}, nil, "1:standby/0 2:active/1"},
		{"the other family is left out", "", []balancer.Endpoint{e(1, nil), {Address: addr("fd00::9"), Weight: 1}}, nil, "1:active/1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := oneService("web", 1, 0)
			s.Locality, s.Endpoints = c.locality, c.endpoints
			var in balancer.Inputs
			in.Services = in.Services.Set("web", s)
			for _, d := range c.down {
				target := balancer.Target{Service: "web", Addr: addr(fmt.Sprintf("192.168.1.%d", d)), Port: 8080}
				in.Health = in.Health.Set(target, balancer.HealthDown)
			}
			env := plainEnv()
			env.Node, env.Zone = "n1", "z1"
			if got := states(env, in, "10.96.0.1:80"); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestHealth gives each endpoint a verdict, which is a letter in verdicts: u is up, d is down, and
// ? is unknown. The states of the backends must follow from the verdicts.
func TestHealth(t *testing.T) {
	for _, c := range []struct {
		name, verdicts string
		panic          int
		change         func(*balancer.Service)
		want           string
	}{
		{"all unknown", "???", 0, nil, "1:active/1 2:active/1 3:active/1"},
		{"the first result is in", "u??", 0, nil, "1:active/1 2:active/1 3:active/1"},
		{"one joins", "uu?", 0, nil, "1:active/1 2:active/1 3:untested/0"},
		{"one joins one", "u?", 0, nil, "1:active/1 2:untested/0"},
		{"nothing better is known", "dd?", 0, nil, "1:down/0 2:down/0 3:active/1"},
		{"an unknown one comes before a backup", "d?u", 0, func(s *balancer.Service) { s.Endpoints[2].Backup = true }, "1:down/0 2:active/1 3:standby/0"},
		{"one without checks serves", "u?", 0, func(s *balancer.Service) { s.Endpoints[1].Health = balancer.NoEndpointHealth }, "1:active/1 2:active/1"},
		{"an unknown one nearby waits", "u?", 0, func(s *balancer.Service) { s.Locality, s.Endpoints[1].Node = balancer.PreferNode, "n1" }, "1:active/1 2:untested/0"},
		{"all down, no panic", "ddd", 0, nil, "1:down/0 2:down/0 3:down/0"},
		{"all down, panic", "ddd", 1, nil, "1:active/1 2:active/1 3:active/1"},
		{"as many as the threshold", "uudd", 50, nil, "1:active/1 2:active/1 3:down/0 4:down/0"},
		{"fewer than the threshold", "uddd", 50, nil, "1:active/1 2:active/1 3:active/1 4:active/1"},
		{"threshold 100", "uuud", 100, nil, "1:active/1 2:active/1 3:active/1 4:active/1"},
		{"unknown ones count as healthy", "??dd", 50, nil, "1:active/1 2:active/1 3:down/0 4:down/0"},
		{"backups serve in a panic", "ddu", 50, func(s *balancer.Service) { s.Endpoints[2].Backup = true }, "1:active/1 2:active/1 3:active/1"},
		{"draining ones don't, nor do they count", "udd", 50, func(s *balancer.Service) { s.Endpoints[1].Draining, s.Endpoints[2].Weight = true, 0 }, "1:active/1 2:draining/0 3:zero-weight/0"},
		{"who takes the others out by hand knows", "dd", 0, func(s *balancer.Service) { s.Endpoints[0].Draining, s.Endpoints[1].Weight = true, 0 }, "1:draining/0 2:zero-weight/0"},
		{"the last one that was not drained fails", "du", 0, func(s *balancer.Service) { s.Endpoints[1].Draining = true }, "1:down/0 2:draining/0"},
		{"the last one here fails", "du", 0, func(s *balancer.Service) { s.Locality, s.Endpoints[0].Node = balancer.NodeOnly, "n1" }, "1:down/0 2:remote/0"},
		{"node only holds in a panic", "ddu", 50, func(s *balancer.Service) { s.Locality, s.Endpoints[0].Node = balancer.NodeOnly, "n1" }, "1:active/1 2:down/0 3:remote/0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := oneService("web", 1, 0)
			s.Health = &balancer.Health{PanicThreshold: c.panic}
			var in balancer.Inputs
			panicked := c.panic > 0 && strings.Count(c.verdicts, "d")*100 > (100-c.panic)*len(c.verdicts)
			for i, v := range c.verdicts {
				e := balancer.Endpoint{Address: addr(fmt.Sprintf("192.168.1.%d", i+1)), Weight: 1}
				s.Endpoints = append(s.Endpoints, e)
				verdict := map[rune]balancer.Verdict{'u': balancer.HealthUp, 'd': balancer.HealthDown, '?': balancer.HealthUnknown}[v]
				in.Health = in.Health.Set(balancer.Target{Service: "web", Addr: e.Address, Port: 8080}, verdict)
			}
			if c.change != nil {
				c.change(s)
			}
			in.Services = in.Services.Set("web", s)
			env := plainEnv()
			env.Node = "n1"
			if got := states(env, in, "10.96.0.1:80"); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			problems := problemsOf(balancer.Compile(env, in).Problems.At("web"))
			said := strings.Contains(problems, "health.panic_threshold: port 80/tcp: ")
			if wanted := panicked && !strings.Contains(c.want, "draining"); said != wanted {
				t.Errorf("panic reported = %v, want %v", said, wanted)
			}
			said = strings.Contains(problems, "no_endpoints: port 80/tcp: all endpoints fail their checks: clients are refused")
			if wanted := !strings.Contains(c.want, "active") && strings.Contains(c.want, "down"); said != wanted {
				t.Errorf("\"all endpoints fail their checks\" reported = %v, want %v", said, wanted)
			}
			idle := "endpoints: port 80/tcp: no endpoint accepts new connections: 1 with draining = true, 1 with weight 0"
			if said, wanted := strings.Contains(problems, idle), c.want == "1:draining/0 2:zero-weight/0"; said != wanted {
				t.Errorf("\"no endpoint accepts connections\" reported = %v, want %v: %s", said, wanted, problems)
			}
		})
	}
}

// TestCutConnections makes an endpoint's checks fail. The setting on_failure must decide whether
// the endpoint's connections continue or end. By default, TCP connections must continue and UDP
// flows must end.
func TestCutConnections(t *testing.T) {
	for _, c := range []struct {
		on    balancer.OnFailure
		proto balancer.Protocol
		cut   bool
	}{
		{"", balancer.TCP, false}, {"", balancer.UDP, true}, {balancer.CutOnFailure, balancer.TCP, true}, {balancer.KeepOnFailure, balancer.UDP, false},
	} {
		s := oneService("web", 1, 2)
		s.Ports[0].Protocol, s.Health = c.proto, &balancer.Health{OnFailure: c.on}
		var in balancer.Inputs
		in.Services = in.Services.Set("web", s)
		in.Health = in.Health.Set(balancer.Target{Service: "web", Addr: addr("192.168.0.1"), Port: 8080}, balancer.HealthDown)
		for _, f := range balancer.Compile(plainEnv(), in).Frontends.All() {
			up, down := f.Backends[0], f.Backends[1]
			if cut := !down.Until.IsZero() && down.Until.Before(time.Now()); down.State != balancer.Down || cut != c.cut || !up.Until.IsZero() {
				t.Errorf("on_failure = %q, %s: backends = %+v, want second backend with cut connections = %t", c.on, c.proto, f.Backends, c.cut)
			}
		}
	}
}

// TestNodePortConflict makes two services claim the same node port on a node with several
// addresses. The service that does not get the port must have exactly one problem.
func TestNodePortConflict(t *testing.T) {
	var in balancer.Inputs
	for _, name := range []balancer.Name{"a", "b"} {
		s := oneService(name, 1, 1)
		s.VIPs = []netip.Addr{addr("10.96.0." + map[balancer.Name]string{"a": "1", "b": "2"}[name])}
		s.Ports[0].NodePort = 30080
		in.Services = in.Services.Set(name, s)
	}
	env := plainEnv()
	for i := range 16 {
		env.Local = append(env.Local, addr(fmt.Sprintf("192.168.1.%d", 100+i)))
	}
	var c balancer.Compiler
	got := c.Next(env, in, time.Unix(1, 0)).Problems.At("b")
	want := "[service b: ports[0].node_port: 192.168.1.100:30080/tcp and 15 more of this node's addresses are held by service a: choose another address or port]"
	if problemsOf(got) != want {
		t.Errorf("problems = %s, want %s", problemsOf(got), want)
	}
}

// TestHolderKeepsAddress makes several services claim the same address. The service that holds the
// address must keep it. If no service holds it, it must go to a service by origin, age and name, in
// this order.
func TestHolderKeepsAddress(t *testing.T) {
	var in balancer.Inputs
	var c balancer.Compiler
	var before balancer.Desired
	step := func() string {
		before = c.Next(plainEnv(), in, time.Unix(1, 0))
		k, _ := balancer.ParseKey("10.96.0.1:80")
		return string(before.Frontends.At(k).Service)
	}
	set := func(name balancer.Name, o balancer.Origin) {
		s := oneService(name, 1, 1)
		s.Origin = o
		in.Services = in.Services.Set(name, s)
	}
	set("web", balancer.Origin{File: "a.toml", Line: 3})
	if got := step(); got != "web" {
		t.Fatal("holder of the address with only one service, want web: ", got)
	}
	set("app", balancer.Origin{File: "a.toml", Line: 9})
	if got := step(); got != "web" {
		t.Error("holder after a service whose name sorts first was added, want web: ", got)
	}
	want := "a.toml:9: service app: ports[0].port: 10.96.0.1:80/tcp is held by service web (a.toml:3): choose another address or port"
	if got := problemsOf(before.Problems.At("app")); got != "["+want+"]" {
		t.Errorf("got %s, want %s", got, want)
	}
	in.Services = in.Services.Delete("web")
	if got := step(); got != "app" || before.Problems.Len() != 0 {
		t.Errorf("next holder = %q, services with problems = %d; want app, 0", got, before.Problems.Len())
	}
	// If no service holds the address, a service from a file gets it, otherwise the oldest service
	// in etcd.
	set("a", balancer.Origin{Key: "/vipd/services/a", Created: 5})
	set("b", balancer.Origin{Key: "/vipd/services/b", Created: 4})
	in.Services = in.Services.Delete("app")
	c = balancer.Compiler{}
	if got := step(); got != "b" {
		t.Errorf("holder among services from etcd = %q, want b, the older service", got)
	}
	set("z", balancer.Origin{File: "a.toml"})
	c = balancer.Compiler{}
	if got := step(); got != "z" {
		t.Error("services from etcd and a file: want z, from the file, as the holder, got  ", got)
	}
}

// TestDrainsEnd removes an endpoint, adds it again, and removes it again. The endpoint must drain
// after each removal, and disappear after the drain timeout.
func TestDrainsEnd(t *testing.T) {
	var in balancer.Inputs
	var c balancer.Compiler
	m := &c.Memory
	now := time.Unix(1000, 0)
	step := func(endpoints int) string {
		s := oneService("web", 1, endpoints)
		s.DrainTimeout = 30 * time.Second
		in.Services = in.Services.Set("web", s)
		c.Next(plainEnv(), in, now)
		return states(plainEnv(), in.WithMemory(*m), "10.96.0.1:80")
	}
	for _, s := range []struct {
		after     time.Duration
		endpoints int
		want      string
		drains    int
	}{
		{0, 2, "0:active/1 1:active/1", 0},
		{0, 1, "0:active/1 1:removed/0", 1},
		{10 * time.Second, 2, "0:active/1 1:active/1", 0},
		{0, 1, "0:active/1 1:removed/0", 1},
		{29 * time.Second, 1, "0:active/1 1:removed/0", 1},
		{time.Second, 1, "0:active/1", 0},
	} {
		now = now.Add(s.after)
		if got := step(s.endpoints); got != s.want || m.Drains.Len() != s.drains {
			t.Errorf("at %d s with %d endpoints: backends = %s, drains = %d; want %s, %d", now.Unix()-1000, s.endpoints, got, m.Drains.Len(), s.want, s.drains)
		}
	}
	if !m.NextExpiry().IsZero() {
		t.Error("NextExpiry() after the last drain, want zero, got ", m.NextExpiry())
	}
	// If the service is removed, its drains must also be removed.
	step(2)
	step(1)
	in.Services = snap.Map[balancer.Name, *balancer.Service]{}
	d := c.Next(plainEnv(), in, now)
	if m.Drains.Len() != 0 || m.Holders.Len() != 0 {
		t.Error("the memory still has drains or holders of a removed service")
	}
	// The VIP must remain only until its last connections have had time to end.
	vip := addr("10.96.0.1")
	if !d.Addresses.Has(vip) || d.Addresses.At(vip) != 0 || d.Frontends.Len() != 0 {
		t.Error("the removed service's VIP was removed at once, want a drain first")
	}
	d = c.Next(plainEnv(), in, now.Add(30*time.Second))
	if m.DrainingVIPs.Len() != 0 {
		t.Error("the removed service's VIP still drains after the drain timeout")
	}
	if d.Addresses.Has(vip) {
		t.Error("the removed service's VIP is still desired after the drain timeout")
	}
}

// TestNoEndpoints compiles services without usable endpoints. Each must have one problem, unless
// its endpoints are on other hosts.
func TestNoEndpoints(t *testing.T) {
	for want, change := range map[string]func(*balancer.Service){
		"[service web: endpoints: the service has no endpoints: clients are refused]":   func(s *balancer.Service) { s.Ports = append(s.Ports, balancer.Port{Port: 81, Protocol: balancer.TCP}) },
		"[service web: endpoints: the service has no endpoints: clients get no answer]": func(s *balancer.Service) { s.NoEndpoints = balancer.DropClients },
		"none": func(s *balancer.Service) {
			s.Locality, s.Endpoints = balancer.NodeOnly, []balancer.Endpoint{{Address: addr("192.168.1.1"), Weight: 1, Node: "n2"}}
		},
	} {
		s := oneService("web", 1, 0)
		change(s)
		in := balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", s)}
		if got := problemsOf(balancer.Compile(plainEnv(), in).Problems.At("web")); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestMinUsable gives each endpoint a state by a letter: u is up, d is down, and b is a backup that
// is up. If too few endpoints are usable, only backups may serve, unless panic_threshold applies.
func TestMinUsable(t *testing.T) {
	const refused, backups = "fewer than 2 endpoints are usable (1): clients are refused", "fewer than 2 endpoints are usable (1): backups serve instead"
	for _, c := range []struct {
		name, verdicts string
		minUsable      int
		change         func(*balancer.Service)
		want, problem  string
	}{
		{"enough", "uud", 2, nil, "1:active/1 2:active/1 3:down/0", ""},
		{"too few", "udd", 2, nil, "1:insufficient/0 2:down/0 3:down/0", refused},
		{"too few, and a backup", "ub", 2, nil, "1:insufficient/0 2:active/1", backups},
		{"backups do not count", "uubb", 2, nil, "1:active/1 2:active/1 3:standby/0 4:standby/0", ""},
		{"no usable one", "db", 2, nil, "1:down/0 2:active/1", ""},
		{"a drained one does not count", "uu", 2, func(s *balancer.Service) { s.Endpoints[1].Draining = true }, "1:insufficient/0 2:draining/0", refused},
		{"a panic uses all", "udd", 2, func(s *balancer.Service) { s.Health.PanicThreshold = 50 }, "1:active/1 2:active/1 3:active/1", ""},
		{"only those of this node count", "uu", 2, func(s *balancer.Service) { s.Locality, s.Endpoints[0].Node = balancer.NodeOnly, "n1" },
			"1:insufficient/0 2:remote/0", refused},
		{"those of other zones count", "uu", 2, func(s *balancer.Service) { s.Locality, s.Endpoints[0].Node = balancer.PreferNode, "n1" },
			"1:active/1 2:remote/0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := oneService("web", 1, 0)
			s.Health, s.MinUsable = &balancer.Health{}, c.minUsable
			var in balancer.Inputs
			for i, v := range c.verdicts {
				e := balancer.Endpoint{Address: addr(fmt.Sprintf("192.168.1.%d", i+1)), Weight: 1, Backup: v == 'b'}
				s.Endpoints = append(s.Endpoints, e)
				verdict := balancer.HealthUp
				if v == 'd' {
					verdict = balancer.HealthDown
				}
				in.Health = in.Health.Set(balancer.Target{Service: "web", Addr: e.Address, Port: 8080}, verdict)
			}
			if c.change != nil {
				c.change(s)
			}
			in.Services = in.Services.Set("web", s)
			env := plainEnv()
			env.Node = "n1"
			if got := states(env, in, "10.96.0.1:80"); got != c.want {
				t.Errorf("states = %s, want %s", got, c.want)
			}
			problems := problemsOf(balancer.Compile(env, in).Problems.At("web"))
			if got := strings.Contains(problems, "min_usable: "); got != (c.problem != "") || !strings.Contains(problems, c.problem) {
				t.Errorf("problems = %q, want %q about min_usable", problems, c.problem)
			}
		})
	}
}

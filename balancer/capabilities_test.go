package balancer_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// TestUntranslatedForwards compiles services for a mode that can forward packets without
// translating them. Frontends whose endpoints could not accept untranslated packets must use nat,
// and the reason must be reported.
func TestUntranslatedForwards(t *testing.T) {
	vip, node := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("192.168.1.1")
	same := balancer.Port{Name: "http", Port: 80, Protocol: balancer.TCP, TargetPort: 80}
	other := balancer.Port{Name: "http", Port: 80, Protocol: balancer.TCP, TargetPort: 8080}
	opened := same
	opened.NodePort = 30080
	plain := balancer.Endpoint{Address: netip.MustParseAddr("192.168.1.11"), Weight: 1}
	apart := balancer.Endpoint{Address: netip.MustParseAddr("192.168.1.12"), Weight: 1, Port: 8081}
	for name, c := range map[string]struct {
		port      balancer.Port
		endpoints []balancer.Endpoint
		snat      balancer.SNAT
		want      map[balancer.Key]balancer.Forward
		problems  []string // each problem's field, and a word from its text
	}{
		"same port":  {same, []balancer.Endpoint{plain}, balancer.AutoSNAT, map[balancer.Key]balancer.Forward{{Addr: vip, Port: 80, Proto: balancer.TCP}: balancer.DRForward}, nil},
		"other port": {other, []balancer.Endpoint{plain}, balancer.AutoSNAT, map[balancer.Key]balancer.Forward{{Addr: vip, Port: 80, Proto: balancer.TCP}: balancer.NATForward}, []string{"ports[0].target_port 8080"}},
		"an endpoint's other port": {same, []balancer.Endpoint{plain, apart}, balancer.AutoSNAT, map[balancer.Key]balancer.Forward{{Addr: vip, Port: 80, Proto: balancer.TCP}: balancer.NATForward},
			[]string{"ports[0] 192.168.1.12"}},
		"node port": {opened, []balancer.Endpoint{plain}, balancer.AutoSNAT, map[balancer.Key]balancer.Forward{
			{Addr: vip, Port: 80, Proto: balancer.TCP}: balancer.DRForward, {Addr: node, Port: 30080, Proto: balancer.TCP}: balancer.NATForward,
		}, []string{"ports[0].node_port node's"}},
		"snat": {same, []balancer.Endpoint{plain}, balancer.AlwaysSNAT, map[balancer.Key]balancer.Forward{{Addr: vip, Port: 80, Proto: balancer.TCP}: balancer.DRForward}, []string{"snat client's"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &balancer.Service{
				Name: "web", VIPs: []netip.Addr{vip}, Ports: []balancer.Port{c.port}, Endpoints: c.endpoints,
				Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, Forward: balancer.DRForward, SNAT: c.snat, NoEndpoints: balancer.RejectClients, ProxyProtocol: balancer.NoProxyProtocol},
			}
			var in balancer.Inputs
			in.Services = in.Services.Set(s.Name, s)
			d := balancer.Compile(balancer.Env{Local: []netip.Addr{node}, NodePortAddresses: []netip.Addr{node}, Capabilities: balancer.Capabilities{
				Mode: "ipvs", Protocols: []balancer.Protocol{balancer.TCP}, KeepsSource: true,
				Forwards:     []balancer.Forward{balancer.NATForward, balancer.DRForward},
				Untranslated: []balancer.Forward{balancer.DRForward},
			}}, in)
			for k, f := range d.Frontends.All() {
				if f.Forward != c.want[k] || (f.Forward == balancer.DRForward) != (f.SNAT == balancer.NeverSNAT) {
					t.Errorf("%s: forward = %s, snat = %s, want forward %s", k, f.Forward, f.SNAT, c.want[k])
				}
			}
			if d.Frontends.Len() != len(c.want) {
				t.Errorf("frontends = %d, want %d", d.Frontends.Len(), len(c.want))
			}
			var problems []balancer.Problem
			if p := d.Problems.At("web"); p != nil {
				problems = *p
			}
			if !slices.EqualFunc(problems, c.problems, func(p balancer.Problem, want string) bool {
				field, word, _ := strings.Cut(want, " ")
				return p.Severity == balancer.SeverityNearest && p.Field == field && strings.Contains(p.Text, word)
			}) {
				t.Errorf("problems = %q, want %q", problems, c.problems)
			}
		})
	}
}

// TestEndpointsBeyondTheMode compiles defined and registered endpoints whose settings the mode does
// not support. Each unsupported setting must be reported.
func TestEndpointsBeyondTheMode(t *testing.T) {
	s := &balancer.Service{
		Name: "web", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []balancer.Port{{Port: 80, Protocol: balancer.TCP, TargetPort: 80}},
		Endpoints: []balancer.Endpoint{
			{Address: netip.MustParseAddr("192.168.1.11"), Weight: 1},
			{Address: netip.MustParseAddr("127.0.0.1"), Weight: 1, MaxConnections: 5},
			{Address: netip.MustParseAddr("192.168.1.12"), Weight: 1, MaxConnections: 6},
		},
		Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, Forward: balancer.NATForward, NoEndpoints: balancer.RejectClients, ProxyProtocol: balancer.NoProxyProtocol},
	}
	const bounds, loopback = "can't bound connections%s; they are not limited", "can't forward clients on other hosts to loopback addresses%s; only programs on this host can reach them"
	own := []string{"endpoints[1].max_connections: " + bounds, "endpoints[2].max_connections: " + bounds, "endpoints[1].address: " + loopback}
	for name, c := range map[string]struct {
		able  bool
		apart []string
		want  []string
	}{
		"able":  {true, []string{"127.0.0.2"}, nil},
		"alone": {false, nil, own},
		"one registered": {false, []string{"127.0.0.2"}, []string{
			own[0], own[1], "endpoints: " + strings.Replace(bounds, "%s", " (registered: 127.0.0.2)", 1),
			own[2], "endpoints: " + strings.Replace(loopback, "%s", " (registered: 127.0.0.2)", 1),
		}},
		"three registered": {false, []string{"127.0.0.2", "192.168.1.13", "127.0.0.3"}, []string{
			own[0], own[1], "endpoints: " + strings.Replace(bounds, "%s", " (registered: 127.0.0.2 and 2 more)", 1),
			own[2], "endpoints: " + strings.Replace(loopback, "%s", " (registered: 127.0.0.2 and 1 more)", 1),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			in := balancer.Inputs{}
			in.Services = in.Services.Set(s.Name, s)
			for i, a := range c.apart {
				id := balancer.EndpointID{Service: s.Name, ID: string(rune('a' + i))}
				in.Endpoints = in.Endpoints.Set(id, &balancer.Endpoint{Address: netip.MustParseAddr(a), Weight: 1, MaxConnections: 1})
			}
			env := plainEnv()
			env.Allowed = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("127.0.0.0/8")}
			env.Capabilities.MaxConnections, env.Capabilities.LoopbackVIPs = c.able, c.able
			var got []string
			for _, p := range found(balancer.Compile(env, in)) {
				got = append(got, p.Field+": "+strings.Replace(p.Text, env.Capabilities.Mode+" mode ", "", 1))
				if p.Severity != balancer.SeverityNearest {
					t.Errorf("problem %s: severity = %s, want nearest", p, p.Severity)
				}
			}
			var want []string
			for _, w := range c.want {
				want = append(want, strings.ReplaceAll(w, "%s", ""))
			}
			if !slices.Equal(got, want) {
				t.Errorf("problems\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// TestTimeoutsOfTheKernel sets timeouts in a mode that can't change the kernel's timeouts. Only
// timeouts that differ from the kernel's must be reported.
func TestTimeoutsOfTheKernel(t *testing.T) {
	for _, c := range []struct{ fields, want string }{
		{`"ports": [{"port": 80}], "idle_timeout": "0s"`, ""},
		{`"ports": [{"port": 80}], "idle_timeout": "5m"`, "idle_timeout"},
		{`"ports": [{"port": 53, "protocol": "udp"}], "idle_timeout": "0s"`, "idle_timeout"},
		{`"ports": [{"port": 80}], "connect_timeout": "1s"`, ""},
		{`"ports": [{"port": 80}], "connect_timeout": "300ms"`, "connect_timeout"},
		{`"ports": [{"port": 53, "protocol": "udp"}], "connect_timeout": "300ms"`, ""},
	} {
		s, problems := balancer.DecodeService("web", fromJSON(t, `{"vips": ["10.96.0.10"], `+c.fields+`}`), nil, nil, "")
		if s == nil {
			t.Fatal(c.fields, problems)
		}
		d := balancer.Compile(balancer.Env{Capabilities: balancer.Capabilities{
			Mode: "nftables", Protocols: []balancer.Protocol{balancer.TCP, balancer.UDP}, Forwards: []balancer.Forward{balancer.NATForward},
		}}, balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", s)})
		got := ""
		if p := d.Problems.At("web"); p != nil {
			for _, p := range *p {
				if strings.HasSuffix(p.Field, "_timeout") {
					got += p.Field
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: fields with problems = %q, want %q", c.fields, got, c.want)
		}
	}
}

// TestClientSource compiles services for modes that can keep the client's address in different
// ways. Only a service whose endpoints can't see the client's address may have a problem.
// Connections to node ports must have the node's address as their source.
func TestClientSource(t *testing.T) {
	for _, c := range []struct {
		fields        string
		keeps, client bool
		want          string
		source        balancer.SourceAddress
	}{
		{`"source": "client"`, false, true, "", balancer.ClientSource},
		{`"source": "client", "snat": "never"`, false, true, "", balancer.ClientSource},
		{`"source": "client"`, true, false, "", balancer.NodeSource},
		{`"source": "client"`, false, false, "source", balancer.NodeSource},
		{`"snat": "never"`, false, true, "snat", balancer.NodeSource},
		{`"source": "node"`, false, false, "", balancer.NodeSource},
	} {
		s, problems := balancer.DecodeService("web", fromJSON(t, `{"vips": ["10.96.0.10"], "ports": [{"port": 80, "node_port": 30080}], "endpoints": [{"address": "192.168.1.11"}], `+c.fields+`}`), nil, nil, "")
		if s == nil {
			t.Fatal(c.fields, problems)
		}
		env := plainEnv()
		env.Capabilities.KeepsSource, env.Capabilities.ClientSource = c.keeps, c.client
		env.NodePortAddresses = []netip.Addr{netip.MustParseAddr("192.168.1.1")}
		d := balancer.Compile(env, balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", s)})
		got := ""
		for _, p := range found(d) {
			got += p.Field
		}
		if got != c.want {
			t.Errorf("%s: fields with problems = %q, want %q", c.fields, got, c.want)
		}
		for k, f := range d.Frontends.All() {
			want := c.source
			if f.NodePort {
				want = balancer.NodeSource
			}
			if f.Source != want {
				t.Errorf("%s: frontend %s: source = %s, want %s", c.fields, k, f.Source, want)
			}
		}
	}
}

// TestSmallWeights compiles weights for a mode with few slots. A warning must name each endpoint
// that gets more than twice its share.
func TestSmallWeights(t *testing.T) {
	for _, c := range []struct {
		weights []int
		slots   int
		want    string
	}{
		{[]int{1, 65535}, 1024, "[service web: endpoints[0].weight: too small compared with the other weights: test mode gives an endpoint at least 1/1024 of the new connections]"},
		{[]int{1, 65535}, 0, "none"},
		{[]int{1, 2000}, 1024, "none"},
		{[]int{0, 65535}, 1024, "none"},
		{[]int{65535, 65535}, 1024, "none"},
	} {
		env := plainEnv()
		env.Capabilities.Slots, env.Capabilities.SlotsEach = c.slots, 8
		s := oneService("web", 1, len(c.weights))
		for i, w := range c.weights {
			s.Endpoints[i].Weight = w
		}
		var in balancer.Inputs
		in.Services = in.Services.Set("web", s)
		if got := problemsOf(balancer.Compile(env, in).Problems.At("web")); got != c.want {
			t.Errorf("weights %v, %d slots: problems = %s, want %s", c.weights, c.slots, got, c.want)
		}
	}
}

// TestStatelessForwards compiles services for a mode that keeps no state for untranslated
// connections. Such a mode can't count connections. The compiler must select a hash scheduler, or
// nat for services with limits, and must report both replacements.
func TestStatelessForwards(t *testing.T) {
	vip := netip.MustParseAddr("10.96.0.10")
	key := balancer.Key{Addr: vip, Port: 80, Proto: balancer.TCP}
	compile := func(edit func(*balancer.Service)) (*balancer.Frontend, []string) {
		s := &balancer.Service{
			Name: "web", VIPs: []netip.Addr{vip}, Ports: []balancer.Port{{Name: "http", Port: 80, Protocol: balancer.TCP, TargetPort: 80}},
			Endpoints: []balancer.Endpoint{{Address: netip.MustParseAddr("192.168.1.11"), Weight: 1}},
			Policy:    balancer.Policy{Scheduler: balancer.LeastConn, Forward: balancer.DRForward, SNAT: balancer.AutoSNAT, NoEndpoints: balancer.RejectClients, ProxyProtocol: balancer.NoProxyProtocol},
		}
		edit(s)
		var in balancer.Inputs
		in.Services = in.Services.Set(s.Name, s)
		d := balancer.Compile(balancer.Env{Capabilities: balancer.Capabilities{
			Mode: "nftables", Protocols: []balancer.Protocol{balancer.TCP}, KeepsSource: true, Stateless: true, AffinityPrefix: true,
			Forwards:     []balancer.Forward{balancer.NATForward, balancer.DRForward},
			Untranslated: []balancer.Forward{balancer.DRForward},
			Nearest:      map[balancer.Scheduler]balancer.Scheduler{balancer.LeastConn: balancer.Random},
		}}, in)
		var fields []string
		if p := d.Problems.At("web"); p != nil {
			for _, problem := range *p {
				fields = append(fields, problem.Field)
			}
		}
		return d.Frontends.At(key), fields
	}
	for name, c := range map[string]struct {
		edit      func(*balancer.Service)
		forward   balancer.Forward
		scheduler balancer.Scheduler
		fields    []string
	}{
		"least connections": {func(*balancer.Service) {}, balancer.DRForward, balancer.Maglev, []string{"scheduler"}},
		"nat":               {func(s *balancer.Service) { s.Forward = balancer.NATForward }, balancer.NATForward, balancer.Random, []string{"scheduler"}},
		"limits": {func(s *balancer.Service) {
			s.Scheduler, s.Limits = balancer.Maglev, &balancer.Limits{SourceRate: balancer.Rate{N: 50, Per: time.Second}, SourcePrefix: []int{32, 64}}
		}, balancer.NATForward, balancer.Maglev, []string{"limits"}},
		"affinity_prefix": {func(s *balancer.Service) { s.Scheduler, s.AffinityPrefix = balancer.Maglev, []int{24, 64} }, balancer.DRForward, balancer.Maglev, []string{"affinity_prefix"}},
	} {
		t.Run(name, func(t *testing.T) {
			f, fields := compile(c.edit)
			if f.Forward != c.forward || f.Scheduler != c.scheduler || !slices.Equal(fields, c.fields) {
				t.Errorf("forward = %s, scheduler = %s, fields with problems = %q, want %s, %s, %q", f.Forward, f.Scheduler, fields, c.forward, c.scheduler, c.fields)
			}
		})
	}
}

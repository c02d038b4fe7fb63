package health_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
)

func service(name balancer.Name, h *balancer.Health, ports ...balancer.Port) *balancer.Service {
	return &balancer.Service{Name: name, Health: h, Ports: ports}
}

func endpoint(last int) balancer.Endpoint {
	return balancer.Endpoint{Address: netip.AddrFrom4([4]byte{192, 168, 1, byte(last)}), Weight: 1}
}

// written returns the targets as a sorted list of TARGET=ADDRESS/PROTOCOL.
func written(m snap.Map[balancer.Target, health.Subject]) string {
	var words []string
	for t, s := range m.All() {
		words = append(words, fmt.Sprintf("%s=%s/%s", t, s.At, s.Proto))
	}
	slices.Sort(words)
	return fmt.Sprint(words)
}

// TestTargets computes the targets of services with various ports and types of checks. Each check
// must use a port with a protocol that this type of check can test.
func TestTargets(t *testing.T) {
	tcp := balancer.Port{Name: "tcp", Port: 80, TargetPort: 8080, Protocol: balancer.TCP}
	udp := balancer.Port{Name: "udp", Port: 443, TargetPort: 8443, Protocol: balancer.UDP}
	dns := balancer.Port{Name: "dns", Port: 53, TargetPort: 53, Protocol: balancer.UDP}
	dnsTCP := balancer.Port{Name: "dns-tcp", Port: 53, TargetPort: 53, Protocol: balancer.TCP}
	sctp := balancer.Port{Name: "sctp", Port: 99, TargetPort: 99, Protocol: balancer.SCTP}
	kind := func(h balancer.HealthType) *balancer.Health { return &balancer.Health{Type: h} }
	for _, c := range []struct {
		name   string
		health *balancer.Health
		ports  []balancer.Port
		want   string
	}{
		{"none", nil, []balancer.Port{tcp}, "[]"},
		{"tcp", kind(balancer.TCPHealth), []balancer.Port{tcp}, "[web/192.168.1.1:8080=192.168.1.1:8080/tcp]"},
		{"a port of its own", &balancer.Health{Type: balancer.HTTPHealth, Port: 9000}, []balancer.Port{tcp, sctp},
			"[web/192.168.1.1:8080=192.168.1.1:9000/tcp web/192.168.1.1:99=192.168.1.1:9000/sctp]"},
		{"another port's protocol", kind(balancer.HTTPHealth), []balancer.Port{udp, tcp},
			"[web/192.168.1.1:8080=192.168.1.1:8080/tcp web/192.168.1.1:8443=192.168.1.1:8080/tcp]"},
		{"udp", kind(balancer.UDPHealth), []balancer.Port{udp, tcp},
			"[web/192.168.1.1:8080=192.168.1.1:8443/udp web/192.168.1.1:8443=192.168.1.1:8443/udp]"},
		{"no port that it speaks", kind(balancer.TCPHealth), []balancer.Port{sctp}, "[]"},
		{"dns, once for both protocols", kind(balancer.DNSHealth), []balancer.Port{dns, dnsTCP}, "[web/192.168.1.1:53=192.168.1.1:53/udp]"},
		{"dns over tcp", kind(balancer.DNSHealth), []balancer.Port{dnsTCP}, "[web/192.168.1.1:53=192.168.1.1:53/tcp]"},
		{"exec", kind(balancer.ExecHealth), []balancer.Port{sctp}, "[web/192.168.1.1:99=192.168.1.1:99/sctp]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := service("web", c.health, c.ports...)
			s.Endpoints = []balancer.Endpoint{endpoint(1)}
			var in balancer.Inputs
			in.Services = in.Services.Set("web", s)
			if got := written(new(health.Targets).Next(&balancer.Env{}, &in)); got != c.want {
				t.Errorf("targets = %s, want %s", got, c.want)
			}
		})
	}
}

// TestEndpointChecks sets separate health ports for some endpoints, and excludes one endpoint from
// checks. The targets must follow these settings.
func TestEndpointChecks(t *testing.T) {
	s := service("web", &balancer.Health{Type: balancer.TCPHealth, Port: 9000}, balancer.Port{TargetPort: 80, Protocol: balancer.TCP})
	s.Endpoints = []balancer.Endpoint{endpoint(1), endpoint(2), endpoint(3)}
	s.Endpoints[1].HealthPort = 9001
	s.Endpoints[2].Health = balancer.NoEndpointHealth
	var in balancer.Inputs
	in.Services = in.Services.Set("web", s)
	want := "[web/192.168.1.1:80=192.168.1.1:9000/tcp web/192.168.1.2:80=192.168.1.2:9001/tcp]"
	if got := written(new(health.Targets).Next(&balancer.Env{}, &in)); got != want {
		t.Errorf("targets = %s, want %s", got, want)
	}
}

// TestProxyHeaders checks several ports of a service with proxy_protocol. A check must send the
// header that clients' connections to the port would have. In a mode that sends no headers, and at
// ports that serve no clients, a check must not send it.
func TestProxyHeaders(t *testing.T) {
	tcp := balancer.Port{Name: "tcp", Port: 80, TargetPort: 8080, Protocol: balancer.TCP}
	udp := balancer.Port{Name: "udp", Port: 53, TargetPort: 8053, Protocol: balancer.UDP}
	for _, c := range []struct {
		name    string
		version balancer.ProxyProtocol
		check   balancer.Health
		able    bool
		want    balancer.ProxyProtocol
	}{
		{"target port", balancer.ProxyProtocolV2, balancer.Health{Type: balancer.HTTPHealth}, true, "v2"},
		{"target port, v1", balancer.ProxyProtocolV1, balancer.Health{Type: balancer.TCPHealth}, true, "v1"},
		{"health.port is the target port", balancer.ProxyProtocolV2, balancer.Health{Type: balancer.TCPHealth, Port: 8080}, true, "v2"},
		{"health.port is another port", balancer.ProxyProtocolV2, balancer.Health{Type: balancer.TCPHealth, Port: 9000}, true, ""},
		{"health.port is a UDP port", balancer.ProxyProtocolV2, balancer.Health{Type: balancer.TCPHealth, Port: 8053}, true, ""},
		{"UDP check of a UDP port", balancer.ProxyProtocolV2, balancer.Health{Type: balancer.UDPHealth, Port: 8053}, true, "v2"},
		{"UDP check of a UDP port, v1", balancer.ProxyProtocolV1, balancer.Health{Type: balancer.UDPHealth, Port: 8053}, true, ""},
		{"a mode that sends none", balancer.ProxyProtocolV2, balancer.Health{Type: balancer.HTTPHealth}, false, ""},
		{"no header", balancer.NoProxyProtocol, balancer.Health{Type: balancer.HTTPHealth}, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := service("web", &c.check, tcp, udp)
			s.Endpoints, s.ProxyProtocol = []balancer.Endpoint{endpoint(1)}, c.version
			var in balancer.Inputs
			in.Services = in.Services.Set("web", s)
			var targets health.Targets
			for _, able := range []bool{!c.able, c.able} { // computes the targets for the other kind of mode first
				env := balancer.Env{Capabilities: balancer.Capabilities{ProxyProtocol: able}}
				got := targets.Next(&env, &in).At(balancer.Target{Service: "web", Addr: endpoint(1).Address, Port: 8080})
				if want := c.want; able == c.able && got.Header != want {
					t.Errorf("check's Header = %q, want %q", got.Header, want)
				}
			}
		})
	}
}

// TestEtcdExecChecks computes the targets of a service from etcd with an exec check. There must be
// a target only if the node allows exec checks from etcd.
func TestEtcdExecChecks(t *testing.T) {
	s := service("web", &balancer.Health{Type: balancer.ExecHealth}, balancer.Port{TargetPort: 80, Protocol: balancer.TCP})
	s.Endpoints = []balancer.Endpoint{endpoint(1)}
	s.Origin.Key = "/vipd/services/web"
	var in balancer.Inputs
	in.Services = in.Services.Set("web", s)
	var targets health.Targets
	for _, allowed := range []bool{false, true, false} {
		if got := targets.Next(&balancer.Env{AllowExec: allowed}, &in).Len() == 1; got != allowed {
			t.Errorf("exec checks allowed = %v: target exists = %v, want both equal", allowed, got)
		}
	}
}

// TestEtcdTLSFiles computes the targets of a service from etcd whose check uses a TLS file. There
// must be a target only if the file is in the node's folder tls_dir.
func TestEtcdTLSFiles(t *testing.T) {
	s := service("web", &balancer.Health{Type: balancer.HTTPSHealth, CAFile: "/srv/ca.pem"}, balancer.Port{TargetPort: 80, Protocol: balancer.TCP})
	s.Endpoints = []balancer.Endpoint{endpoint(1)}
	s.Origin.Key = "/vipd/services/web"
	var in balancer.Inputs
	in.Services = in.Services.Set("web", s)
	var targets health.Targets
	for _, folder := range []string{"", "/srv", "/etc/vipd/tls"} {
		if got, want := targets.Next(&balancer.Env{TLSDir: folder}, &in).Len() == 1, folder == "/srv"; got != want {
			t.Errorf("tls_dir %q: target exists = %v, want %v", folder, got, want)
		}
	}
}

// TestEtcdExecUser computes the targets of services whose exec checks run as several users. For a
// service from etcd, there may be a target only if its check runs as the user "nobody".
func TestEtcdExecUser(t *testing.T) {
	for user, ok := range map[string]bool{"": true, "nobody": true, "root": false, "docker": false} {
		for _, from := range []balancer.HealthFrom{balancer.HealthFromNode, balancer.HealthFromFleet} {
			for key, want := range map[string]bool{"/vipd/services/web": ok, "": true} {
				s := service("web", &balancer.Health{Type: balancer.ExecHealth, User: user, From: from}, balancer.Port{TargetPort: 80, Protocol: balancer.TCP})
				s.Endpoints, s.Origin.Key = []balancer.Endpoint{endpoint(1)}, key
				var in balancer.Inputs
				in.Services = in.Services.Set("web", s)
				if got := new(health.Targets).Next(&balancer.Env{AllowExec: true}, &in).Len() == 1; got != want {
					t.Errorf("user %q, health.from %s, key %q: target exists = %v, want %v", user, from, key, got, want)
				}
			}
		}
	}
}

// TestFleetTargets computes the targets of services, some of which request checks by the fleet. The
// fleet must share the checks only of services in etcd. It must also share an exec check that this
// node does not allow, because other nodes may allow it.
func TestFleetTargets(t *testing.T) {
	for _, c := range []struct {
		kind          balancer.HealthType
		from          balancer.HealthFrom
		etcd          bool
		checked, ours bool
	}{
		{balancer.TCPHealth, balancer.HealthFromFleet, true, true, true},
		{balancer.TCPHealth, balancer.HealthFromNode, true, true, false},
		{balancer.TCPHealth, balancer.HealthFromFleet, false, true, false},
		{balancer.ExecHealth, balancer.HealthFromFleet, true, true, true},
		{balancer.ExecHealth, balancer.HealthFromNode, true, false, false},
	} {
		s := service("web", &balancer.Health{Type: c.kind, From: c.from}, balancer.Port{TargetPort: 80, Protocol: balancer.TCP})
		s.Endpoints = []balancer.Endpoint{endpoint(1)}
		if c.etcd {
			s.Origin.Key = "/vipd/services/web"
		}
		var in balancer.Inputs
		in.Services = in.Services.Set("web", s)
		got, checked := new(health.Targets).Next(&balancer.Env{}, &in).Get(balancer.Target{Service: "web", Addr: endpoint(1).Address, Port: 80})
		if checked != c.checked || got.Fleet != c.ours {
			t.Errorf("%+v: target exists = %v, want %v; shared by the fleet = %v, want %v", c, checked, c.checked, got.Fleet, c.ours)
		}
	}
}

// TestIncrementalTargets applies random changes. After each change, the incremental result must
// equal a result that is computed from scratch.
func TestIncrementalTargets(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		checks := []*balancer.Health{nil, {Type: balancer.TCPHealth}, {Type: balancer.UDPHealth}, {Type: balancer.ExecHealth, Port: 7}}
		name := func() balancer.Name { return []balancer.Name{"a", "b", "c"}[r.IntN(3)] }
		var in balancer.Inputs
		var targets health.Targets
		for i := range 40 {
			switch r.IntN(4) {
			case 0:
				in.Services = in.Services.Delete(name())
			case 1:
				n := name()
				s := service(n, checks[r.IntN(len(checks))],
					balancer.Port{Name: "x", TargetPort: balancer.PortRange(80 + r.IntN(2)), Protocol: []balancer.Protocol{balancer.TCP, balancer.UDP}[r.IntN(2)]})
				s.Endpoints = []balancer.Endpoint{endpoint(r.IntN(3)), endpoint(r.IntN(3))}
				if r.IntN(2) == 0 {
					s.Origin.Key = "/k"
				}
				in.Services = in.Services.Set(n, s)
			case 2:
				e := endpoint(r.IntN(5))
				if r.IntN(3) == 0 {
					e.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
				}
				in.Endpoints = in.Endpoints.Set(balancer.EndpointID{Service: name(), ID: fmt.Sprint(r.IntN(3))}, &e)
			case 3:
				in.Endpoints = in.Endpoints.Delete(balancer.EndpointID{Service: name(), ID: fmt.Sprint(r.IntN(3))})
			}
			env := balancer.Env{AllowExec: r.IntN(4) > 0}
			if r.IntN(2) == 0 {
				env.Allowed = []netip.Prefix{netip.MustParsePrefix([]string{"127.0.0.0/8", "10.0.0.0/8"}[r.IntN(2)])}
			}
			if r.IntN(3) == 0 {
				env.Local = []netip.Addr{endpoint(1).Address}
			}
			got, want := targets.Next(&env, &in), new(health.Targets).Next(&env, &in)
			for target, c := range snap.Diff(got, want) {
				t.Fatalf("seed %d, step %d: target %s = %+v, want %+v", seed, i, target, c.Old, c.New)
			}
		}
	}
}

// TestEtcdLocalEndpoints computes the targets of a service with loopback and link-local endpoints.
// If these endpoints are from etcd, they may be checked only if addresses.allowed names their
// network. Otherwise a service from etcd could send checks to programs on this host.
func TestEtcdLocalEndpoints(t *testing.T) {
	for _, c := range []struct {
		key, allowed string
		want         string
	}{
		{"", "", "[web/127.0.0.1:80=127.0.0.1:80/tcp web/192.168.1.1:80=192.168.1.1:80/tcp]"},
		{"/vipd/services/web", "", "[web/192.168.1.1:80=192.168.1.1:80/tcp]"},
		{"/vipd/services/web", "0.0.0.0/0", "[web/192.168.1.1:80=192.168.1.1:80/tcp]"},
		{"/vipd/services/web", "127.0.0.1/32", "[web/127.0.0.1:80=127.0.0.1:80/tcp web/192.168.1.1:80=192.168.1.1:80/tcp]"},
	} {
		s := service("web", &balancer.Health{Type: balancer.TCPHealth}, balancer.Port{TargetPort: 80, Protocol: balancer.TCP})
		s.VIPs = []netip.Addr{netip.MustParseAddr("10.96.0.10")}
		s.Endpoints = []balancer.Endpoint{endpoint(1), {Address: netip.MustParseAddr("127.0.0.1"), Weight: 1}}
		s.Origin.Key = c.key
		var in balancer.Inputs
		in.Services = in.Services.Set("web", s)
		for i, a := range []string{"127.0.0.2", "169.254.169.254"} {
			in.Endpoints = in.Endpoints.Set(balancer.EndpointID{Service: "web", ID: fmt.Sprint(i)}, &balancer.Endpoint{Address: netip.MustParseAddr(a), Weight: 1})
		}
		env := balancer.Env{}
		if c.allowed != "" {
			env.Allowed = []netip.Prefix{netip.MustParsePrefix(c.allowed)}
		}
		if got := written(new(health.Targets).Next(&env, &in)); got != c.want {
			t.Errorf("key %q, allowed %q: targets = %s, want %s", c.key, c.allowed, got, c.want)
		}
	}
}

// manyChecked returns n services from etcd, each with a check and ten endpoints.
func manyChecked(n int) (in balancer.Inputs) {
	for i := range n {
		s := service(balancer.Name(fmt.Sprintf("s%05d", i)), &balancer.Health{Type: balancer.TCPHealth}, balancer.Port{TargetPort: 80, Protocol: balancer.TCP})
		s.Origin.Key = "/vipd/services/" + string(s.Name)
		for j := range 10 {
			s.Endpoints = append(s.Endpoints, balancer.Endpoint{Address: netip.AddrFrom4([4]byte{192, byte(j), byte(i >> 8), byte(i)}), Weight: 1})
		}
		in.Services = in.Services.Set(s.Name, s)
	}
	return in
}

// TestChangedAddressMovesFewTargets adds an address to the host and to another node. Only the
// targets of services with an endpoint at this address may be recomputed.
func TestChangedAddressMovesFewTargets(t *testing.T) {
	in := manyChecked(500)
	for address, want := range map[string]int{"172.17.0.1": 0, "192.3.0.7": 1} {
		a := netip.MustParseAddr(address)
		for what, env := range map[string]balancer.Env{
			"local":    {Local: []netip.Addr{a}},
			"node":     {Nodes: snap.Map[netip.Addr, balancer.NodeName]{}.Set(a, "n2")},
			"reserved": {Reserved: []balancer.Reserved{{Addr: a, Etcd: true}}},
		} {
			var targets health.Targets
			targets.Next(&balancer.Env{}, &in)
			if n := targets.Dirty(&env, &in); n != want {
				t.Errorf("%s address %s: services to recompute = %d, want %d", what, a, n, want)
			}
			for target := range snap.Diff(targets.Next(&env, &in), new(health.Targets).Next(&env, &in)) {
				t.Errorf("%s address %s: target %s differs from the result that is computed from scratch", what, a, target)
			}
		}
	}
}

// BenchmarkUnrelatedAddress computes the targets of 10,000 services after a change to an address
// that no endpoint has.
func BenchmarkUnrelatedAddress(b *testing.B) {
	in := manyChecked(10_000)
	var targets health.Targets
	var env balancer.Env
	targets.Next(&env, &in)
	for i := 0; b.Loop(); i++ {
		a := netip.AddrFrom4([4]byte{172, 17, byte(i >> 8), byte(i)})
		env.Local, env.Nodes = []netip.Addr{a}, env.Nodes.Set(a, "n2")
		targets.Next(&env, &in)
	}
}

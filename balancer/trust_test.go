package balancer_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// TestTrustVIPs claims addresses as VIPs, including addresses that this host's own traffic uses. A
// service from etcd must get such an address only if addresses.allowed contains it. A service from
// a file must always get it.
func TestTrustVIPs(t *testing.T) {
	own := netip.MustParseAddr("192.168.1.5")
	env := balancer.Env{Local: []netip.Addr{own, netip.MustParseAddr("2001:db8::5")}, Capabilities: plainEnv().Capabilities}
	refused := []string{"127.0.0.53", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1", "192.168.1.5", "2001:db8::5"}
	for _, c := range []struct {
		allowed   []string
		vips      []string
		fromFile  bool
		fromFleet bool
		saying    string
	}{
		{nil, []string{"10.96.0.10", "fd00:96::10"}, true, true, ""},
		{nil, refused, true, false, "only if the node's addresses.allowed contains"},
		{[]string{"10.96.0.0/16"}, []string{"10.96.0.10"}, true, true, ""},
		{[]string{"10.96.0.0/16"}, []string{"8.8.8.8", "10.97.0.1", "192.168.1.5", "fd00:96::10"}, false, false, "does not contain it"},
		{[]string{"127.0.0.0/8", "192.168.1.5/32"}, []string{"127.0.0.53", "192.168.1.5"}, true, true, ""},
	} {
		env.Allowed = nil
		for _, p := range c.allowed {
			env.Allowed = append(env.Allowed, netip.MustParsePrefix(p))
		}
		for _, vip := range c.vips {
			for origin, want := range map[balancer.Origin]bool{{File: "vipd.toml", Line: 3}: c.fromFile, {Key: "/vipd/services/web"}: c.fromFleet} {
				for field, s := range map[string]balancer.Service{ // the VIP is either defined, or allocated from a pool
					"vips[0]": {VIPs: []netip.Addr{netip.MustParseAddr(vip)}},
					"vips":    {Pools: []string{""}, Allocated: []netip.Addr{netip.MustParseAddr(vip)}},
				} {
					served, problems := claims(env, origin, s)
					if served != want {
						t.Errorf("allowed %v: %s from %v: served = %v, want %v", c.allowed, vip, origin, served, want)
					}
					if !want && (len(problems) != 1 || problems[0].Field != field || !strings.Contains(problems[0].Text, c.saying)) {
						t.Errorf("allowed %v: %s from %v: problems = %v, want one about the VIP that names addresses.allowed", c.allowed, vip, origin, problems)
					}
				}
			}
		}
	}
}

// TestTrustNodePorts requests node ports. A service from etcd must get a node port below 1024 only
// if addresses.allowed contains the node's address. A service from a file must always get it.
func TestTrustNodePorts(t *testing.T) {
	own, other := netip.MustParseAddr("192.168.1.5"), netip.MustParseAddr("2001:db8::5")
	file, key := balancer.Origin{File: "vipd.toml", Line: 3}, balancer.Origin{Key: "/vipd/services/web"}
	for _, c := range []struct {
		origin   balancer.Origin
		port     uint16
		allowed  string
		narrowed string
		want     []netip.Addr
		problems int
	}{
		{file, 22, "", "", []netip.Addr{own, other}, 0},
		{key, 22, "", "", nil, 1},
		{key, 1023, "10.96.0.0/16", "", nil, 1},
		{key, 1024, "", "", []netip.Addr{own, other}, 0},
		{key, 30080, "10.96.0.0/16", "", []netip.Addr{own, other}, 0},
		{key, 443, "192.168.1.0/24", "", []netip.Addr{own}, 1},
		{key, 443, "192.168.1.0/24", "192.168.0.0/16", []netip.Addr{own}, 0},
		{key, 443, "", "172.16.0.0/12", nil, 0},
	} {
		env := balancer.Env{Local: []netip.Addr{own, other}, NodePortAddresses: []netip.Addr{own, other}, Capabilities: plainEnv().Capabilities}
		if c.allowed != "" {
			env.Allowed = []netip.Prefix{netip.MustParsePrefix(c.allowed), netip.MustParsePrefix("10.96.0.10/32")}
		}
		if c.narrowed != "" {
			env.NodePorts = []netip.Prefix{netip.MustParsePrefix(c.narrowed)}
		}
		s := &balancer.Service{
			Name: "web", Origin: c.origin, VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, Forward: balancer.NATForward},
			Ports: []balancer.Port{{Port: 80, TargetPort: 80, Protocol: balancer.TCP, NodePort: c.port}},
		}
		d := balancer.Compile(env, balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", s)})
		var open []netip.Addr
		for k, f := range d.Frontends.All() {
			if f.NodePort {
				open = append(open, k.Addr)
			}
		}
		problems := found(d)
		if !slices.Equal(open, c.want) || len(problems) != c.problems || d.Frontends.Len() != 1+len(c.want) {
			t.Errorf("%+v: node port is open on %v, want %v; problems = %v, want %d; frontends = %d, want one for the VIP and for each open node port", c, open, c.want, problems, c.problems, d.Frontends.Len())
		}
		if len(problems) > 0 && (problems[0].Field != "ports[0].node_port" || !strings.Contains(problems[0].Text, "is not opened: services from etcd can use ports below 1024 only if addresses.allowed")) {
			t.Errorf("%+v: problems = %v, want one that reports the closed node port", c, problems)
		}
	}
}

// TestReservedAddresses claims addresses through which this host reaches etcd. A service from etcd
// must get such an address only if addresses.allowed has an entry for exactly this address.
// Otherwise a mistake in etcd could keep the host from receiving further changes.
func TestReservedAddresses(t *testing.T) {
	member, gateway := netip.MustParseAddr("192.168.1.10"), netip.MustParseAddr("fe80::1")
	for _, c := range []struct {
		allowed string
		want    bool
	}{{"", false}, {"0.0.0.0/0 ::/0", false}, {"192.168.1.0/24 fe80::/10", false}, {"192.168.1.10/32 fe80::1/128", true}} {
		env := plainEnv()
		env.Reserved = []balancer.Reserved{{Addr: member, Description: "an address of etcd"}, {Addr: gateway, Description: "this node's gateway"}}
		for p := range strings.FieldsSeq(c.allowed) {
			env.Allowed = append(env.Allowed, netip.MustParsePrefix(p))
		}
		for _, r := range env.Reserved {
			for field, s := range map[string]balancer.Service{"vips[0]": {VIPs: []netip.Addr{r.Addr}}, "vips": {Pools: []string{""}, Allocated: []netip.Addr{r.Addr}}} {
				served, problems := claims(env, balancer.Origin{Key: "/vipd/services/web"}, s)
				got := len(problems) == 1 && problems[0].Field == field && problems[0].Severity == balancer.SeverityError &&
					strings.Contains(problems[0].Text, "it is "+r.Description) && strings.Contains(problems[0].Text, netip.PrefixFrom(r.Addr, r.Addr.BitLen()).String()+" to addresses.allowed")
				if served != c.want || got == c.want {
					t.Errorf("%s, allowed %q: served = %v, want %v; problems = %v, want an error only if it is not served", r.Addr, c.allowed, served, c.want, problems)
				}
			}
		}
		if served, problems := claims(env, balancer.Origin{File: "vipd.toml"}, balancer.Service{VIPs: []netip.Addr{member}}); served == (len(problems) > 0) || !served && c.allowed == "" {
			t.Errorf("service from a file, allowed %q: served = %v, want true; problems = %v, want none", c.allowed, served, problems)
		}
	}
}

// TestReservedPorts claims ports, some of them on this host's own addresses. Whatever
// addresses.allowed contains, a service from etcd must not get a port that the host needs at its
// own addresses, but must get all other ports. A service from a file must get any port.
func TestReservedPorts(t *testing.T) {
	own, other := netip.MustParseAddr("192.168.1.5"), netip.MustParseAddr("2001:db8::5")
	env := balancer.Env{
		Local: []netip.Addr{own, other}, NodePortAddresses: []netip.Addr{own, other}, Capabilities: plainEnv().Capabilities,
		Allowed: []netip.Prefix{netip.MustParsePrefix("192.168.1.5/32"), netip.MustParsePrefix("10.96.0.10/32")},
		Reserved: []balancer.Reserved{
			{Port: 2379, Proto: balancer.TCP, Description: "it is one of etcd's ports"},
			{Addr: own, Port: 9100, Proto: balancer.TCP, Description: "a program of this host listens on it"},
		},
	}
	for _, c := range []struct {
		vip            string
		port, nodePort uint16
		want           string // the keys of the frontends if the service is from etcd
		field          string // that the problem names; "" means no problem
	}{
		{"10.96.0.10", 2379, 2379, "10.96.0.10:2379/tcp", "ports[0].node_port"},
		{"10.96.0.10", 9100, 9100, "10.96.0.10:9100/tcp [2001:db8::5]:9100/tcp", "ports[0].node_port"},
		{"10.96.0.10", 80, 9101, "10.96.0.10:80/tcp 192.168.1.5:9101/tcp [2001:db8::5]:9101/tcp", ""},
		{"192.168.1.5", 2379, 0, "", "ports[0].port"},
		{"192.168.1.5", 9100, 0, "", "ports[0].port"},
		{"192.168.1.5", 80, 0, "192.168.1.5:80/tcp", ""},
	} {
		for _, s := range []balancer.Service{{VIPs: []netip.Addr{netip.MustParseAddr(c.vip)}}, {Pools: []string{""}, Allocated: []netip.Addr{netip.MustParseAddr(c.vip)}}} {
			s.Name, s.Scheduler, s.Forward = "web", balancer.WeightedRoundRobin, balancer.NATForward
			s.Ports = []balancer.Port{{Port: balancer.PortRange(c.port), TargetPort: 80, Protocol: balancer.TCP, NodePort: c.nodePort}}
			s.Origin.Key = "/vipd/services/web"
			d := balancer.Compile(env, balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", &s)})
			var keys []string
			for k := range d.Frontends.All() {
				keys = append(keys, k.String())
			}
			problems := found(d)
			got := len(problems) == 1 && problems[0].Kind == balancer.PortReserved && problems[0].Field == c.field && strings.Contains(problems[0].Text, "Choose another port")
			if strings.Join(keys, " ") != c.want || got != (c.field != "") || !got && len(problems) > 0 {
				t.Errorf("%+v: frontends = %v, want %q; problems = %v, want one about the field %q", c, keys, c.want, problems, c.field)
			}
			s.Origin, s.Pools, s.VIPs, s.Allocated = balancer.Origin{File: "vipd.toml"}, nil, s.Addresses(), nil
			want := 1
			if c.nodePort != 0 {
				want += 2
			}
			if d := balancer.Compile(env, balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", &s)}); d.Frontends.Len() != want || len(found(d)) > 0 {
				t.Errorf("%+v, from a file: frontends = %d, want %d; problems = %v, want none", c, d.Frontends.Len(), want, found(d))
			}
		}
	}
}

// TestUntrusted calls Untrusted, which programs such as vipctl call before they write a service to
// etcd. The result must contain each problem that a node would report because it does not trust
// etcd.
func TestUntrusted(t *testing.T) {
	reserved := []balancer.Reserved{{Addr: netip.MustParseAddr("10.1.0.1"), Etcd: true, Description: "an address of etcd"}, {Port: 2379, Proto: balancer.TCP, Etcd: true, Description: "it is one of etcd's ports"}}
	node := func(service string, allowed ...netip.Prefix) *balancer.Node {
		return &balancer.Node{Addresses: []netip.Addr{netip.MustParseAddr(service)}, AllowedEndpoints: allowed}
	}
	nodes := snap.Map[balancer.NodeName, *balancer.Node]{}.
		Set("n2", node("10.3.0.2")).Set("n3", node("10.3.0.3", netip.MustParsePrefix("10.3.0.0/24")))
	for _, c := range []struct {
		vips, endpoint string
		nodePort       uint16
		health         *balancer.Health
		want           string // field and severity of each problem
	}{
		{"10.96.0.10", "10.2.0.1", 30080, nil, ""},
		{"10.1.0.1", "10.2.0.1", 0, nil, "vips[0]:warning"},
		{"10.3.0.2", "10.2.0.1", 0, nil, "vips[0]:warning"},
		{"10.96.0.10", "10.3.0.2", 0, nil, "endpoints[0].address:warning"},
		{"10.96.0.10", "10.3.0.3", 0, nil, ""}, // n3's configuration allows the endpoint
		{"10.96.0.10 127.0.0.53 169.254.1.1", "10.2.0.1", 0, nil, "vips[1]:warning vips[2]:warning"},
		{"10.96.0.10", "10.2.0.1", 2379, nil, "ports[0].node_port:error"},
		{"10.96.0.10", "10.2.0.1", 22, nil, "ports[0].node_port:warning"},
		{"10.96.0.10", "127.0.0.1", 0, nil, "endpoints[0].address:warning"},
		{"127.0.0.9", "127.0.0.1", 0, nil, "vips[0]:warning"}, // a node that allows the VIP also allows the endpoint
		{"10.96.0.10", "10.2.0.1", 0, &balancer.Health{Type: balancer.ExecHealth, From: balancer.HealthFromFleet}, "health.type:warning"},
		{"10.96.0.10", "10.2.0.1", 0, &balancer.Health{Type: balancer.ExecHealth, User: "root"}, "health.user:warning"},
	} {
		for _, allocated := range []bool{false, true} {
			s := oneService("web", 0, 1)
			s.VIPs, s.Endpoints[0].Address, s.Ports[0].NodePort, s.Health = nil, netip.MustParseAddr(c.endpoint), c.nodePort, c.health
			for vip := range strings.FieldsSeq(c.vips) {
				s.VIPs = append(s.VIPs, netip.MustParseAddr(vip))
			}
			want := c.want
			if allocated {
				s.Pools, s.Allocated, s.VIPs = make([]string, len(s.VIPs)), s.VIPs, nil
				want = strings.NewReplacer("vips[0]", "vips", "vips[1]", "vips", "vips[2]", "vips").Replace(want)
			}
			var got []string
			for _, p := range balancer.Untrusted(s, reserved, nodes) {
				got = append(got, p.Field+":"+string(p.Severity))
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%+v, allocated = %v: problems = %v, want %q", c, allocated, got, want)
			}
		}
	}
}

// TestMetadataEndpoints uses the addresses of clouds' metadata servers as endpoints. Such an
// endpoint must be used only if it is from a file, or if allowed_endpoints has an entry for exactly
// its address.
func TestMetadataEndpoints(t *testing.T) {
	for _, address := range []string{"fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"} {
		a := netip.MustParseAddr(address)
		for _, c := range []struct {
			key     string
			allowed []netip.Prefix
			used    bool
		}{
			{"/vipd/services/web", nil, false},
			{"/vipd/services/web", []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}, false},
			{"/vipd/services/web", []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, true},
			{"", nil, true},
		} {
			env := plainEnv()
			env.AllowedEndpoints = c.allowed
			s := oneService("web", 0, 1)
			s.Origin.Key, s.Endpoints[0].Address = c.key, a
			in := balancer.Inputs{}
			in.Services = in.Services.Set("web", s)
			if used := len(balancer.UsedEndpoints(&env, s, &in)) > 0; used != c.used {
				t.Errorf("%s, key %q, allowed %v: used = %v, want %v", a, c.key, c.allowed, used, c.used)
			}
			refused := slices.ContainsFunc(found(balancer.Compile(env, in)), func(p balancer.Problem) bool {
				return strings.Contains(p.Text, "cloud's metadata") && strings.Contains(p.Text, "allowed_endpoints = [")
			})
			if refused == c.used {
				t.Errorf("%s, key %q, allowed %v: refused = %v, want %v", a, c.key, c.allowed, refused, !c.used)
			}
		}
	}
}

// TestFilesFromEtcd compiles checks with TLS files in several folders. If the service is from etcd,
// a file outside the folder tls_dir must be refused.
func TestFilesFromEtcd(t *testing.T) {
	for _, c := range []struct {
		key, folder, path string
		refused           bool
	}{
		{"/vipd/services/web", "", "/etc/vipd/tls/ca.pem", false},
		{"/vipd/services/web", "", "/etc/vipd/tls/shop/ca.pem", false},
		{"/vipd/services/web", "", "/etc/vipd/tls/../etcd.key", true},
		{"/vipd/services/web", "", "/etc/vipd/tlsx/ca.pem", true},
		{"/vipd/services/web", "", "/etc/shadow", true},
		{"/vipd/services/web", "/srv/tls", "/srv/tls/ca.pem", false},
		{"/vipd/services/web", "/srv/tls", "/etc/vipd/tls/ca.pem", true},
		{"", "", "/etc/shadow", false},
	} {
		for _, field := range []string{"ca_file", "cert_file", "key_file"} {
			h := balancer.Health{Type: balancer.HTTPSHealth}
			*map[string]*string{"ca_file": &h.CAFile, "cert_file": &h.CertFile, "key_file": &h.KeyFile}[field] = c.path
			env := plainEnv()
			env.TLSDir = c.folder
			s := oneService("web", 0, 1)
			s.Origin.Key, s.Health = c.key, &h
			in := balancer.Inputs{}
			in.Services = in.Services.Set("web", s)
			refused := slices.ContainsFunc(found(balancer.Compile(env, in)), func(p balancer.Problem) bool {
				return p.Field == "health."+field && p.Severity == balancer.SeverityError && strings.Contains(p.Text, "health.tls_dir")
			})
			if refused != c.refused {
				t.Errorf("%s %s, key %q, tls_dir %q: refused = %v, want %v", field, c.path, c.key, c.folder, refused, c.refused)
			}
		}
	}
}

// TestTrustedEndpoints uses loopback and link-local endpoints. If such an endpoint is from etcd, it
// must be refused unless addresses.allowed names its network, or only this host can reach the VIP.
// An endpoint from a file must always be used.
func TestTrustedEndpoints(t *testing.T) {
	const wide = "0.0.0.0/0 ::/0"
	private := []string{"127.0.0.1", "127.9.9.9", "::1", "169.254.169.254", "fe80::1"}
	for _, c := range []struct {
		vip, allowed string
		nodePort     uint16
		endpoints    []string
		fromEtcd     bool // the endpoints are used if they are from etcd
	}{
		{"10.96.0.10 fd00:96::10", "", 0, []string{"192.168.1.11", "10.1.1.1", "fd00::1"}, true},
		{"10.96.0.10 fd00:96::10", "", 0, private, false},
		{"10.96.0.10 fd00:96::10", wide, 0, private, false},
		{"10.96.0.10", wide + " 127.0.0.0/8", 0, []string{"127.0.0.1", "127.9.9.9"}, true},
		{"10.96.0.10", wide + " 127.0.0.1/32", 0, []string{"127.9.9.9"}, false},
		{"fd00:96::10", wide + " ::1/128", 0, []string{"::1"}, true},
		{"fd00:96::10", wide + " 127.0.0.0/8 169.254.0.0/16", 0, []string{"::1", "fe80::1"}, false},
		{"10.96.0.10", wide + " 169.254.169.254/32", 0, []string{"169.254.169.254"}, true},
		{"fd00:96::10", wide + " fe80::/10", 0, []string{"fe80::1"}, true},
		{"127.10.9.1", "127.10.9.0/24", 0, []string{"127.0.0.1"}, true}, // the VIP is in an allowed subnet of the loopback network
		{"127.10.9.1", "127.10.9.0/24", 0, []string{"169.254.169.254"}, false},
		{"127.10.9.1", "127.10.9.0/24", 30080, []string{"127.0.0.1"}, false},
		{"127.10.9.1", "", 0, []string{"127.0.0.1"}, false},
		{"127.10.9.1 10.96.0.10", wide + " 127.10.9.0/24", 0, []string{"127.0.0.1"}, false},
	} {
		env := plainEnv()
		env.NodePortAddresses = []netip.Addr{netip.MustParseAddr("192.168.1.5")}
		for p := range strings.FieldsSeq(c.allowed) {
			env.Allowed = append(env.Allowed, netip.MustParsePrefix(p))
		}
		for _, e := range c.endpoints {
			for from, want := range map[string]bool{"a file": true, "etcd": c.fromEtcd, "etcd, apart": c.fromEtcd} {
				s := oneService("web", 0, 1)
				s.VIPs, s.Endpoints[0].Address = nil, netip.MustParseAddr(e)
				s.Ports[0].NodePort = c.nodePort
				for vip := range strings.FieldsSeq(c.vip) {
					s.VIPs = append(s.VIPs, netip.MustParseAddr(vip))
				}
				in := balancer.Inputs{}
				field := "endpoints[0].address"
				if from != "a file" {
					s.Origin.Key = "/vipd/services/web"
				}
				if from == "etcd, apart" {
					field = "endpoints"
					in.Endpoints = in.Endpoints.Set(balancer.EndpointID{Service: "web", ID: "a"}, &s.Endpoints[0])
					s.Endpoints = nil
				}
				in.Services = in.Services.Set("web", s)
				d := balancer.Compile(env, in)
				used, got := false, false
				for _, f := range d.Frontends.All() {
					used = used || len(f.Backends) > 0
				}
				for _, p := range found(d) {
					got = got || p.Field == field && p.Severity == balancer.SeverityError && strings.Contains(p.Text, "add their network to addresses.allowed")
				}
				if served := d.Frontends.Len() > 0; used != (want && served) || got == want {
					t.Errorf("endpoint %s of VIPs %s, allowed %q, node port %d, from %s: used = %v, reported = %v; want used = %v, or reported", e, c.vip, c.allowed, c.nodePort, from, used, got, want)
				}
			}
		}
	}
}

// TestTrustNodeAddresses claims an address of another node. A service from etcd must get the
// address only if addresses.allowed has an entry for exactly this address, or if this node also has
// the address. A service from a file must always get it. The same rules must apply to VIPs with
// hold = "one".
func TestTrustNodeAddresses(t *testing.T) {
	vip := netip.MustParseAddr("10.3.0.2")
	for _, c := range []struct {
		allowed  string
		fromFile bool
		hold     balancer.Hold
		local    bool
		want     bool
	}{
		{"", false, balancer.HoldEach, false, false},
		{"10.3.0.0/24", false, balancer.HoldEach, false, false},
		{"10.3.0.2/32", false, balancer.HoldEach, false, true},
		{"10.3.0.0/24", false, balancer.HoldEach, true, true},
		{"", true, balancer.HoldEach, false, true},
		{"", false, balancer.HoldOne, false, false},
		{"10.3.0.0/24", false, balancer.HoldOne, false, false},
		{"10.3.0.2/32", false, balancer.HoldOne, false, true},
	} {
		env := plainEnv()
		if c.local {
			env.Local = []netip.Addr{vip}
		}
		env.Nodes = env.Nodes.Set(vip, "n2")
		if c.allowed != "" {
			env.Allowed = []netip.Prefix{netip.MustParsePrefix(c.allowed)}
		}
		s := oneService("web", 0, 1)
		s.VIPs = []netip.Addr{vip}
		if !c.fromFile {
			s.Origin = balancer.Origin{Key: "/vipd/services/web"}
		}
		in := balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", s)}
		in.VIPs = in.VIPs.Set(vip, &balancer.VIP{Addr: vip, VIPPolicy: balancer.VIPPolicy{Hold: c.hold}, Given: []string{"hold"}})
		d := balancer.Compile(env, in)
		problems := found(d)
		got := len(problems) == 1 && problems[0].Field == "vips[0]" && strings.Contains(problems[0].Text, "an address of node n2") && strings.Contains(problems[0].Text, "add 10.3.0.2/32 to addresses.allowed")
		if served := d.Addresses.Has(vip); served != c.want || got == c.want {
			t.Errorf("%+v: served = %v, want %v; problems = %v, want an error only if not served", c, served, c.want, problems)
		}
	}
}

// TestOwnEndpoints defines endpoints at this host's own addresses, at low ports of other nodes, and
// at etcd's ports. If such an endpoint is from etcd, it may be used only if allowed_endpoints
// permits it. If it is not used, a problem must quote the line to add to the configuration.
func TestOwnEndpoints(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		port     uint16
		allowed  string
		want     string // the line to add to the configuration; "" means the endpoint is used
	}{
		{"192.168.1.5", 22, "", `allowed_endpoints = ["192.168.1.5/32"]`},
		{"192.168.1.5", 8080, "", `allowed_endpoints = ["192.168.1.5/32"]`},
		{"2001:db8::5", 8080, "", `allowed_endpoints = ["2001:db8::5/128"]`},
		{"192.168.1.5", 8080, "192.168.2.0/24", `allowed_endpoints = ["192.168.1.5/32"]`},
		{"192.168.1.5", 22, "192.168.1.0/24", ""},
		{"192.168.1.5", 2379, "192.168.1.0/24", `allowed_endpoints = ["192.168.1.5/32"]`},
		{"192.168.1.5", 2379, "192.168.1.5/32", ""},
		{"192.168.1.6", 8080, "", ""}, // another node's address
		{"192.168.1.6", 22, "", `allowed_endpoints = ["192.168.1.6/32"]`},
		{"192.168.1.6", 22, "192.168.1.0/24", ""},
		{"192.168.1.6", 2379, "192.168.1.0/24", `allowed_endpoints = ["192.168.1.6/32"]`},
		{"192.168.1.7", 2379, "", `allowed_endpoints = ["192.168.1.7/32"]`}, // a member of etcd that is not a node of vipd
		{"192.168.1.7", 22, "", ""},
		{"192.168.1.8", 2379, "", ""}, // an unknown host's address
		{"192.168.1.8", 22, "", ""},
	} {
		env := plainEnv()
		env.Local = []netip.Addr{netip.MustParseAddr("192.168.1.5"), netip.MustParseAddr("2001:db8::5")}
		env.Nodes = env.Nodes.Set(netip.MustParseAddr("192.168.1.6"), "n2")
		env.Reserved = []balancer.Reserved{
			{Port: 2379, Proto: balancer.TCP, Etcd: true, Description: "it is one of etcd's ports"}, {Port: 8080, Proto: balancer.TCP, Description: "a program on this node listens on it"},
			{Addr: netip.MustParseAddr("192.168.1.7"), Etcd: true, Description: "an address of etcd"}, {Addr: netip.MustParseAddr("192.168.1.8"), Description: "a gateway of this node"},
		}
		if c.allowed != "" {
			env.AllowedEndpoints = []netip.Prefix{netip.MustParsePrefix(c.allowed)}
		}
		for _, from := range []string{"a file", "etcd", "etcd, apart", "etcd, apart from a file"} {
			s := oneService("web", 0, 1)
			s.VIPs, s.Ports[0].TargetPort = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")}, balancer.PortRange(c.port)
			e := s.Endpoints[0]
			e.Address, e.Port = netip.MustParseAddr(c.endpoint), 0
			s.Endpoints[0] = e
			if from == "etcd" || from == "etcd, apart" {
				s.Origin = balancer.Origin{Key: "/vipd/services/web"}
			}
			var in balancer.Inputs
			if strings.HasPrefix(from, "etcd, apart") {
				s.Endpoints, in.Endpoints = nil, in.Endpoints.Set(balancer.EndpointID{Service: "web", ID: "a"}, &e)
			}
			in.Services = in.Services.Set("web", s)
			used := false
			d := balancer.Compile(env, in)
			for _, f := range d.Frontends.All() {
				used = used || len(f.Backends) > 0
			}
			got := ""
			for _, p := range found(d) {
				got += p.Text
			}
			want := c.want
			if from == "a file" {
				want = ""
			}
			if used != (want == "") || want != "" && !strings.Contains(got, want) || want == "" && got != "" {
				t.Errorf("%+v from %s: used = %v, want %v; problem = %q, want %q", c, from, used, want == "", got, want)
			}
		}
	}
}

// TestPublishedAddresses uses a node's own addresses as VIPs, with several settings. The node must
// publish all its addresses, except VIPs that another program or vipd owner moves between nodes.
func TestPublishedAddresses(t *testing.T) {
	main, second, vip := netip.MustParseAddr("10.3.0.2"), netip.MustParseAddr("10.3.0.3"), netip.MustParseAddr("10.3.0.100")
	all, own := []netip.Addr{main, second, vip}, []netip.Addr{main, second}
	hold := func(in *balancer.Inputs, addresses ...netip.Addr) {
		for _, a := range addresses {
			in.VIPs = in.VIPs.Set(a, &balancer.VIP{Addr: a, VIPPolicy: balancer.VIPPolicy{Hold: balancer.HoldOne}, Given: []string{"hold"}})
		}
	}
	for _, c := range []struct {
		what    string
		edit    func(*balancer.Env, *balancer.Inputs)
		claimed []netip.Addr
		want    []netip.Addr
	}{
		{"nothing is claimed", nil, nil, all},
		{"claimed without leave", nil, all, all},
		{"claimed with leave", func(env *balancer.Env, _ *balancer.Inputs) {
			env.Allowed = []netip.Prefix{netip.MustParsePrefix("10.3.0.0/24")}
		}, all, all},
		{"moved by another program", func(env *balancer.Env, _ *balancer.Inputs) { env.ExternalVIPs = true }, []netip.Addr{main, vip}, own},
		{"moved by vipd owner", func(_ *balancer.Env, in *balancer.Inputs) { hold(in, vip) }, []netip.Addr{vip}, own},
		{"given an owner by a writer", func(env *balancer.Env, in *balancer.Inputs) {
			env.LocalInSubnets = own
			hold(in, main, second, vip)
		}, all, own},
		{"the source has no network", func(_ *balancer.Env, in *balancer.Inputs) { hold(in, main) }, all, all},
	} {
		env, in := plainEnv(), balancer.Inputs{}
		env.Local = all
		s := oneService("web", 0, 1)
		s.VIPs, s.Origin.Key = c.claimed, "/vipd/services/web"
		in.Services = in.Services.Set("web", s)
		if c.edit != nil {
			c.edit(&env, &in)
		}
		if got := balancer.PublishedAddresses(&env, &in, []netip.Addr{main}); !slices.Equal(got, c.want) {
			t.Errorf("%s: published addresses = %v, want %v", c.what, got, c.want)
		}
	}
}

// TestCheckedByFleet compiles services that request checks by the fleet. The node must report a
// service whose endpoints the fleet does not check.
func TestCheckedByFleet(t *testing.T) {
	file, key := balancer.Origin{File: "vipd.toml", Line: 3}, balancer.Origin{Key: "/vipd/services/web"}
	for _, c := range []struct {
		origin balancer.Origin
		kind   balancer.HealthType
		exec   bool
		others bool
		want   string
	}{
		{file, balancer.TCPHealth, false, true, "a fleet shares only the checks of services in etcd (vipctl apply), so this node checks these endpoints itself"},
		{key, balancer.TCPHealth, false, false, ""},
		{key, balancer.ExecHealth, true, true, ""},
		{file, balancer.ExecHealth, true, true, "this node checks these endpoints itself"},
		{key, balancer.ExecHealth, false, true, ""},
		{key, balancer.ExecHealth, false, false, "no node in the fleet has that setting: these endpoints are not checked"},
	} {
		env := balancer.Env{Capabilities: plainEnv().Capabilities, AllowExec: c.exec, FleetExec: c.others}
		s := balancer.Service{VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Health: &balancer.Health{Type: c.kind, From: balancer.HealthFromFleet}}
		served, problems := claims(env, c.origin, s)
		if !served || len(problems) > 1 || (c.want == "") != (len(problems) == 0) || len(problems) == 1 && !strings.HasSuffix(problems[0].Text, c.want) {
			t.Errorf("%+v: served = %v, want true; problems = %v, want %q", c, served, problems, c.want)
		}
	}
}

// claims compiles a service with one VIP. It reports whether the VIP is served, and returns the
// problems.
func claims(env balancer.Env, origin balancer.Origin, s balancer.Service) (bool, []balancer.Problem) {
	s.Name, s.Origin, s.Ports = "web", origin, []balancer.Port{{Port: 80, TargetPort: 80, Protocol: balancer.TCP}}
	s.Scheduler, s.Forward = balancer.WeightedRoundRobin, balancer.NATForward
	d := balancer.Compile(env, balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", &s)})
	return d.Frontends.Has(balancer.Key{Addr: s.Addresses()[0], Port: 80, Proto: balancer.TCP}), found(d)
}

// found returns the problems of the service "web", except the problem of having no endpoints.
func found(d balancer.Desired) []balancer.Problem {
	of := d.Problems.At("web")
	if of == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(*of), func(p balancer.Problem) bool {
		return p.Kind == balancer.Idle || strings.Contains(p.Text, "has no endpoint of its address family")
	})
}

// TestAllocatedVIPs compiles a service with defined and allocated VIPs. The service must be served
// at all these VIPs, and missing allocations must be reported.
func TestAllocatedVIPs(t *testing.T) {
	a, b := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")
	for _, c := range []struct {
		pools     []string
		allocated []netip.Addr
		file      bool
		want      string
	}{
		{[]string{""}, nil, true, `"auto" requests an address from a pool, and only etcd has pools: write an address, or move the service to etcd`},
		{[]string{"", "blue"}, []netip.Addr{b}, false, `only 1 of the 2 addresses requested by "auto" are allocated: run vipctl apply`},
		{[]string{""}, []netip.Addr{b}, false, ""},
		{nil, nil, true, ""},
	} {
		s := &balancer.Service{
			Name: "web", Origin: balancer.Origin{Key: "/vipd/services/web"}, VIPs: []netip.Addr{a}, Pools: c.pools, Allocated: c.allocated,
			Ports: []balancer.Port{{Port: 80, TargetPort: 80, Protocol: balancer.TCP}}, Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, Forward: balancer.NATForward},
		}
		if c.file {
			s.Origin = balancer.Origin{File: "vipd.toml"}
		}
		d := balancer.Compile(plainEnv(), balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", s)})
		if d.Addresses.Len() != 1+len(c.allocated) || !d.Addresses.Has(a) || len(c.allocated) == 1 && !d.Addresses.Has(b) {
			t.Errorf("pools %v, allocated %v: served addresses = %d, want all defined and allocated addresses", c.pools, c.allocated, d.Addresses.Len())
		}
		got := ""
		if problems := found(d); len(problems) > 0 {
			got = problems[0].Text
		}
		if got != c.want {
			t.Errorf("pools %v, allocated %v: problem = %q, want %q", c.pools, c.allocated, got, c.want)
		}
		if len(s.Addresses()) != 1+len(c.allocated) || len(balancer.EncodeService(s)["vips"].([]any)) != 1+len(c.pools) {
			t.Errorf("Addresses() = %v, want the defined and the allocated addresses; encoded table = %v, want a VIP for each defined address and for each pool", s.Addresses(), balancer.EncodeService(s))
		}
	}
}

// TestTrustExec compiles services with exec checks. If a service is from etcd, its check must be
// refused unless health.allow_exec is set.
func TestTrustExec(t *testing.T) {
	fields := map[string]any{
		"vips": []any{"10.96.0.10"}, "ports": []any{map[string]any{"port": int64(80)}},
		"health": map[string]any{"type": "exec", "command": []any{"/bin/true"}},
	}
	for origin, want := range map[balancer.Origin]map[bool]bool{
		{File: "vipd.toml"}:         {true: false, false: false},
		{Key: "/vipd/services/web"}: {true: false, false: true},
	} {
		for allow, refused := range want {
			s, problems := balancer.DecodeService("web", fields, nil, func(string) balancer.Origin { return origin }, balancer.SeverityError)
			if s == nil {
				t.Fatal(problems)
			}
			d := balancer.Compile(balancer.Env{AllowExec: allow, Capabilities: plainEnv().Capabilities},
				balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", s)})
			got := false
			for _, p := range found(d) {
				got = got || p.Field == "health.type" && strings.Contains(p.Text, "health.allow_exec")
			}
			if got != refused {
				t.Errorf("exec check from %v, allow_exec = %v: refused = %v, want %v", origin, allow, got, refused)
			}
		}
	}
}

// TestTrustUser compiles exec checks that run as several users. If the service is from etcd, only
// the user "nobody" must be accepted.
func TestTrustUser(t *testing.T) {
	for _, from := range []balancer.HealthFrom{balancer.HealthFromNode, balancer.HealthFromFleet} {
		for origin, users := range map[balancer.Origin]map[string]bool{
			{File: "vipd.toml", Line: 3}: {"": true, "nobody": true, "root": true},
			{Key: "/vipd/services/web"}:  {"": true, "nobody": true, "root": false, "docker": false},
		} {
			for user, want := range users {
				env := balancer.Env{Capabilities: plainEnv().Capabilities, AllowExec: true, FleetExec: true}
				s := balancer.Service{VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Health: &balancer.Health{Type: balancer.ExecHealth, User: user, From: from}}
				_, problems := claims(env, origin, s)
				got := true
				for _, p := range problems {
					got = got && p.Field != "health.user"
				}
				if got != want {
					t.Errorf("service from %v, user %q, health.from %s: problems = %v, want the user accepted = %t", origin, user, from, problems, want)
				}
			}
		}
	}
}

// TestTrustAccessLog sets the access log of a service to a file. If the service is from etcd, it
// must not use the file.
func TestTrustAccessLog(t *testing.T) {
	for origin, logs := range map[balancer.Origin]map[string]bool{
		{File: "vipd.toml", Line: 3}: {"": true, "journal": true, "/var/log/web.log": true},
		{Key: "/vipd/services/web"}:  {"": true, "journal": true, "/var/log/web.log": false},
	} {
		for log, want := range logs {
			s := balancer.Service{Origin: origin, VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, AccessLog: &log}
			_, problems := claims(plainEnv(), origin, s)
			if to, ok := s.LogsTo(); ok != want || to != log && ok || ok == (lines(problems) != nil) {
				t.Errorf("service from %v, access_log %q: log = %q, allowed = %v, want %v; problems = %q", origin, log, to, ok, want, lines(problems))
			}
		}
	}
}

// TestEndpointsCheckedAtPort compiles services from etcd whose endpoints are checked at another
// port than their target port. If an endpoint would be refused at the port of its check, it must
// not be used at all.
func TestEndpointsCheckedAtPort(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		port     uint16 // port of the endpoint's check
		allowed  string
		used     bool
	}{
		{endpoint: "192.168.1.6", port: 2379},
		{endpoint: "192.168.1.6", port: 22},
		{endpoint: "192.168.1.6", port: 8081, used: true},
		{endpoint: "192.168.1.6", port: 2379, allowed: "192.168.1.0/24"},
		{endpoint: "192.168.1.6", port: 22, allowed: "192.168.1.0/24", used: true},
		{endpoint: "192.168.1.6", port: 2379, allowed: "192.168.1.6/32"},
		{endpoint: "192.168.1.6", port: 22, allowed: "192.168.1.6/32", used: true},
		{endpoint: "192.168.1.9", port: 22, used: true}, // a host that is not a node
	} {
		env := plainEnv()
		env.Nodes = env.Nodes.Set(netip.MustParseAddr("192.168.1.6"), "n2")
		env.Reserved = []balancer.Reserved{{Port: 2379, Proto: balancer.TCP, Etcd: true, Description: "it is one of etcd's ports"}}
		if c.allowed != "" {
			env.AllowedEndpoints = []netip.Prefix{netip.MustParsePrefix(c.allowed)}
		}
		s := oneService("web", 0, 1)
		s.Origin = balancer.Origin{Key: "/vipd/services/web"}
		s.VIPs, s.Ports[0].TargetPort = []netip.Addr{netip.MustParseAddr("10.96.0.10")}, 8080
		s.Endpoints[0].Address, s.Endpoints[0].Port = netip.MustParseAddr(c.endpoint), 0
		for _, ofEndpoint := range []bool{false, true} {
			s.Health, s.Endpoints[0].HealthPort = &balancer.Health{Type: balancer.TCPHealth, Port: c.port}, 0
			if ofEndpoint {
				s.Health.Port, s.Endpoints[0].HealthPort = 8081, c.port
			}
			used := false
			d := balancer.Compile(env, balancer.Inputs{Services: snap.Map[balancer.Name, *balancer.Service]{}.Set("web", s)})
			for _, f := range d.Frontends.All() {
				used = used || len(f.Backends) > 0
			}
			problems := found(d)
			named := len(problems) == 1 && strings.Contains(problems[0].Text, "health_port")
			if used != c.used || named == c.used {
				t.Errorf("%+v, port set for the endpoint = %v: used = %v, want %v; problems = %v", c, ofEndpoint, used, c.used, problems)
			}
		}
	}
}

package balancer_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// history generates a sequence of random compiler inputs. It uses few different names, addresses
// and ports, so conflicts are frequent.
type history struct {
	*rand.Rand
	ports *rand.Rand // for reserved ports and other nodes
	vips  *rand.Rand // for the settings of addresses
	names *rand.Rand // for host names and their lookups
	now   time.Time
	env   balancer.Env
	in    balancer.Inputs

	memory balancer.Memory
}

func newHistory(seed uint64) *history {
	h := &history{Rand: rand.New(rand.NewPCG(seed, 7)), ports: rand.New(rand.NewPCG(seed, 8)), vips: rand.New(rand.NewPCG(seed, 9)), names: rand.New(rand.NewPCG(seed, 10)), now: time.Unix(1_700_000_000, 0).UTC()}
	h.env = h.randomEnv()
	return h
}

func pickOne[T any](h *history, of ...T) T { return of[h.IntN(len(of))] }

func (h *history) name() balancer.Name {
	return balancer.Name(pickOne(h, "web", "dns", "db", "api", "mail", "old"))
}

func (h *history) vip() netip.Addr {
	return pickOne(h, addr("10.96.0.1"), addr("10.96.0.2"), addr("fd00:96::1"), addr("127.10.0.1"), addr("192.168.1.1"))
}

func (h *history) backendAddr() netip.Addr {
	if h.IntN(3) == 0 {
		return addr(fmt.Sprintf("fd00::%d", 1+h.IntN(4)))
	}
	if h.IntN(8) == 0 {
		return pickOne(h, addr("127.0.0.1"), addr("::1"), addr("169.254.169.254"))
	}
	if h.IntN(8) == 0 {
		return h.vip()
	}
	return addr(fmt.Sprintf("192.168.1.%d", 10+h.IntN(5)))
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func (h *history) randomEnv() balancer.Env {
	env := balancer.Env{
		Node: pickOne(h, "n1", "n2"), Zone: pickOne(h, "", "z1", "z2"),
		Capabilities: balancer.Capabilities{
			Mode: "test", Protocols: []balancer.Protocol{balancer.TCP, balancer.UDP},
			Forwards: []balancer.Forward{balancer.NATForward},
			Nearest:  map[balancer.Scheduler]balancer.Scheduler{balancer.LeastConn: balancer.Random},
		},
	}
	if h.IntN(2) == 0 {
		env.Local = []netip.Addr{addr("192.168.1.1"), addr("192.168.2.1"), addr("fd00:1::1")}
	}
	env.NodePortAddresses = env.Local[:h.IntN(len(env.Local)+1)]
	if h.IntN(4) == 0 {
		env.NodePorts = []netip.Prefix{netip.MustParsePrefix("192.168.2.0/24")}
	}
	if h.IntN(4) == 0 {
		env.Allowed = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24"), netip.MustParsePrefix("fd00:96::/64")}
		if h.IntN(2) == 0 {
			env.Allowed = append(env.Allowed, netip.MustParsePrefix("127.0.0.0/8"))
		}
	}
	env.Reserved, env.Nodes = h.reserved(), h.nodes()
	r := &history{Rand: h.ports}
	if r.IntN(2) == 0 {
		env.Local = append(env.Local, r.backendAddr())
		slices.SortFunc(env.Local, netip.Addr.Compare)
	}
	for range r.IntN(3) {
		env.AllowedEndpoints = append(env.AllowedEndpoints, netip.PrefixFrom(r.backendAddr(), 8+24*r.IntN(2)).Masked())
	}
	env.ExternalVIPs, env.Standby = h.IntN(4) == 0, h.IntN(4) == 0
	env.RealServer, env.MayOwn = r.IntN(2) == 0, r.IntN(2) == 0
	env.Capabilities.KeepsSource = h.IntN(2) == 0
	return env
}

func (h *history) nodes() (of snap.Map[netip.Addr, balancer.NodeName]) {
	r := &history{Rand: h.ports}
	for range r.IntN(3) {
		of = of.Set(pickOne(r, r.backendAddr(), r.vip()), pickOne[balancer.NodeName](r, "n2", "n3"))
	}
	return of
}

func (h *history) reserved() (all []balancer.Reserved) {
	if h.IntN(3) == 0 {
		all = append(all, balancer.Reserved{Addr: addr("10.96.0.2"), Description: "an address of etcd"})
	}
	for range h.ports.IntN(3) {
		r := balancer.Reserved{Port: uint16(80 + h.ports.IntN(3)), Proto: pickOne(&history{Rand: h.ports}, balancer.TCP, balancer.UDP), Description: "taken"}
		if h.ports.IntN(2) == 0 {
			r.Addr = addr("192.168.1.1")
		}
		all = append(all, r)
	}
	if h.ports.IntN(3) == 0 {
		all = append(all, balancer.Reserved{Port: uint16(8000 + h.ports.IntN(3)), Proto: balancer.TCP, Etcd: true, Description: "a port of etcd"},
			balancer.Reserved{Addr: (&history{Rand: h.ports}).backendAddr(), Etcd: true, Description: "an address of etcd"})
	}
	return all
}

func (h *history) endpoint() balancer.Endpoint {
	e := balancer.Endpoint{
		Address: h.backendAddr(), Weight: h.IntN(4), Node: pickOne(h, "", "n1", "n2"), Zone: pickOne(h, "", "z1", "z2"),
		Draining: h.IntN(6) == 0, Backup: h.IntN(4) == 0, MaxConnections: h.IntN(2) * 10,
	}
	if h.IntN(3) == 0 {
		e.Port = uint16(8000 + h.IntN(3))
	}
	return e
}

func (h *history) service(name balancer.Name) *balancer.Service {
	s := &balancer.Service{
		Name:     name,
		Policy:   balancer.Policy{Scheduler: pickOne(h, balancer.WeightedRoundRobin, balancer.LeastConn, balancer.Maglev), SNAT: pickOne(h, balancer.AutoSNAT, balancer.NeverSNAT), Forward: pickOne(h, balancer.NATForward, balancer.DRForward), NoEndpoints: balancer.RejectClients, DrainTimeout: time.Duration(h.IntN(3)) * 30 * time.Second, ConnectTimeout: time.Second, ProxyProtocol: balancer.NoProxyProtocol, SlowStart: time.Duration(min(1, h.IntN(4))) * 20 * time.Second},
		Affinity: pickOne(h, balancer.NoAffinity, balancer.ClientIPAffinity), AffinityTimeout: time.Hour,
		AffinityScope: pickOne(h, balancer.PortScope, balancer.ServiceScope, balancer.VIPScope),
		Locality:      pickOne(h, balancer.AnyLocality, balancer.PreferZone, balancer.PreferNode, balancer.NodeOnly),
	}
	if h.IntN(2) == 0 {
		s.Health = &balancer.Health{
			Type: balancer.TCPHealth, PanicThreshold: h.IntN(3) * 50, OnFailure: pickOne(h, "", balancer.KeepOnFailure, balancer.CutOnFailure),
		}
	}
	s.Origin = balancer.Origin{File: "services.toml", Line: 1 + h.IntN(100)}
	s.MinUsable = s.Origin.Line % 4
	if h.IntN(3) == 0 {
		s.Origin = balancer.Origin{Key: "/vipd/services/" + string(name), Created: int64(h.IntN(5))}
	}
	for range 1 + h.IntN(2) {
		s.VIPs = append(s.VIPs, h.vip())
	}
	for range h.IntN(2) {
		s.Pools = append(s.Pools, pickOne(h, "", "blue"))
		if h.IntN(2) == 0 {
			s.Allocated = append(s.Allocated, h.vip())
		}
	}
	for i := range 1 + h.IntN(2) {
		p := balancer.Port{
			Name: fmt.Sprintf("p%d", i), Port: balancer.PortRange(80 + h.IntN(3)), TargetPort: balancer.PortRange(8000 + h.IntN(3)),
			Protocol: pickOne(h, balancer.TCP, balancer.TCP, balancer.UDP, balancer.SCTP),
		}
		if h.IntN(3) == 0 {
			p.NodePort = uint16(80 + h.IntN(3))
		}
		if h.IntN(3) == 0 {
			first := uint16(79 + h.IntN(3))
			p.Port = pickOne(h, balancer.AllPorts, balancer.NewPortRange(first, first+1+uint16(h.IntN(3))))
			p.TargetPort, p.NodePort = p.Port, 0
		}
		s.Ports = append(s.Ports, p)
	}
	for range h.IntN(6) {
		s.Endpoints = append(s.Endpoints, h.endpoint())
	}
	r := &history{Rand: h.names}
	for i := range s.Endpoints {
		r.rename(&s.Endpoints[i])
	}
	switch r.IntN(6) {
	case 0:
		s.Discover = &balancer.Discover{DNS: "_db._tcp.example.org", Max: 1 + r.IntN(4)}
	case 1:
		s.Discover = &balancer.Discover{Exec: []string{"members", "db"}, Max: 1 + r.IntN(4)}
	}
	return s
}

// rename sometimes replaces the address of e with a host name.
func (h *history) rename(e *balancer.Endpoint) {
	if h.IntN(4) == 0 {
		e.Address, e.Name = netip.Addr{}, pickOne(h, "db.example.org", "localhost")
	}
}

func (h *history) answer() {
	r := &history{Rand: h.names}
	s := h.in.Services.At(r.name())
	if s == nil {
		return
	}
	for _, l := range slices.SortedFunc(maps.Keys(balancer.LookupsOf(s, &h.in)), balancer.Lookup.Compare) {
		id := balancer.LookupID{Service: s.Name, Lookup: l}
		if r.IntN(3) == 0 {
			h.in.Resolved = h.in.Resolved.Delete(id)
			continue
		}
		a := &balancer.Resolution{Failure: pickOne(r, "", "", "SERVFAIL")}
		for range r.IntN(4) {
			m := balancer.LookupRecord{Addr: r.backendAddr(), Weight: r.IntN(3), Backup: r.IntN(3) == 0, Host: pickOne(r, "", "pg1.example.org")}
			if l.Kind != balancer.HostLookup {
				m.Port = uint16(8000 + r.IntN(3))
			}
			a.Records = append(a.Records, m)
		}
		slices.SortFunc(a.Records, balancer.LookupRecord.Compare)
		if n := len(a.Records); n > 1 && r.IntN(3) == 0 {
			a.Records, a.Former = a.Records[:n-1], a.Records[n-1:]
		}
		h.in.Resolved = h.in.Resolved.Set(id, a)
	}
}

func (h *history) target() balancer.Target {
	t := balancer.Target{Service: h.name(), Addr: h.backendAddr()}
	if h.IntN(2) == 0 {
		t.Port = uint16(8000 + h.IntN(3))
	}
	return t
}

func (h *history) checked() balancer.Target {
	return balancer.Target{Service: h.name(), Addr: h.backendAddr(), Port: uint16(8000 + h.IntN(3))}
}

func (h *history) resettle() {
	r := &history{Rand: h.vips}
	switch r.IntN(12) {
	case 0:
		if v := r.vip(); h.in.VIPs.Has(v) && r.IntN(2) == 0 {
			h.in.VIPs = h.in.VIPs.Delete(v)
		} else {
			h.in.VIPs = h.in.VIPs.Set(v, &balancer.VIP{Addr: v, VIPPolicy: r.vipPolicy(), Given: []string{"hold", "withdraw"}[r.IntN(2):]})
		}
	case 1:
		if pool := pickOne[balancer.Name](r, "blue", "red"); h.in.Pools.Has(pool) {
			h.in.Pools = h.in.Pools.Delete(pool)
		} else {
			cidr := netip.PrefixFrom(r.vip(), 16+r.IntN(16)).Masked()
			h.in.Pools = h.in.Pools.Set(pool, &balancer.Pool{Name: pool, CIDRs: []netip.Prefix{cidr}, VIPPolicy: r.vipPolicy()})
		}
	}
}

func (h *history) step() {
	h.now = h.now.Add(time.Duration(h.IntN(20)) * time.Second)
	h.resettle()
	h.answer()
	switch h.IntN(13) {
	case 0, 1, 2, 3:
		name := h.name()
		h.in.Services = h.in.Services.Set(name, h.service(name))
	case 4:
		h.in.Services = h.in.Services.Delete(h.name())
	case 5, 6:
		e := h.endpoint()
		(&history{Rand: h.names}).rename(&e)
		h.in.Endpoints = h.in.Endpoints.Set(balancer.EndpointID{Service: h.name(), ID: pickOne(h, "a", "b", "c")}, &e)
	case 7:
		h.in.Endpoints = h.in.Endpoints.Delete(balancer.EndpointID{Service: h.name(), ID: pickOne(h, "a", "b", "c")})
	case 8:
		weight, draining := h.IntN(3), h.IntN(2) == 0
		o := &balancer.Override{Weight: pickOne(h, nil, &weight), Draining: pickOne(h, nil, &draining)}
		if h.IntN(3) == 0 {
			o.Until = h.now.Add(time.Minute)
		}
		h.in.Overrides = h.in.Overrides.Set(h.target(), o)
	case 9:
		for t := range h.in.Overrides.Keys() {
			h.in.Overrides = h.in.Overrides.Delete(t)
			break
		}
	case 10:
		for range 1 + h.IntN(4) {
			h.in.Health = h.in.Health.Set(h.checked(), pickOne(h, balancer.HealthUp, balancer.HealthDown, balancer.HealthUnknown))
		}
	case 11:
		t := h.checked()
		if h.in.Ejected.Has(t) {
			h.in.Ejected = h.in.Ejected.Delete(t)
		} else {
			h.in.Ejected = h.in.Ejected.Set(t, balancer.Ejection{Since: h.now, Until: h.now.Add(time.Minute), Count: 1 + h.IntN(3)})
		}
	case 12:
		switch h.ports.IntN(3) {
		case 0:
			h.env.Nodes = h.nodes()
			return
		case 1:
			h.env.Local = h.randomEnv().Local
			h.env.NodePortAddresses = h.env.Local
			h.env.Reserved = h.randomEnv().Reserved
			return
		}
		h.env = h.randomEnv()
	}
}

func (h *history) vipPolicy() balancer.VIPPolicy {
	p := balancer.DefaultVIPPolicy()
	p.Hold = pickOne(h, balancer.HoldEach, balancer.HoldEach, balancer.HoldOne)
	p.Withdraw = pickOne(h, balancer.WithdrawNever, balancer.WithdrawNoEndpoint)
	return p
}

// remember updates the memory after the compiled state has changed from before to after. It then
// copies the memory to the inputs.
func (h *history) remember(before, after balancer.Desired) {
	h.memory = h.memory.Expire(h.now).After(before, after, h.now)
	h.in = h.in.WithMemory(h.memory)
}

func sameDesired(got, want balancer.Desired) string {
	for k, c := range snap.Diff(got.Frontends, want.Frontends) {
		if !c.HadOld || !c.HasNew || !c.Old.Equal(c.New) {
			return fmt.Sprintf("frontend %s:\n got %+v\nwant %+v", k, c.Old, c.New)
		}
	}
	for a, c := range snap.Diff(got.Addresses, want.Addresses) {
		return fmt.Sprintf("address %s: got %d frontends, want %d", a, c.Old, c.New)
	}
	for a, c := range snap.Diff(got.Direct, want.Direct) {
		return fmt.Sprintf("direct VIP %s: got %q, want %q", a, c.Old, c.New)
	}
	for a, c := range snap.Diff(got.VIPStates, want.VIPStates) {
		return fmt.Sprintf("standing of %s: got %q, want %q", a, c.Old, c.New)
	}
	for k, c := range snap.Diff(got.Contested, want.Contested) {
		return fmt.Sprintf("contested %s: got %q, want %q", k, c.Old, c.New)
	}
	for n, c := range snap.Diff(got.Problems, want.Problems) {
		g, w := problemsOf(c.Old), problemsOf(c.New)
		if g != w {
			return fmt.Sprintf("problems of %s:\n got %s\nwant %s", n, g, w)
		}
	}
	return ""
}

func problemsOf(p *[]balancer.Problem) string {
	if p == nil {
		return "none"
	}
	return fmt.Sprint(*p)
}

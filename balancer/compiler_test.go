package balancer_test

import (
	"fmt"
	"net/netip"
	"testing"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/test/wait"
)

// TestNextEqualsCompile applies random sequences of changes. The incremental compiler must return
// the same result as a compilation from scratch, and must reuse the pointers of values that do not
// change.
func TestNextEqualsCompile(t *testing.T) {
	for seed := range uint64(wait.Soak(200, 1000)) {
		h := newHistory(seed)
		var c balancer.Compiler
		var before balancer.Desired
		for i := range 25 {
			for range 1 + h.IntN(3) {
				h.step()
			}
			got := c.Once(h.env, h.in)
			if d := sameDesired(got, balancer.Compile(h.env, h.in)); d != "" {
				t.Fatalf("seed %d, step %d: %s", seed, i, d)
			}
			for k, change := range snap.Diff(before.Frontends, got.Frontends) {
				if change.HadOld && change.HasNew && change.Old.Equal(change.New) {
					t.Fatalf("seed %d, step %d: unchanged frontend %s: got a new pointer, want the previous pointer", seed, i, k)
				}
			}
			h.remember(before, got)
			before = got
		}
	}
}

// TestNextSettles applies random sequences of changes. Compiling from scratch with the memory that
// Next leaves behind must return Next's result.
func TestNextSettles(t *testing.T) {
	for seed := range uint64(wait.Soak(50, 1000)) {
		h := newHistory(seed)
		var c balancer.Compiler
		for i := range 25 {
			h.step()
			got := c.Next(h.env, h.in, h.now)
			env := h.env
			env.NodePortAddresses = balancer.NodePortAddresses(env.Local, got.Addresses)
			if d := sameDesired(got, balancer.Compile(env, h.in.WithMemory(c.Memory))); d != "" {
				t.Fatalf("seed %d, step %d: %s", seed, i, d)
			}
		}
	}
}

// TestOrderDoesNotMatter builds the same inputs through two sequences of changes. The results must
// be equal.
func TestOrderDoesNotMatter(t *testing.T) {
	for seed := range uint64(wait.Soak(200, 1000)) {
		h := newHistory(seed)
		for range 60 {
			h.step()
		}
		want := balancer.Compile(h.env, h.in)

		// This compiler receives the services one by one in random order. It first compiles a
		// different definition of each service. After each service, it compiles in a different
		// environment.
		var c balancer.Compiler
		var in balancer.Inputs
		names := []balancer.Name{}
		for n := range h.in.Services.Keys() {
			names = append(names, n)
		}
		h.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, n := range names {
			in.Services = in.Services.Set(n, h.service(n))
			c.Once(h.env, in)
			in.Services = in.Services.Set(n, h.in.Services.At(n))
			c.Once(h.randomEnv(), in)
		}
		if d := sameDesired(c.Once(h.env, h.in), want); d != "" {
			t.Fatalf("seed %d: %s", seed, d)
		}
	}
}

func manyServices(n, e int) balancer.Inputs {
	var in balancer.Inputs
	for i := range n {
		s := oneService(balancer.Name(fmt.Sprintf("s%06d", i)), i, e)
		in.Services = in.Services.Set(s.Name, s)
	}
	return in
}

func oneService(name balancer.Name, i, e int) *balancer.Service {
	s := &balancer.Service{
		Name: name, VIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(96 + i>>16), byte(i >> 8), byte(i)})},
		Ports:  []balancer.Port{{Port: 80, Protocol: balancer.TCP, TargetPort: 8080}},
		Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, Forward: balancer.NATForward},
	}
	for j := range e {
		s.Endpoints = append(s.Endpoints, balancer.Endpoint{
			Address: netip.AddrFrom4([4]byte{192, 168, byte(j >> 8), byte(j)}), Weight: 1,
		})
	}
	return s
}

func plainEnv() balancer.Env {
	return balancer.Env{Capabilities: balancer.Capabilities{
		Mode: "test", Protocols: []balancer.Protocol{balancer.TCP, balancer.UDP}, Forwards: []balancer.Forward{balancer.NATForward},
		KeepsSource: true, ClientSource: true, ProxyProtocol: true, AcceptsProxy: true, Timeouts: true, MaxConnections: true, DropsClients: true, LoopbackVIPs: true,
	}}
}

// TestOneServiceOneKey changes one of many services. Only the changed service's frontend may
// change.
func TestOneServiceOneKey(t *testing.T) {
	for _, n := range []int{10, 1000, 10000} {
		in := manyServices(n, 3)
		var c balancer.Compiler
		before := c.Once(plainEnv(), in)
		changed := oneService("s000005", 5, 4)
		in.Services = in.Services.Set(changed.Name, changed)
		after := c.Once(plainEnv(), in)
		var keys []balancer.Key
		for k := range snap.Diff(before.Frontends, after.Frontends) {
			keys = append(keys, k)
		}
		if len(keys) != 1 || keys[0].String() != "10.96.0.5:80/tcp" {
			t.Errorf("%d services: changed frontends = %v, want only 10.96.0.5:80/tcp", n, keys)
		}
		if before.Addresses != after.Addresses || before.Problems != after.Problems {
			t.Errorf("%d services: addresses or problems changed, want no change", n)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			in := manyServices(n, 10)
			var c balancer.Compiler
			before := c.Once(plainEnv(), in)
			keys := 0
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s := oneService("s000005", 5, 9+i%2)
				in.Services = in.Services.Set(s.Name, s)
				after := c.Once(plainEnv(), in)
				for range snap.Diff(before.Frontends, after.Frontends) {
					keys++
				}
				before = after
			}
			b.ReportMetric(float64(keys)/float64(b.N), "keys/op")
		})
	}
}

// BenchmarkNextBetweenRanges changes one of 1,000 services that have a single port each. In
// addition, 1,000 services have port ranges, either on other addresses or on the address that all
// services share.
func BenchmarkNextBetweenRanges(b *testing.B) {
	const n = 1000
	for _, c := range []struct {
		name         string
		ranges       int
		port         func(i int) balancer.PortRange
		rangeAddress func(i int) int
		address      func(i int) int
	}{
		{"none", 0, nil, nil, func(i int) int { return i }},
		{"others", n, func(int) balancer.PortRange { return 80 }, func(i int) int { return n + i }, func(i int) int { return i }},
		{"shared", n, func(i int) balancer.PortRange { return balancer.PortRange(30000 + 10*i) }, func(int) int { return 0 }, func(int) int { return 0 }},
	} {
		b.Run(c.name, func(b *testing.B) {
			env := plainEnv()
			env.Capabilities.MaxPorts = 65535
			var in balancer.Inputs
			exact := func(i, endpoints int) {
				s := oneService(balancer.Name(fmt.Sprintf("s%06d", i)), c.address(i), endpoints)
				if c.port != nil {
					s.Ports[0].Port = c.port(i)
				}
				in.Services = in.Services.Set(s.Name, s)
			}
			for i := range n {
				exact(i, 10)
			}
			for i := range c.ranges {
				s := oneService(balancer.Name(fmt.Sprintf("r%06d", i)), c.rangeAddress(i), 10)
				first := uint16(20000 + 20*i)
				s.Ports[0].Port = balancer.NewPortRange(first, first+9)
				s.Ports[0].TargetPort = s.Ports[0].Port
				in.Services = in.Services.Set(s.Name, s)
			}
			var comp balancer.Compiler
			if got := comp.Once(env, in).Frontends.Len(); got != n+c.ranges {
				b.Fatalf("frontends = %d, want %d", got, n+c.ranges)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				exact(5, 9+i%2)
				comp.Once(env, in)
			}
		})
	}
}

func TestNodePortAddresses(t *testing.T) {
	a, b, c := addr("192.168.1.1"), addr("192.168.1.100"), addr("fd00::1")
	for _, x := range []struct{ own, vips, want []netip.Addr }{
		{own: []netip.Addr{a, b, c}, want: []netip.Addr{a, b, c}},
		{own: []netip.Addr{a, b, c}, vips: []netip.Addr{b}, want: []netip.Addr{a, c}},
		{own: []netip.Addr{a, b, c}, vips: []netip.Addr{c}, want: []netip.Addr{a, b, c}}, // c is the only address of its family
		{own: []netip.Addr{a, b}, vips: []netip.Addr{a, b}, want: []netip.Addr{a, b}},
		{},
	} {
		var vips snap.Map[netip.Addr, int]
		for _, v := range x.vips {
			vips = vips.Set(v, 1)
		}
		if got := balancer.NodePortAddresses(x.own, vips); fmt.Sprint(got) != fmt.Sprint(x.want) {
			t.Errorf("own %v, VIPs %v: node port addresses = %v, want %v", x.own, x.vips, got, x.want)
		}
	}
}

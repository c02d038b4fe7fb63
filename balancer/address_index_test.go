package balancer_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// TestChangedAddressConcernsFewServices changes an address of the host, an address of another node,
// and a reserved address. After each change, only the services that use the changed address may be
// recompiled.
func TestChangedAddressConcernsFewServices(t *testing.T) {
	in := manyServices(1000, 3)
	for name, s := range in.Services.All() {
		s.Origin.Key = "/vipd/services/" + string(name)
	}
	one, unrelated := netip.MustParseAddr("10.7.7.7"), netip.MustParseAddr("172.17.0.1")
	s := oneService("one", 2000, 1)
	s.Endpoints[0].Address, s.Origin.Key = one, "/vipd/services/one"
	in.Services = in.Services.Set("one", s)
	vip := in.Services.At("s000007").VIPs[0]
	for _, c := range []struct {
		what    string
		address netip.Addr
		want    int
	}{{"unrelated", unrelated, 0}, {"of an endpoint", one, 1}, {"of a VIP", vip, 1}} {
		for what, change := range map[string]func(*balancer.Env){
			"local": func(env *balancer.Env) {
				env.Local, env.LocalInSubnets = []netip.Addr{c.address}, []netip.Addr{c.address}
			},
			"node":     func(env *balancer.Env) { env.Nodes = env.Nodes.Set(c.address, "n2") },
			"reserved": func(env *balancer.Env) { env.Reserved = []balancer.Reserved{{Addr: c.address, Etcd: true}} },
		} {
			var compiler balancer.Compiler
			env := plainEnv()
			compiler.Once(env, in)
			change(&env)
			if n := compiler.Concerned(env, in); n != c.want {
				t.Errorf("%s, %s: services to recompile = %d, want %d", c.what, what, n, c.want)
			}
			if d := sameDesired(compiler.Once(env, in), balancer.Compile(env, in)); d != "" {
				t.Errorf("%s, %s: result of the incremental compiler differs from the result of a new compiler: %s", c.what, what, d)
			}
		}
	}
}

// TestUpdateNodeAddresses changes the addresses of random nodes. The updated map must equal a map
// built from scratch.
func TestUpdateNodeAddresses(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var before, after snap.Map[balancer.NodeName, *balancer.Node]
	var of snap.Map[netip.Addr, balancer.NodeName]
	for i := range 2000 {
		name := balancer.NodeName(fmt.Sprintf("n%d", r.IntN(4)))
		n := &balancer.Node{}
		for range r.IntN(3) {
			n.Addresses = append(n.Addresses, netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(5))}))
		}
		if after = after.Set(name, n); r.IntN(3) == 0 {
			after = after.Delete(name)
		}
		of, before = balancer.UpdateNodeAddresses(of, before, after, "n0"), after
		for a, c := range snap.Diff(of, balancer.NodeAddresses(after, "n0")) {
			t.Fatalf("step %d: node with the address %s = %q, want %q", i, a, c.Old, c.New)
		}
		for a, name := range of.All() { // if several nodes have the address, the first is used
			for other, n := range after.All() {
				if other < name && other != "n0" && slices.Contains(n.Addresses, a) {
					t.Fatalf("step %d: node with the address %s = %s, want %s, which sorts first", i, a, name, other)
				}
			}
		}
	}
}

// BenchmarkUnrelatedAddress measures how long the compiler needs after a change to an address that
// none of 10,000 services uses. Each service has ten endpoints.
func BenchmarkUnrelatedAddress(b *testing.B) {
	in := manyServices(10_000, 10)
	for name, s := range in.Services.All() {
		s.Origin.Key = "/vipd/services/" + string(name)
	}
	env := plainEnv()
	var c balancer.Compiler
	c.Once(env, in)
	for i := 0; b.Loop(); i++ {
		a := netip.AddrFrom4([4]byte{172, 17, byte(i >> 8), byte(i)})
		env.Local, env.Nodes = []netip.Addr{a}, env.Nodes.Set(a, "n2")
		c.Once(env, in)
	}
}

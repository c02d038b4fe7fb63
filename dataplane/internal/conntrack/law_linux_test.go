package conntrack

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/test/wait"
)

// TestFiltersFindWhatTheySay applies random filters to random tables. Each must visit every
// matching flow exactly once, and no other flows.
func TestFiltersFindWhatTheySay(t *testing.T) {
	tab := scratch(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range wait.Soak(2, 20) {
		tab.flush(t)
		flows := randomFlows(random, 100+random.IntN(300))
		tab.create(t, whole, flows...)
		tab.want(t, Filter{}, flows)
		for range 40 {
			f := randomFilter(random, flows)
			var want []Flow
			for _, flow := range flows {
				if meant(f, flow) {
					want = append(want, flow)
				}
			}
			tab.want(t, f, want)
		}
	}
}

func randomFilter(random *rand.Rand, flows []Flow) Filter {
	of := flows[random.IntN(len(flows))]
	f := Filter{Proto: of.Proto, Dst: of.Orig.Dst.Addr(), Port: of.Orig.Dst.Port()}
	switch random.IntN(4) { // some filters match no flow
	case 0:
		f.Dst = netip.Addr{}
	case 1:
		f.Dst = f.Dst.Next().Next()
	}
	f.Family = []inet.Family{"", inet.IPv4, inet.IPv6}[random.IntN(3)]
	if random.IntN(3) == 0 {
		f.Proto = ""
	}
	if random.IntN(3) == 0 {
		f.Port = 0
	}
	return f
}

func meant(f Filter, flow Flow) bool {
	to := flow.Orig.Dst
	switch {
	case f.Family == inet.IPv4 && !to.Addr().Is4(), f.Family == inet.IPv6 && !to.Addr().Is6(),
		f.Proto != "" && f.Proto != flow.Proto, f.Dst.IsValid() && f.Dst != to.Addr(), f.Port != 0 && f.Port != to.Port():
		return false
	}
	return true
}

// TestCutsWhatIsStaleAndNothingElse cuts flows in random tables, with random keys and random
// functions that select stale flows. Only the stale flows of these keys must be deleted.
func TestCutsWhatIsStaleAndNothingElse(t *testing.T) {
	tab := scratch(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	for round := range wait.Soak(10, 100) {
		tab.flush(t)
		flows := randomFlows(random, 100+random.IntN(500))
		tab.create(t, whole, flows...)
		keys := map[balancer.Key]bool{}
		for range []int{0, 1, 3, 8, 30}[random.IntN(5)] {
			keys[flows[random.IntN(len(flows))].Frontend()] = random.IntN(8) > 0
		}
		gone := flows[random.IntN(len(flows))].Backend().Addr()
		var stale func(*Flow) bool
		if random.IntN(3) > 0 {
			stale = func(f *Flow) bool { return f.Backend().Addr() != gone }
		}
		var left []Flow
		for _, f := range flows {
			if !keys[f.Frontend()] || stale != nil && !stale(&f) {
				left = append(left, f)
			}
		}
		cut := tab.Cut
		if round%2 == 0 { // use the same kind of search as for a large table
			cut = func(ctx context.Context, keys map[balancer.Key]bool, stale func(*Flow) bool) (int, error) {
				return tab.cut(ctx, searches(keys, math.MaxUint64), keys, stale)
			}
		}
		n, err := cut(t.Context(), keys, stale)
		if want := len(flows) - len(left); err != nil || n != want {
			t.Fatalf("round %d: deleted flows = %d, %v; want %d", round, n, err, want)
		}
		tab.want(t, Filter{}, left)
	}
}

// TestDeletesOneFlowOnly deletes a flow next to flows that differ from it only in one address,
// port, protocol or zone. The other flows must stay.
func TestDeletesOneFlowOnly(t *testing.T) {
	tab := scratch(t)
	ways := map[string]struct {
		in     where
		first  Flow
		others []Flow
	}{}
	for family, a := range map[string][4]string{
		"ipv4": {"10.1.0.2:%d", "10.96.0.1:80", "10.96.0.2:80", "10.2.0.1:80"},
		"ipv6": {"[fd01::2]:%d", "[fd96::1]:80", "[fd96::2]:80", "[fd02::1]:80"},
	} {
		client := func(port int) string { return fmt.Sprintf(a[0], port) }
		for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP} {
			one := flow(proto, client(1000), a[1], a[3])
			other := balancer.UDP
			if proto == other {
				other = balancer.SCTP
			}
			// A flow from the next client address through the same backend port would have the same
			// reply tuple, so this flow uses another backend port.
			neighbour := flow(proto, client(1000), a[2], a[3])
			neighbour.Reply.Src = netip.AddrPortFrom(neighbour.Reply.Src.Addr(), 81)
			ways[family+" "+string(proto)] = struct {
				in     where
				first  Flow
				others []Flow
			}{whole, one, []Flow{flow(proto, client(1001), a[1], a[3]), neighbour, flow(other, client(1000), a[1], a[3])}}
		}
		for in, name := range map[where]string{whole: "whole", original: "original", reply: "reply"} {
			one := flow(balancer.TCP, client(1000), a[1], a[3])
			one.zone = 7
			ways[family+" in a zone of the "+name] = struct {
				in     where
				first  Flow
				others []Flow
			}{in, one, []Flow{flow(balancer.TCP, client(1001), a[1], a[3])}}
		}
	}
	for name, w := range ways {
		t.Run(name, func(t *testing.T) {
			tab.flush(t)
			tab.create(t, w.in, w.first)
			one := tab.all(t, Filter{})
			if len(one) != 1 {
				t.Fatalf("flows = %v, want one", identities(one))
			}
			tab.create(t, whole, w.others...)
			if err := tab.delete(&one[0]); err != nil {
				t.Fatal(err)
			}
			tab.want(t, Filter{}, w.others)
			if err := tab.delete(&one[0]); err != nil {
				t.Errorf("second deletion of the flow: error = %v, want nil", err)
			}
		})
	}
}

// TestZonesAreKeptApart creates flows with the same addresses in two zones. If one is deleted, the
// other must stay.
func TestZonesAreKeptApart(t *testing.T) {
	tab := scratch(t)
	var flows []Flow
	for zone := range uint16(4) {
		f := flow(balancer.UDP, "10.1.0.2:1000", "10.96.0.1:53", "10.2.0.1:53")
		f.zone = zone
		flows = append(flows, f)
	}
	tab.create(t, whole, flows...)
	tab.want(t, Filter{}, flows)
	if err := tab.delete(&flows[2]); err != nil {
		t.Fatal(err)
	}
	tab.want(t, Filter{}, slices.Delete(slices.Clone(flows), 2, 3))
	n, err := tab.Cut(t.Context(), map[balancer.Key]bool{flows[0].Frontend(): true}, nil)
	if n != 3 || err != nil {
		t.Errorf("deleted flows = %d, %v; want 3, from all zones", n, err)
	}
}

// TestSuccessorIsNotDeleted lists a flow, replaces it with another flow with the same addresses,
// and deletes the listed flow. The new flow must stay.
func TestSuccessorIsNotDeleted(t *testing.T) {
	tab := scratch(t)
	f := flow(balancer.UDP, "10.1.0.2:1000", "10.96.0.1:53", "10.2.0.1:53")
	tab.create(t, whole, f)
	old := tab.all(t, Filter{})[0]
	if err := tab.delete(&old); err != nil {
		t.Fatal(err)
	}
	// The kernel derives a flow's id from its address in memory, so other flows must first occupy
	// the deleted flow's memory.
	others := randomFlows(rand.New(rand.NewPCG(4, 4)), 200)
	tab.create(t, whole, others...)
	tab.create(t, whole, f)
	n, err := tab.deleteAll([]Flow{old})
	if n != 0 || err != nil {
		t.Errorf("deleted flows = %d, %v; want 0", n, err)
	}
	tab.want(t, Filter{}, append(others, f))
}

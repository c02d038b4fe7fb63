package nftables

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
)

func at(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8080)
}

func randomBackends(r *rand.Rand, limit, heaviest int) []balancer.Backend {
	all := make([]balancer.Backend, 1+r.IntN(limit))
	for i := range all {
		all[i] = balancer.Backend{Addr: at(i), State: balancer.Active, Weight: 1 + r.IntN(heaviest)}
	}
	return all
}

func count(slots []netip.AddrPort) map[netip.AddrPort]int {
	all := map[netip.AddrPort]int{}
	for _, a := range slots {
		all[a]++
	}
	return all
}

// TestWeighted distributes slots to random backends. Each backend must have a slot, and the number
// of slots must stay within its limit. If a few slots are enough, shares must match weights
// exactly. Otherwise, the share of each backend with more than 20 slots must match approximately.
func TestWeighted(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		heaviest := []int{1, 3, 20, 1000, 65535}[i%5]
		backends := randomBackends(r, 40, heaviest)
		slots := weighted(backends)
		sum, common := 0, 0
		for _, b := range backends {
			sum, common = sum+b.Weight, gcd(common, b.Weight)
		}
		if len(slots) > max(maxSlots, slotsEach*len(backends))+len(backends) {
			t.Fatalf("number of slots of weighted(%v) = %d, want fewer", backends, len(slots))
		}
		counts := count(slots)
		for _, b := range backends {
			n := counts[b.Addr]
			share, want := float64(n)/float64(len(slots)), float64(b.Weight)/float64(sum)
			exact := sum/common <= maxSlots
			if n < 1 || exact && n*sum != b.Weight*len(slots) || n > 1 && (share > 1.1*want || share < 0.9*want) && n > 20 {
				t.Errorf("%v: slots of %s = %d of %d, want its share for the weight %d of %d", backends, b.Addr, n, len(slots), b.Weight, sum)
			}
		}
	}
}

// TestArrange arranges wanted slots. The result must contain exactly these slots. As many current
// slots as possible must keep their positions.
func TestArrange(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		list := func() (all []netip.AddrPort) {
			for range r.IntN(30) {
				all = append(all, at(r.IntN(8)))
			}
			return all
		}
		there, want := list(), list()
		for i := range there {
			if r.IntN(10) == 0 {
				there[i] = netip.AddrPort{} // as if another program had deleted the element
			}
		}
		got := arrange(there, want, false)
		if fmt.Sprint(count(got)) != fmt.Sprint(count(want)) {
			t.Fatalf("arrange(%[2]v, %[1]v) = %[3]v, want the same slots in another order", want, there, got)
		}
		kept, could := 0, 0
		needed := count(want)
		for i := range min(len(there), len(want)) {
			if there[i] == got[i] {
				kept++
			}
			if needed[there[i]] > 0 {
				needed[there[i]]--
				could++
			}
		}
		if kept < could {
			t.Errorf("arrange(%[2]v, %[1]v) = %[3]v: unchanged slots = %[4]d, want %[5]d", want, there, got, kept, could)
		}
		if fixed := arrange(there, want, true); !slices.Equal(fixed, want) {
			t.Errorf("arrange(%v) with fixed = true returned %v, want the same order", want, fixed)
		}
	}
}

// TestHashedMoves removes a backend. Only this backend's buckets may change.
func TestHashedMoves(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		backends := randomBackends(r, 30, 3)
		before := hashed(backends)
		gone := r.IntN(len(backends))
		if len(backends) == 1 {
			continue
		}
		after := hashed(slices.Delete(slices.Clone(backends), gone, gone+1))
		for i := range before {
			if before[i] != after[i] && before[i] != backends[gone].Addr {
				t.Fatalf("bucket %d moved from %s to %s, want it unchanged because only %s was removed", i, before[i], after[i], backends[gone].Addr)
			}
		}
	}
}

// TestIDs computes the IDs of random backends. Unless there is a collision, a backend's ID must not
// depend on the other backends. IDs must be unique, and never 0.
func TestIDs(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 50 {
		backends := randomBackends(r, 200, 1)
		ids := idsOf(&balancer.Frontend{Backends: backends}, backends)
		seen := map[uint32]bool{}
		for a, id := range ids {
			if id == 0 || seen[id] {
				t.Fatalf("ID of %s = %d, want a unique ID other than 0", a, id)
			}
			seen[id] = true
		}
		for a, id := range idsOf(&balancer.Frontend{Backends: backends[:1]}, backends[:1]) {
			if ids[a] != id {
				t.Errorf("ID of %s = %d without the other backends, want %d, as with them", a, id, ids[a])
			}
		}
	}
}

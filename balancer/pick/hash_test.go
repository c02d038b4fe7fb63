package pick

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/balancer/internal/hash"
	"vipd/test/wait"
)

func consistentSchedulers() []balancer.Scheduler {
	return []balancer.Scheduler{balancer.SourceHash, balancer.Maglev}
}

// TestHashEqualsFNV hashes addresses. Each hash must equal the standard library's FNV hash after
// Mix. Equivalent addresses must have the same hash.
func TestHashEqualsFNV(t *testing.T) {
	a := netip.MustParseAddrPort("[fd00::1:2]:8080")
	h := fnv.New64a()
	b := a.Addr().As16()
	h.Write(b[:])
	if got, want := hashAddr(a.Addr()), hash.Mix(h.Sum64()); got != want {
		t.Errorf("hash = %x for %s, want %x", got, a.Addr(), want)
	}
	h.Write(binary.BigEndian.AppendUint16(nil, a.Port()))
	if got, want := hashAddrPort(a), hash.Mix(h.Sum64()); got != want {
		t.Errorf("hash = %x for %s, want %x", got, a, want)
	}
	if hashAddrPort(netip.MustParseAddrPort("[fe80::1%a]:80")) == hashAddrPort(netip.MustParseAddrPort("[fe80::1%b]:80")) {
		t.Error("hashes of the same address with different zones are equal, want different hashes")
	}
	for _, same := range [][2]string{{"192.0.2.1", "::ffff:192.0.2.1"}, {"fe80::1%eth0", "fe80::1%3"}} {
		if got, want := hashAddr(netip.MustParseAddr(same[1])), hashAddr(netip.MustParseAddr(same[0])); got != want {
			t.Errorf("hash = %x for %s, want %x as for the equivalent %s", got, same[1], want, same[0])
		}
	}
}

// TestHashChoicesNeverChange picks backends for a few flows, and compares them with recorded picks.
// A different pick would move clients while a fleet is upgraded.
func TestHashChoicesNeverChange(t *testing.T) {
	backends := active(1, 2, 3, 4, 5, 1, 100, 7)
	for s, want := range map[balancer.Scheduler][]int{
		balancer.SourceHash:      {3, 2, 5, 4, 4, 2, 4, 2, 7, 7, 1, 1},
		balancer.DestinationHash: {3, 1, 0, 3, 4, 4, 3, 1, 3, 3, 1, 3},
		balancer.Maglev:          {4, 5, 2, 2, 7, 7, 3, 3, 7, 2, 3, 3},
	} {
		p := New(s, backends, nil)
		for n := range want {
			// Both the client and the VIP vary, because "dh" chooses the same backend for all
			// clients of a VIP.
			f := Flow{Client: clientOf(n * 7919), VIP: clientOf(n * 104729)}
			if got := p.Pick(f, func(i int) bool { return i == 6 }); got != want[n] {
				t.Errorf("%s: pick for flow %d = %d, want %d", s, n, got, want[n])
			}
		}
	}
}

// TestLogarithm computes the logarithms of many numbers. Except for rounding, the results must
// equal math.Log.
func TestLogarithm(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	for range 100000 {
		u := float64(1+r.Uint64N(1<<53)) / (1 << 53) * math.Pow(2, -float64(r.IntN(20)))
		if r.IntN(2) == 0 {
			u = 1 - u/8
		}
		if got, want := logarithm(u), math.Log(u); math.Abs(got-want) > 1e-15*math.Abs(want) {
			t.Fatalf("logarithm = %v for %v, want %v", got, u, want)
		}
	}
	if got := logarithm(1); got != 0 {
		t.Errorf("logarithm(1) = %v, want 0", got)
	}
}

// TestHashKeepsClients varies the ports of clients. Each client must keep its backend. With the
// scheduler "dh", all clients of a VIP must share a backend.
func TestHashKeepsClients(t *testing.T) {
	backends := active(3, 1, 4, 1, 5, 9, 2, 6)
	for _, s := range append(consistentSchedulers(), balancer.DestinationHash) {
		p, first := New(s, backends, nil), make(map[netip.Addr]int)
		for n := range 1000 {
			f := flowOf(n % 250)
			f.Client = netip.AddrPortFrom(f.Client.Addr(), uint16(n))
			i := p.Pick(f, nil)
			if want, ok := first[f.Client.Addr()]; ok && i != want {
				t.Fatalf("%s: backend = %d for %s, want %d as before", s, i, f.Client, want)
			}
			first[f.Client.Addr()] = i
			if s == balancer.DestinationHash && i != first[clientOf(0).Addr()] {
				t.Fatalf("%s: backend = %d for %s, want %d as for other clients of the VIP", s, i, f.Client, first[clientOf(0).Addr()])
			}
		}
	}
	seen := make(map[int]bool)
	p := New(balancer.DestinationHash, backends, nil)
	for n := range 500 {
		seen[p.Pick(Flow{VIP: clientOf(n)}, nil)] = true
	}
	if len(seen) != len(backends) {
		t.Errorf("dh: backends that serve 500 VIPs = %d, want all %d", len(seen), len(backends))
	}
}

// TestHashSpreadsByWeight picks backends for IPv4 clients with neighbouring addresses, and for IPv6
// clients of different networks. The shares of the backends must follow their weights.
func TestHashSpreadsByWeight(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 12))
	for range wait.Soak(4, 12) {
		weights := someWeights(r, 2+r.IntN(40))
		for _, s := range consistentSchedulers() {
			p := New(s, active(weights...), nil)
			v4, v6, shares := make([]int, len(weights)), make([]int, len(weights)), weights
			if m, ok := p.(*maglev); ok {
				// The shares of slots in the table follow the weights only approximately, which
				// TestMaglevSlotsFollowWeights checks. So the wanted shares are the backends'
				// shares of the slots.
				shares = make([]int, len(weights))
				for _, i := range maglevSlots(m.members) {
					shares[i]++
				}
			}
			for n := range 20000 {
				v4[p.Pick(flowOf(n), nil)]++
				a := netip.MustParseAddr("2001:db8::1").As16()
				binary.BigEndian.PutUint32(a[4:], uint32(n))
				v6[p.Pick(Flow{Client: netip.AddrPortFrom(netip.AddrFrom16(a), 1)}, nil)]++
			}
			chiSquare(t, string(s)+" over IPv4", v4, shares)
			chiSquare(t, string(s)+" over IPv6", v6, shares)
		}
	}
}

// TestHashMovesFewClients removes or skips a backend. If it is skipped, only its own clients may
// move. If it is removed, the scheduler "mh" may also move a few percent of the other clients, and
// "sh" must not. With "sh", the clients must move in proportion to the weights of their new
// backends.
func TestHashMovesFewClients(t *testing.T) {
	clients := wait.Soak(5000, 20000)
	r := rand.New(rand.NewPCG(13, 13))
	for _, n := range []int{2, 3, 10, 100, 400} {
		for _, weights := range [][]int{slices.Repeat([]int{1}, n), someWeights(r, n)} {
			gone := r.IntN(n)
			for _, s := range consistentSchedulers() {
				before := active(weights...)
				p, q := New(s, before, nil), New(s, without(before, gone), nil)
				moved, stay, got := 0, 0, make([]int, n)
				for c := range clients {
					i, j := p.Pick(flowOf(c), nil), q.Pick(flowOf(c), nil)
					if j >= gone {
						j++
					}
					k := p.Pick(flowOf(c), func(i int) bool { return i == gone })
					switch {
					case i == gone:
						got[j]++
					case k != i:
						t.Fatalf("%s: backend = %d for client %d while backend %d is skipped, want %d as before", s, k, c, gone, i)
					default:
						stay++
						if i != j {
							moved++
						}
					}
					if s == balancer.SourceHash && k != j {
						t.Fatalf("%s: backend = %d for client %d while backend %d is skipped, want %d, as if it were removed", s, k, c, gone, j)
					}
				}
				percent := 100 * float64(moved) / float64(stay)
				t.Logf("%s: of %d backends one goes: %.2f %% of the clients of others move", s, n, percent)
				if s == balancer.SourceHash && moved > 0 || percent > 5 {
					t.Errorf("%s: after the removal of one of %d backends, moved clients of the others = %.2f %%, want at most 5, and none with sh", s, n, percent)
				}
				if s == balancer.SourceHash {
					left := append([]int(nil), weights...)
					left[gone] = 0
					chiSquare(t, "where they go", got, left)
				}
			}
		}
	}
}

// TestMoreWeightLosesNoClient increases the weight of a backend. Clients may move only to this
// backend.
func TestMoreWeightLosesNoClient(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 14))
	for range 20 {
		weights := someWeights(r, 10)
		more := append([]int(nil), weights...)
		more[4] += 1 + r.IntN(50)
		p, q := New(balancer.SourceHash, active(weights...), nil), New(balancer.SourceHash, active(more...), nil)
		for c := range 5000 {
			if i, j := p.Pick(flowOf(c), nil), q.Pick(flowOf(c), nil); i != j && j != 4 {
				t.Fatalf("client %d moved from backend %d to %d when the weight of backend 4 grew, want it to stay", c, i, j)
			}
		}
	}
}

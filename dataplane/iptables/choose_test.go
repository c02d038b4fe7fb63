package iptables

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/bpf"

	"vipd/balancer"
)

func frontend(scheduler balancer.Scheduler, weights ...int) *balancer.Frontend {
	f := &balancer.Frontend{
		Key:     balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Proto: balancer.TCP},
		Service: "web", Policy: balancer.Policy{Scheduler: scheduler},
	}
	for i, w := range weights {
		b := balancer.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080), State: balancer.Active, Weight: w}
		if w == 0 {
			b.State = balancer.ZeroWeight
		}
		f.Backends = append(f.Backends, b)
	}
	return f
}

func equal(n int) []int {
	w := make([]int, n)
	for i := range w {
		w[i] = 1
	}
	return w
}

func random(n int) []int {
	r := rand.New(rand.NewPCG(uint64(n), 3))
	w := make([]int, n)
	for i := range w {
		w[i] = 1 + r.IntN(100)
	}
	return w
}

// chainsOf renders the frontend f. It checks that each chain comes before the chains that jump to
// it.
func chainsOf(t *testing.T, f *balancer.Frontend) map[string][]string {
	t.Helper()
	made := render(f, nil, "")
	chains := map[string][]string{}
	for _, c := range append(made.below, made.front) {
		for _, rule := range c.Rules {
			if _, target, ok := strings.Cut(rule, "-g "); ok && chains[target] == nil {
				t.Fatalf("chain %s jumps to %s, want jumps only to earlier chains", c.Name, target)
			}
		}
		if len(c.Name) > 28 || chains[c.Name] != nil {
			t.Fatalf("chain name %q is too long or a duplicate", c.Name)
		}
		chains[c.Name] = c.Rules
	}
	return chains
}

// chance follows all paths through the chains that start at chain, and adds each backend's
// probability to got. It returns the length of the longest path.
func chance(chains map[string][]string, chain string, p float64, got map[string]float64) int {
	deepest := 0
	for _, rule := range chains[chain] {
		take := p
		switch {
		case strings.Contains(rule, "--probability "):
			var f float64
			fmt.Sscan(after(rule, "--probability "), &f)
			take *= f
		case strings.Contains(rule, "--mode nth --every "):
			var n float64
			fmt.Sscan(after(rule, "--every "), &n)
			take /= n
		}
		if target := after(rule, "-g "); target != "" {
			deepest = max(deepest, chance(chains, target, take, got))
		} else if to := after(rule, "--to-destination "); to != "" {
			got[to] += take
		} else {
			continue // the last rule contains only the note
		}
		p -= take
	}
	return deepest + 1
}

func after(rule, word string) string {
	_, rest, _ := strings.Cut(rule, word)
	rest, _, _ = strings.Cut(rest, " ")
	return rest
}

// TestShares adds up the probabilities of all paths to each backend. The sum must be the backend's
// share by weight.
func TestShares(t *testing.T) {
	for _, scheduler := range []balancer.Scheduler{balancer.WeightedRoundRobin, balancer.Random, balancer.RoundRobin} {
		for _, n := range []int{1, 2, 3, 7, 10, 11, 100, 1000, 5000} {
			for name, weights := range map[string][]int{"equal": equal(n), "random": random(n)} {
				f := frontend(scheduler, weights...)
				got := map[string]float64{}
				depth := chance(chainsOf(t, f), frontChain(f.Key), 1, got)
				if depth > maxLevels+1 {
					t.Errorf("%s with %d targets: depth of chains = %d, want at most maxLevels", scheduler, n, depth)
				}
				sum := 0
				for _, w := range weights {
					sum += w
				}
				for i, b := range f.Backends {
					want := float64(weights[i]) / float64(sum)
					if scheduler == balancer.RoundRobin {
						want = 1 / float64(n)
					}
					if p := got[b.Addr.String()]; math.Abs(p-want) > 1e-6*want {
						t.Fatalf("%s with %d %s weights: share of %s = %g, want %g", scheduler, n, name, b.Addr, p, want)
					}
				}
			}
		}
	}
}

// TestTurns simulates the rules' counters and opens as many connections as there are backends,
// several times. Each time, each backend must be selected once.
func TestTurns(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 10, 11, 13, 41, 97, 100, 997, 1000} {
		f := frontend(balancer.RoundRobin, equal(n)...)
		chains, counters := chainsOf(t, f), map[string]int{}
		for round := range 3 {
			got := map[string]int{}
			for range n {
				got[selectInTurn(chains, counters, frontChain(f.Key))]++
			}
			if len(got) != n {
				t.Fatalf("round %d with %d backends: selected backends = %d, want all", round, n, len(got))
			}
		}
	}
}

func selectInTurn(chains map[string][]string, counters map[string]int, chain string) string {
	for i, rule := range chains[chain] {
		if every := after(rule, "--every "); every != "" {
			var n int
			fmt.Sscan(every, &n)
			id := fmt.Sprint(chain, i)
			counters[id]++
			if (counters[id]-1)%n != 0 {
				continue
			}
		}
		if target := after(rule, "-g "); target != "" {
			return selectInTurn(chains, counters, target)
		}
		return after(rule, "--to-destination ")
	}
	return ""
}

// machines maps each BPF program that rules contain to a virtual machine that runs the program.
type machines map[string]*bpf.VM

// bySourceOf sends a packet through the chains, starting at chain. It returns the destination in
// the rule that translates the packet.
func (m machines) bySourceOf(t *testing.T, chains map[string][]string, chain string, packet []byte) string {
	for _, rule := range chains[chain] {
		if _, code, ok := strings.Cut(rule, `--bytecode "`); ok {
			code, _, _ = strings.Cut(code, `"`)
			if !m.runs(t, code, packet) {
				continue
			}
		}
		if target := after(rule, "-g "); target != "" {
			return m.bySourceOf(t, chains, target, packet)
		}
		return after(rule, "--to-destination ")
	}
	return ""
}

func (m machines) runs(t *testing.T, code string, packet []byte) bool {
	t.Helper()
	if m[code] == nil {
		var program []bpf.Instruction
		for _, text := range strings.Split(code, ",")[1:] {
			var i bpf.RawInstruction
			if _, err := fmt.Sscan(text, &i.Op, &i.Jt, &i.Jf, &i.K); err != nil {
				t.Fatal(err)
			}
			program = append(program, i.Disassemble())
		}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		m[code] = vm
	}
	n, err := m[code].Run(packet)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// packetFrom returns the header of a packet from client number i. Consecutive clients have
// consecutive addresses, as in a real network.
func packetFrom(is4 bool, i int) []byte {
	if is4 {
		return append(make([]byte, 12, 20), 10, byte(i>>16), byte(i>>8), byte(i), 0, 0, 0, 0)
	}
	p := make([]byte, 40)
	p[8], p[21], p[22], p[23] = 0xfd, byte(i>>16), byte(i>>8), byte(i)
	return p
}

// TestBySource distributes clients by a hash, and then removes a backend. Each backend must get a
// share of clients proportional to its weight. At most a quarter of the remaining backends' clients
// may move.
func TestBySource(t *testing.T) {
	const clients = 1500
	met := machines{}
	for _, is4 := range []bool{true, false} {
		for _, n := range []int{1, 2, 5, 11, 25, 97} { // below and above the numbers at which other schedulers change the shape of their chains
			weights := equal(n)
			weights[0] = 3
			f := frontend(balancer.Maglev, weights...)
			if !is4 {
				f.Addr = netip.MustParseAddr("fd00:96::10")
			}
			before := chainsOf(t, f)
			g := *f
			gone := f.Backends[n/2].Addr.String()
			g.Backends = append(f.Backends[:n/2:n/2], f.Backends[n/2+1:]...)
			after := chainsOf(t, &g)
			got, moved := map[string]float64{}, 0
			for i := range clients {
				packet := packetFrom(is4, i)
				to := met.bySourceOf(t, before, frontChain(f.Key), packet)
				got[to]++
				if then := met.bySourceOf(t, after, frontChain(f.Key), packet); to != gone && then != to {
					moved++
				}
			}
			chi := 0.0
			for i, b := range f.Backends {
				want := clients * float64(weights[i]) / float64(n+2)
				chi += (got[b.Addr.String()] - want) * (got[b.Addr.String()] - want) / want
			}
			// The limit is six standard deviations above the mean of a chi-square distribution with
			// n-1 degrees of freedom.
			if limit := float64(n-1) + 6*math.Sqrt(2*float64(n-1)) + 1; chi > limit {
				t.Errorf("IPv4 %v, %d backends: chi-square %.1f, want at most %.1f: %v", is4, n, chi, limit, got)
			}
			if n > 1 {
				t.Logf("IPv4 %v, %d backends: %.1f %% of the others' clients move with one", is4, n, 100*float64(moved)/clients)
				if moved > clients/4 {
					t.Errorf("IPv4 %v, %d backends: clients that left the remaining backends = %d of %d, want at most a quarter", is4, n, moved, clients)
				}
			}
		}
	}
}

// TestOneChangeIsSmall changes one of a thousand backends. Only chains on the paths to this backend
// may change.
func TestOneChangeIsSmall(t *testing.T) {
	weights := equal(1000)
	before := chainsOf(t, frontend(balancer.Random, weights...))
	weights[500] = 0
	changed := 0
	for name, rules := range chainsOf(t, frontend(balancer.Random, weights...)) {
		if strings.Join(rules, "\n") != strings.Join(before[name], "\n") {
			changed++
		}
	}
	if changed > maxLevels+1 {
		t.Errorf("changed chains = %d of %d, want at most %d", changed, len(before), maxLevels+1)
	}
}

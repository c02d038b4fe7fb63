package iptables

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/test/wait"
)

// keySource generates random keys of one kind.
type keySource struct {
	name string
	make func(r *rand.Rand) balancer.Key
}

func keySources() []keySource {
	proto := func(r *rand.Rand) balancer.Protocol { return protocols()[r.IntN(3)] }
	v4 := func(n uint32) netip.Addr { return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n))) }
	port := func(r *rand.Rand) uint16 { return uint16(1 + r.IntN(65535)) }
	return []keySource{
		{"random in a /12", func(r *rand.Rand) balancer.Key {
			return balancer.Key{Addr: v4(10<<24 | 96<<16 | r.Uint32N(1<<20)), Port: 80, Proto: balancer.TCP}
		}},
		{"sequential", func(r *rand.Rand) balancer.Key {
			return balancer.Key{Addr: v4(10<<24 | r.Uint32N(3000)), Port: balancer.PortRange(80 + r.IntN(3)), Proto: proto(r)}
		}},
		{"many ports of two addresses", func(r *rand.Rand) balancer.Key {
			return balancer.Key{Addr: v4(10<<24 | r.Uint32N(2)), Port: balancer.PortRange(port(r)), Proto: proto(r)}
		}},
		{"ranges of two addresses", func(r *rand.Rand) balancer.Key {
			return withRange(r, 2, balancer.Key{Addr: v4(10<<24 | r.Uint32N(2)), Port: balancer.PortRange(1 + r.IntN(2000)), Proto: proto(r)})
		}},
		{"ranges of many addresses", func(r *rand.Rand) balancer.Key {
			return withRange(r, 2, balancer.Key{Addr: v4(10<<24 | r.Uint32N(3000)), Port: balancer.PortRange(80 + r.IntN(3)), Proto: proto(r)})
		}},
		{"nested", func(r *rand.Rand) balancer.Key { // each key has a single bit set, so keys share prefixes of all lengths
			return balancer.Key{Addr: v4(1 << r.IntN(32)), Port: balancer.PortRange(1) << r.IntN(16), Proto: proto(r)}
		}},
		{"nested IPv6", func(r *rand.Rand) balancer.Key {
			var a [16]byte
			bit := r.IntN(128)
			a[bit/8] = 1 << (bit % 8)
			return balancer.Key{Addr: netip.AddrFrom16(a), Port: balancer.PortRange(1) << r.IntN(16), Proto: proto(r)}
		}},
		{"random IPv6", func(r *rand.Rand) balancer.Key {
			a := [16]byte{0: 0xfd}
			binary.BigEndian.PutUint64(a[8:], r.Uint64())
			return balancer.Key{Addr: netip.AddrFrom16(a), Port: 443, Proto: balancer.TCP}
		}},
	}
}

// withRange returns k or, with probability 1/n, k with a port range instead of its port.
func withRange(r *rand.Rand, n int, k balancer.Key) balancer.Key {
	switch r.IntN(n * 4) {
	case 0:
		k.Port = balancer.AllPorts
	case 1, 2, 3:
		k.Port = balancer.NewPortRange(k.Port.First(), k.Port.First()+uint16(1+r.IntN(100)))
	}
	return k
}

// find sends a packet to k through the chains. It returns the name of the frontend's chain that the
// packet reaches.
func find(chains map[string][]string, k balancer.Key) (string, int, error) {
	chain, steps := rootChain, 0
	var back [][]string // the rules after each jump that was followed
next:
	for {
		rules, ok := chains[chain]
		if !ok {
			return "", 0, fmt.Errorf("chain %s does not exist", chain)
		}
		steps++
		for {
			for i, rule := range rules {
				target := targetOf(rule)
				match, _, goes := strings.Cut(rule, "-g ")
				if match, _, jumps := strings.Cut(match, "-j "); target == "" || !matches(match, k) {
					continue
				} else if jumps {
					back = append(back, rules[i+1:])
				}
				if chain = target; goes && isFront(chain) {
					return chain, steps, nil
				}
				continue next
			}
			if len(back) == 0 {
				return "", steps, nil
			}
			rules, back = back[len(back)-1], back[:len(back)-1]
		}
	}
}

func matches(match string, k balancer.Key) bool {
	words := strings.Fields(match)
	for i := 0; i+1 < len(words); i += 2 {
		switch value := words[i+1]; words[i] {
		case "-d":
			if !netip.MustParsePrefix(value).Contains(k.Addr) {
				return false
			}
		case "-p", "-m":
			if value != string(k.Proto) {
				return false
			}
		case "--dport":
			low, high, ranged := strings.Cut(value, ":")
			if !ranged {
				high = low
			}
			var l, h int
			fmt.Sscan(low, &l)
			fmt.Sscan(high, &h)
			if int(k.Port) < l || int(k.Port) > h {
				return false
			}
		default:
			panic(match)
		}
	}
	return true
}

// TestTree changes trees at random, and replays the recorded changes on a set of chains. In these
// chains, a packet to a frontend must reach it, and a packet to any other destination must not
// reach any frontend.
func TestTree(t *testing.T) {
	for _, source := range keySources() {
		t.Run(source.name, func(t *testing.T) {
			for seed := range uint64(wait.Soak(1, 3)) {
				r := rand.New(rand.NewPCG(seed, 1))
				first := source.make(r)
				tr := newTree(first.Addr.Is4())
				kernel := map[string][]string{rootChain: nil}
				keys := map[balancer.Key]bool{}
				for range 25 {
					if r.IntN(20) == 0 {
						tr = tr.build(slices.Collect(maps.Keys(keys)))
						clear(kernel)
						tr.root.each(func(n *treeNode) { kernel[n.name] = n.chain().Rules })
					}
					tr = randomChange(t, r, source, tr, kernel, keys)
					checkTree(t, r, source, tr, kernel, keys)
				}
			}
		})
	}
}

func randomChange(t *testing.T, r *rand.Rand, source keySource, tr tree, kernel map[string][]string, keys map[balancer.Key]bool) tree {
	var c changes
	for range 1 + r.IntN(40) {
		if k := source.make(r); r.IntN(3) > 0 {
			tr, keys[k] = tr.with(k, &c), true
		} else {
			for k = range keys {
				break
			}
			tr = tr.without(k, &c)
			delete(keys, k)
		}
	}
	for _, chain := range c.chains() {
		for _, rule := range chain.Rules {
			target := targetOf(rule)
			if _, there := kernel[target]; strings.HasPrefix(target, nodePrefix) && !there {
				t.Fatalf("chain %s jumps to %s, want jumps only to existing chains", chain.Name, target)
			}
		}
		kernel[chain.Name] = chain.Rules
	}
	for _, name := range c.removed() {
		for chain, rules := range kernel {
			for _, rule := range rules {
				if targetOf(rule) == name {
					t.Fatalf("chain %s is deleted while %s still jumps to it", name, chain)
				}
			}
		}
		delete(kernel, name)
	}
	return tr
}

func checkTree(t *testing.T, r *rand.Rand, source keySource, tr tree, kernel map[string][]string, keys map[balancer.Key]bool) {
	t.Helper()
	want := map[string][]string{}
	tr.root.each(func(n *treeNode) {
		if len(n.branches) > 4*fullNode { // only a tree that would otherwise be too deep may exceed fullNode
			t.Fatalf("branches of %s = %d, want fewer", n.name, len(n.branches))
		}
		want[n.name] = n.chain().Rules
	})
	if !maps.EqualFunc(kernel, want, slices.Equal) {
		t.Fatalf("replayed changes =\n%v\nwant the tree\n%v", kernel, want)
	}
	var ranges []balancer.Key
	for k := range keys {
		if k.Port.IsRange() {
			ranges = append(ranges, k)
		}
	}
	slices.SortFunc(ranges, compareRanges)
	check := func(k balancer.Key) {
		t.Helper()
		k.Port = balancer.PortRange(int(k.Port.First()) + r.IntN(k.Port.Len()))
		want := ""
		if i := slices.IndexFunc(ranges, func(r balancer.Key) bool { return r.Covers(k) }); keys[k] {
			want = frontChain(k)
		} else if i >= 0 {
			want = frontChain(ranges[i])
		}
		if got, _, err := find(kernel, k); got != want || err != nil {
			t.Fatalf("find(%s) = %q, %v; want %q", k, got, err, want)
		}
	}
	sample := 100 // each step checks a new sample of keys
	for k := range keys {
		if check(k); sample == 0 {
			break
		}
		sample--
	}
	for range 20 {
		check(source.make(r))
	}
}

// TestTreeIsShallow builds trees of many keys. Their depth must stay within maxTreeDepth, because
// the kernel refuses chains that are nested too deeply.
func TestTreeIsShallow(t *testing.T) {
	for _, source := range keySources() {
		for _, n := range []int{10, 1000, 30_000} {
			r := rand.New(rand.NewPCG(uint64(n), 2))
			all := map[balancer.Key]bool{}
			for range n {
				all[source.make(r)] = true
			}
			keys := slices.Collect(maps.Keys(all))
			tr := newTree(keys[0].Addr.Is4()).build(keys)
			if d := tr.root.depth(); d > maxTreeDepth {
				t.Errorf("%s, %d keys: depth = %d, want at most %d", source.name, len(keys), d, maxTreeDepth)
			}
			rules := 0
			tr.root.each(func(n *treeNode) { rules += len(n.branches) })
			if rules > 2*len(keys)+20 {
				t.Errorf("%s: number of rules = %d for %d keys, want fewer", source.name, rules, len(keys))
			}
		}
	}
}

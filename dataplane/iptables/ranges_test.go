package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
)

// TestRangeNode builds trees with ranges on an address. Only the address's node may have rules for
// ranges. These rules must follow the rules for single ports, with the narrowest range first.
func TestRangeNode(t *testing.T) {
	keyOf := func(text string) balancer.Key {
		k, err := balancer.ParseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	toRange, toWhole := " -g "+frontChain(keyOf("10.96.0.1:8000-8009")), " -g "+frontChain(keyOf("10.96.0.1:all"))
	for _, c := range []struct {
		name string
		keys []string
		want []string
	}{
		{"range", []string{"10.96.0.1:8000-8009"}, []string{"-p tcp -m tcp --dport 8000:8009" + toRange}},
		{"single port", []string{"10.96.0.1:8000-8009", "10.96.0.1:8001"}, []string{
			"-p tcp -m tcp --dport 8001 -g VIPD-10.96.0.1:8001/t", "-p tcp -m tcp --dport 8000:8009" + toRange,
		}},
		{"range in a whole address", []string{"10.96.0.1:all", "10.96.0.1:8000-8009"}, []string{
			"-p tcp -m tcp --dport 8000:8009" + toRange, "-p tcp" + toWhole,
		}},
	} {
		var keys []balancer.Key
		for _, text := range c.keys {
			keys = append(keys, keyOf(text))
		}
		keys = append(keys, keyOf("10.96.0.2:8001"))
		root := newTree(true).build(keys).root
		node := root.branches[0].node
		if got := node.chain().Rules; !slices.Equal(got, c.want) {
			t.Errorf("%s: rules for the address = %q, want %q", c.name, got, c.want)
		}
		want := []string{"-d 10.96.0.1/32 -g " + node.name, "-d 10.96.0.2/32 -p tcp -m tcp --dport 8001 -g VIPD-10.96.0.2:8001/t", keeper(true)}
		if got := root.chain().Rules; !slices.Equal(got, want) {
			t.Errorf("%s: rules of the root = %q, want %q", c.name, got, want)
		}
	}
}

// TestRulesBetweenRanges counts the rules that a first packet to one of 1,000 single ports passes,
// next to 1,000 ranges on other addresses. With single ports instead of ranges, the number must be
// the same.
func TestRulesBetweenRanges(t *testing.T) {
	most := func(others balancer.PortRange) (n int) {
		var single, all []balancer.Key
		for i := range 1000 {
			k := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i / 250), byte(1 + i%250)}), Port: 80, Proto: balancer.TCP}
			single = append(single, k)
			k.Addr, k.Port = netip.AddrFrom4([4]byte{10, 97, byte(i / 250), byte(1 + i%250)}), others
			all = append(all, single[i], k)
		}
		chains := map[string][]string{}
		newTree(true).build(all).root.each(func(n *treeNode) { chains[n.name] = n.chain().Rules })
		for _, k := range single {
			n = max(n, rulesOf(t, chains, k))
		}
		return n
	}
	if got, want := most(balancer.NewPortRange(8000, 8999)), most(8000); got > want {
		t.Errorf("rules before the frontend's chain with ranges = %d, want at most %d, as with single ports", got, want)
	}
}

// TestMovedRangeEndpointRemoved removes the first endpoint of a range with another target_port.
// Only its own chain and the chain that chooses among endpoints may change, for any number of
// endpoints.
func TestMovedRangeEndpointRemoved(t *testing.T) {
	for _, scheduler := range []balancer.Scheduler{balancer.WeightedRoundRobin, balancer.RoundRobin, balancer.Random} {
		for _, n := range []int{2, 5, 10} {
			f := frontend(scheduler, equal(n)...)
			f.Key.Port = balancer.NewPortRange(8000, 8009)
			before := chainsOf(t, f)
			f.Backends = f.Backends[1:]
			after := chainsOf(t, f)
			var changed []string
			for name, rules := range before {
				if !slices.Equal(rules, after[name]) {
					changed = append(changed, name)
				}
			}
			if len(changed) != 2 || len(after) != len(before)-1 || after[frontChain(f.Key)] == nil {
				t.Errorf("%s, %d endpoints: changed chains = %q, want the frontend's and one of an endpoint", scheduler, n, changed)
			}
		}
	}
}

// TestMovedChainEqualHashes renders a moved range with two endpoints whose hashes are equal. Each
// must have its own chain.
func TestMovedChainEqualHashes(t *testing.T) {
	f := frontend(balancer.Random, 1, 1)
	f.Key.Port = balancer.NewPortRange(8000, 8009)
	seen := map[string]netip.Addr{}
	for a := netip.MustParseAddr("10.0.0.0"); ; a = a.Next() {
		name := movedChain(f.Key, a, nil)
		if first, ok := seen[name]; ok {
			f.Backends[0].Addr, f.Backends[1].Addr = netip.AddrPortFrom(first, 9000), netip.AddrPortFrom(a, 9000)
			break
		}
		seen[name] = a
	}
	if got := chainsOf(t, f); len(got) != 3 { // it refuses duplicates
		t.Errorf("chains for endpoints %v = %d, want one for each and the frontend's", f.Backends, len(got))
	}
}

// rulesOf returns the number of rules that a packet to k passes before it reaches its frontend's
// chain.
func rulesOf(t *testing.T, chains map[string][]string, k balancer.Key) (n int) {
	t.Helper()
	chain := rootChain
next:
	for !isFront(chain) {
		for _, rule := range chains[chain] {
			n++
			if match, target := rule[:len(rule)-len(targetOf(rule))-3], targetOf(rule); target != "" && matches(match, k) {
				chain = target
				continue next
			}
		}
		t.Fatal(fmt.Errorf("no rule of %s matches %s", chain, k))
	}
	return n
}

package iptables

import (
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
)

// TestFindTree reads trees of chains from intact and from damaged rules. An intact tree must be
// accepted. A tree with a missing, wrong or duplicate rule must be refused.
func TestFindTree(t *testing.T) {
	for _, source := range keySources() {
		for _, n := range []int{1, 40, 3000} {
			r := rand.New(rand.NewPCG(uint64(n), 7))
			all := map[balancer.Key]*front{}
			for range n {
				k := source.make(r)
				all[k] = &front{chain: frontChain(k)}
			}
			is4 := source.make(r).Addr.Is4()
			family := inet.IPv6
			if is4 {
				family = inet.IPv4
			}
			y := newFamily(family, nil, nil, "", slog.New(slog.DiscardHandler))
			y.fronts, y.exact = all, true
			wanted := newTree(is4).build(y.keys(nil))
			s := &survey{y: y, rules: map[string][]string{}}
			wanted.root.each(func(n *treeNode) { s.rules[n.name] = n.chain().Rules })
			read := func() string {
				y.tree, y.unsure, y.chains = newTree(is4), true, map[string]chainState{}
				for name, rules := range s.rules {
					y.chains[name] = y.saved(name, rules)
				}
				return s.findTree()
			}
			if wrong := read(); wrong != "" || y.unsure || !reflect.DeepEqual(y.tree.root, wanted.root) {
				t.Fatalf("%s, %d keys: error = %q, unsure = %v; want \"\", false", source.name, n, wrong, y.unsure)
			}
			for name, rules := range s.rules {
				at := r.IntN(len(rules))
				other := strings.Replace(rules[at], "-g VIPD-", "-g VIPD-N-", 1)
				for what, changed := range map[string][]string{
					"without": slices.Delete(slices.Clone(rules), at, at+1),
					"twice":   slices.Insert(slices.Clone(rules), at, rules[at]),
					"astray":  slices.Replace(slices.Clone(rules), at, at+1, other+" "),
				} {
					s.rules[name] = changed
					if wrong := read(); wrong == "" || !y.unsure {
						t.Fatalf("%s, %d keys: tree with the chain %s %s %q was accepted, want it refused", source.name, n, name, what, rules[at])
					}
				}
				s.rules[name] = rules
				break // only one chain for each kind of damage
			}
		}
	}
}

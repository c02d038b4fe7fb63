package netfilter

import "strings"

// Unreferenced are the chains whose names begin with prefix to which nothing leads from the kernel's chains, as
// table/CHAIN, with a 6 in front of IPv6's, in the order of their declaration.
func (r *Ruleset) Unreferenced(prefix string) []string {
	var lost []string
	r.each(func(where string, t *table) {
		seen := t.reachable(baseChains(t.name)...)
		for _, name := range t.order {
			if strings.HasPrefix(name, prefix) && !seen[name] {
				lost = append(lost, where+"/"+name)
			}
		}
	})
	return lost
}

// Depth is how many chains deep jumps and gotos lead below any of the kernel's chains. The kernel allows 15 in the nft
// backend.
func (r *Ruleset) Depth() int {
	deepest := 0
	r.each(func(_ string, t *table) {
		known := map[string]int{}
		for _, base := range baseChains(t.name) {
			d, _ := t.depth(base, known, nil) // Parse has seen that there is no error
			deepest = max(deepest, d)
		}
	})
	return deepest
}

// Rules counts the rules in chains whose names begin with prefix.
func (r *Ruleset) Rules(prefix string) int {
	n := 0
	r.each(func(_ string, t *table) {
		for name, c := range t.chains {
			if strings.HasPrefix(name, prefix) {
				n += len(c.rules)
			}
		}
	})
	return n
}

func (r *Ruleset) each(f func(where string, t *table)) {
	for _, v6 := range []bool{false, true} {
		for _, name := range tableNames() {
			where := name
			if v6 {
				where = "6" + name
			}
			f(where, r.families[v6].tables[name])
		}
	}
}

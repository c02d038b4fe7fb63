package netfilter

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Ruleset is all rules and sets of a host. It has what the kernel keeps between packets: the counters of nth, and
// entries that rules add to sets.
type Ruleset struct {
	families map[bool]*family // by: IPv6
	sets     map[string]*set
	counters map[*nth]uint32
	now      time.Duration
}

// family is the tables of IPv4 or IPv6.
type family struct {
	v6     bool
	tables map[string]*table
}

type table struct {
	name   string
	chains map[string]*chain
	order  []string // of the chains that are not the kernel's, as they were declared
}

type chain struct {
	name string
	// policy of the kernel's chains: ACCEPT or DROP; "": the chain is not the kernel's.
	policy string
	rules  []*rule
}

// rule is one rule. Its head is what the kernel looks at before its matches.
type rule struct {
	text    string
	head    []match
	matches []match
	target  target
}

// match reports whether a packet is one that the rule is for.
type match func(*flow) bool

// target is what becomes of the packets that match.
type target struct {
	// name is the target's or the chain's; "": nothing.
	name string
	// chain: name is that of a chain, to come back from or, with leap, not to.
	chain, leap bool
	// act does what the target does, and returns its verdict.
	act func(*flow) verdict
}

// verdict is what a rule or chain says of a packet.
type verdict int

const (
	goOn verdict = iota // to the next rule
	back                // to the calling chain
	accept
	drop // a rejection is a drop that says so
)

func tableNames() []string { return []string{"mangle", "nat", "filter"} }

// baseChains are the kernel's chains by table.
func baseChains(table string) []string {
	switch table {
	case "mangle":
		return []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
	case "nat":
		return []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}
	case "filter":
		return []string{"INPUT", "FORWARD", "OUTPUT"}
	}
	return nil
}

func newFamily(v6 bool) *family {
	f := &family{v6: v6, tables: map[string]*table{}}
	for _, name := range tableNames() {
		t := &table{name: name, chains: map[string]*chain{}}
		for _, base := range baseChains(name) {
			t.chains[base] = &chain{name: base, policy: "ACCEPT"}
		}
		f.tables[name] = t
	}
	return f
}

// Elapse lets time pass: what rules added to sets with a timeout ends.
func (r *Ruleset) Elapse(d time.Duration) { r.now += d }

// validate refuses what the kernel refuses when rules are committed.
func (f *family) validate() error {
	for _, name := range tableNames() {
		t := f.tables[name]
		depths := map[string]int{}
		for _, base := range baseChains(t.name) {
			if _, err := t.depth(base, depths, nil); err != nil {
				return fmt.Errorf("table %s: %w", t.name, err)
			}
			if err := t.validateUnder(base); err != nil {
				return fmt.Errorf("table %s: %w", t.name, err)
			}
		}
		for _, name := range t.order { // those that nothing leads to, too
			if _, err := t.depth(name, depths, nil); err != nil {
				return fmt.Errorf("table %s: %w", t.name, err)
			}
		}
	}
	return nil
}

// depth returns how many chains deep jumps and gotos lead from a chain; path is how it was reached.
func (t *table) depth(name string, known map[string]int, path []string) (int, error) {
	if d, ok := known[name]; ok {
		return d, nil
	}
	if slices.Contains(path, name) {
		return 0, fmt.Errorf("chains lead round: %s -> %s", strings.Join(path, " -> "), name)
	}
	c := t.chains[name]
	deepest := 0
	for _, r := range c.rules {
		if !r.target.chain {
			continue
		}
		if t.chains[r.target.name] == nil {
			return 0, fmt.Errorf("chain %s: %q: there is no chain %s", name, r.text, r.target.name)
		}
		d, err := t.depth(r.target.name, known, append(slices.Clip(path), name))
		if err != nil {
			return 0, err
		}
		deepest = max(deepest, d+1)
	}
	known[name] = deepest
	return deepest, nil
}

// validateUnder refuses targets that the kernel does not allow under a hook.
func (t *table) validateUnder(base string) error {
	for name := range t.reachable(base) {
		for _, r := range t.chains[name].rules {
			var hooks []string
			switch r.target.name {
			case "DNAT", "REDIRECT":
				hooks = []string{"PREROUTING", "OUTPUT"}
			case "MASQUERADE":
				hooks = []string{"POSTROUTING"}
			case "REJECT":
				hooks = []string{"INPUT", "FORWARD", "OUTPUT"}
			default:
				continue
			}
			if !slices.Contains(hooks, base) {
				return fmt.Errorf("chain %s: %q: %s is not allowed under %s", name, r.text, r.target.name, base)
			}
		}
	}
	return nil
}

// reachable are a chain and all that it leads to.
func (t *table) reachable(from ...string) map[string]bool {
	seen := map[string]bool{}
	for len(from) > 0 {
		name := from[0]
		from = from[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		for _, r := range t.chains[name].rules {
			if r.target.chain {
				from = append(from, r.target.name)
			}
		}
	}
	return seen
}

package guard

import "context"

// ruleWatch looks cheaply whether our chains are as they were left.
type ruleWatch interface {
	// look returns in words what differs of a table from when wrote was called. "" means nothing is known to differ.
	look(ctx context.Context, tool Tool, table string) (reason string, err error)
	// writing looks which chains of a table have other rules than when wrote was called. It comes before all of ours are
	// written.
	writing(ctx context.Context, tool Tool, table string) error
	// wrote remembers what the chains of a table, which have just been written and have so many rules, and so many jumps to them from
	// bases look like. The error says which has not the rules that it was given.
	wrote(ctx context.Context, tool Tool, table string, want, bases map[string]int) error
}

// sizes are how many rules the chains of a table have that the parts have there; nil means they have none.
func (g *legacy) sizes(table string) map[string]int {
	var want map[string]int
	for _, p := range g.parts {
		for _, c := range p.chains {
			if p.def.table == table {
				if want == nil {
					want = map[string]int{}
				}
				want[c.Name] = len(c.Rules)
			}
		}
	}
	return want
}

// wrote has the watch remember what the kernel has of all parts.
func (g *legacy) wrote(ctx context.Context, tool Tool) error {
	var failed error
	for _, table := range tables() {
		want := g.sizes(table)
		if want == nil {
			continue
		}
		bases := map[string]int{}
		for _, p := range g.parts {
			for _, j := range p.jumps {
				if p.def.table == table {
					bases[j.base]++
				}
			}
		}
		if err := g.watch.wrote(ctx, tool, table, want, bases); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

// tables are those that the guard has parts in.
func tables() []string { return []string{"raw", "mangle", "filter", "nat"} }

package host

import "context"

// ruleWatch looks cheaply whether our chains are as they were left.
type ruleWatch interface {
	// look returns in words what differs of a table: a chain that has not the size that want says. "": nothing is known
	// to differ.
	look(ctx context.Context, tool ruleKernel, table string, want map[string]chainSize) (reason string, err error)
}

// chainSize is how many rules a chain has, and how many lead to it.
type chainSize struct{ rules, jumps int }

// sizes are those of all chains of a table that the parts have there; nil: they have none.
func (g *guard) sizes(table string) map[string]chainSize {
	var want map[string]chainSize
	for _, p := range g.parts {
		if p.def.table != table {
			continue
		}
		for _, c := range p.chains {
			if want == nil {
				want = map[string]chainSize{}
			}
			want[c.name] = chainSize{rules: len(c.rules), jumps: leading(p.chains, p.jumps, c.name)}
		}
	}
	return want
}

// tables are those that the guard has parts in.
func tables() []string { return []string{"raw", "mangle", "filter", "nat"} }

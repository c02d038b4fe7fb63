package host

import (
	"context"

	"vipd/dataplane/internal/xtables"
)

// tableReader is what looks at tables; *xtables.Tool does it.
type tableReader interface {
	Stamp(table string) (xtables.Stamp, error)
	Compare(ctx context.Context, table string, ours func(chain string) bool, want map[string]xtables.Size) (reason string, err error)
}

var _ tableReader = (*xtables.Tool)(nil)

// watch implements ruleWatch: it compares a table when anybody has changed it since it was last found to be as we left
// it. The mode changes its rules all the time, so that this is paced.
type watch struct {
	tables map[string]*xtables.Look
}

func newWatch() *watch { return &watch{tables: map[string]*xtables.Look{}} }

func (w *watch) look(ctx context.Context, tool ruleKernel, table string, want map[string]chainSize) (string, error) {
	reader, ok := tool.(tableReader)
	if !ok {
		return "", nil
	}
	if w.tables[table] == nil {
		w.tables[table] = &xtables.Look{}
	}
	return w.tables[table].Probe(reader, table, func() int { return entriesOf(want) }, func() (string, error) {
		sizes := make(map[string]xtables.Size, len(want))
		for name, s := range want {
			sizes[name] = xtables.Size{Rules: s.rules, Jumps: s.jumps}
		}
		return reader.Compare(ctx, table, nil, sizes)
	})
}

// entriesOf is how many entries of a table of the legacy backend the chains take: a rule is one, a chain two more.
func entriesOf(want map[string]chainSize) (n int) {
	for _, s := range want {
		n += s.rules + 2
	}
	return n
}

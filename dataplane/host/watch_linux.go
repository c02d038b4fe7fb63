package host

import (
	"context"
	"time"

	"vipd/dataplane/internal/xtables"
)

// longestRest is the most between two comparisons of a table, however long they take.
const longestRest = 10 * time.Second

// tableReader is what looks at tables; *xtables.Tool does it.
type tableReader interface {
	Stamp(table string) (xtables.Stamp, error)
	Compare(ctx context.Context, table string, ours func(chain string) bool, want map[string]xtables.Size) (reason string, err error)
}

var _ tableReader = (*xtables.Tool)(nil)

// watch implements ruleWatch. It compares a table when anybody has changed it since it was last found to be as we left
// it. That grows with all that is in the table, the mode's own rules and those of others included, and the mode changes
// its rules all the time: so it may take a hundredth of the time. Where a table has fewer entries than ours alone it
// does not wait.
type watch struct {
	tables map[string]tableWatch
}

// tableWatch is what is known of one table.
type tableWatch struct {
	// stamp is that of the table when it was last compared; sure: it was in order.
	stamp xtables.Stamp
	sure  bool
	// next is when it may be compared again.
	next time.Time
}

func newWatch() *watch { return &watch{tables: map[string]tableWatch{}} }

func (w *watch) look(ctx context.Context, tool ruleKernel, table string, want map[string]chainSize) (string, error) {
	reader, ok := tool.(tableReader)
	if !ok {
		return "", nil
	}
	stamp, err := reader.Stamp(table)
	if err != nil {
		return "", err
	}
	t := w.tables[table]
	if t.sure && stamp == t.stamp {
		return "", nil
	}
	started := time.Now()
	if started.Before(t.next) && (stamp.Entries == 0 || stamp.Entries >= entriesOf(want)) {
		return "", nil
	}
	sizes := make(map[string]xtables.Size, len(want))
	for name, s := range want {
		sizes[name] = xtables.Size{Rules: s.rules, Jumps: s.jumps}
	}
	noOther := func(string) bool { return false } // whatever other chains there are, they are the mode's
	reason, err := reader.Compare(ctx, table, noOther, sizes)
	ended := time.Now()
	// A change during the comparison is seen by the next stamp.
	w.tables[table] = tableWatch{stamp: stamp, sure: reason == "" && err == nil, next: ended.Add(min(100*ended.Sub(started), longestRest))}
	return reason, err
}

// entriesOf is how many entries of a table of the legacy backend the chains take: a rule is one, a chain two more.
func entriesOf(want map[string]chainSize) (n int) {
	for _, s := range want {
		n += s.rules + 2
	}
	return n
}

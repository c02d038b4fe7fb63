package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"vipd/dataplane/internal/xtables"
)

// tableReader is what looks at tables; *xtables.Tool does it.
type tableReader interface {
	Stamp(table string) (xtables.Stamp, error)
	Commits() uint32
	Prints(ctx context.Context, table, prefix string, chains []string) (map[string]xtables.Print, error)
}

var _ tableReader = (*xtables.Tool)(nil)

// watch implements ruleWatch: it compares a table that was changed since it was last found to be as we left
// it. The mode changes its rules all the time, so that this is paced.
type watch struct {
	tables map[string]*watched
}

// watched is one table.
type watched struct {
	look xtables.Look
	// prints say what the chains contained when they were written, and the kernel's own of jumps to them; broken, what
	// was found in their place.
	prints, broken map[string]xtables.Print
}

func newWatch() *watch { return &watch{tables: map[string]*watched{}} }

func (w *watch) table(name string) *watched {
	if w.tables[name] == nil {
		w.tables[name] = &watched{look: xtables.Contents(), broken: map[string]xtables.Print{}}
	}
	return w.tables[name]
}

func (w *watch) look(ctx context.Context, tool Tool, table string) (string, error) {
	reader, ok := tool.(tableReader)
	if !ok {
		return "", nil
	}
	t := w.table(table)
	return t.look.Probe(reader, table, t.entries, func() (string, error) {
		changed, err := t.compare(ctx, reader, table)
		if changed == "" || err != nil {
			return "", err
		}
		return "rules of chain " + changed + " were changed", nil
	})
}

// compare notes which chains have other rules than when they were written, and returns the first of them; "" means none.
func (t *watched) compare(ctx context.Context, reader tableReader, table string) (changed string, err error) {
	now, err := reader.Prints(ctx, table, ourPrefix, slices.Collect(maps.Keys(t.prints)))
	if err != nil {
		return "", err
	}
	for name, was := range t.prints {
		if now[name] != was {
			t.broken[name] = now[name]
			if changed == "" || name < changed {
				changed = name
			}
		}
	}
	return changed, nil
}

func (w *watch) writing(ctx context.Context, tool Tool, table string) error {
	reader, ok := tool.(tableReader)
	t := w.table(table)
	if !ok || len(t.prints) == 0 {
		return nil
	}
	_, err := t.compare(ctx, reader, table)
	t.prints = nil
	return err
}

// errNoJump is what is wrong with a base chain that does not lead to ours.
var errNoJump = errors.New("lacks a jump that was just written: another program is changing it at the same time")

// ourPrefix begins the names of our chains.
const ourPrefix = "VIPD-"

func (w *watch) wrote(ctx context.Context, tool Tool, table string, want, bases map[string]int) error {
	reader, ok := tool.(tableReader)
	if !ok {
		return nil
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(bases)), maps.Keys(want))
	prints, err := reader.Prints(ctx, table, ourPrefix, names)
	if err != nil {
		return err
	}
	t := w.table(table)
	for name, rules := range want {
		got := prints[name]
		if broken, known := t.broken[name]; got.Rules != rules || known && got == broken {
			return xtables.NotWritten(table, name, got)
		}
	}
	for base, jumps := range bases {
		if prints[base].Rules < jumps {
			return fmt.Errorf("chain %s of table %s %w", base, table, errNoJump)
		}
	}
	t.prints = prints
	clear(t.broken)
	return nil
}

// entries is how many entries of a table of the legacy variant the chains take at least: a rule is one.
func (t *watched) entries() (n int) {
	for _, p := range t.prints {
		n += p.Rules
	}
	return n
}

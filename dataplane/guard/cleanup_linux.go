package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/xtables"
)

// Cleanup removes every guard that a process which is gone has left, and returns what it did in words, or, with dry, what it
// would do. It goes on after errors, and returns them together.
func Cleanup(ctx context.Context, dry bool) ([]string, error) {
	c := cleaner{ctx: ctx, dry: dry}
	sets, noSets := ipset.Open()
	if noSets != nil {
		sets = nil
	} else {
		defer sets.Close()
	}
	tables, err := nft.Cleanup(dry, tableName, tableName+trialSuffix)
	c.done, c.errs = tables, append(c.errs, err)
	for _, f := range inet.Families() {
		o := Options{Log: slog.New(slog.DiscardHandler)}
		g := newLegacy(newWanted(f, o), o, sets, noSets)
		for _, tool := range xtables.Existing(ctx, f) {
			c.rules(g, tool, fmt.Sprintf("%s, %s", f, tool.Variant()))
		}
		if sets != nil {
			c.ipsets(g)
		}
	}
	return c.done, errors.Join(c.errs...)
}

// cleaner is one Cleanup under way.
type cleaner struct {
	ctx  context.Context
	dry  bool
	done []string
	errs []error
}

// do says what is done, and does it unless this is a dry run.
func (c *cleaner) do(what string, do func() error) {
	if !c.dry {
		if err := do(); err != nil {
			c.errs = append(c.errs, err)
			return
		}
	}
	c.done = append(c.done, what)
}

// rules removes our chains, and the jumps to them, from one variant.
func (c *cleaner) rules(y *legacy, tool Tool, which string) {
	for _, p := range slices.Backward(y.parts) {
		chains, err := y.there(c.ctx, tool, p)
		if err != nil {
			c.errs = append(c.errs, err)
			continue
		}
		if len(chains) > 0 {
			var names []string
			for _, chain := range chains {
				names = append(names, chain.Name)
			}
			c.do(fmt.Sprintf("remove from table %s (%s): chains %s", p.def.table, which, strings.Join(names, ", ")), func() error {
				return write(c.ctx, tool, []*part{p}, y.remove)
			})
		}
	}
}

// ipsets destroys our sets.
func (c *cleaner) ipsets(y *legacy) {
	for _, m := range y.members {
		_, err := y.sets.Header(m.name)
		if err == nil {
			c.do("destroy ipset "+m.name, func() error { return m.destroy(c.ctx, y.sets) })
		} else if !errors.Is(err, ipset.ErrNotFound) && !isUnsupported(err) {
			c.errs = append(c.errs, err)
		}
	}
}

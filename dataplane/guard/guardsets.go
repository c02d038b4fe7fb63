package guard

import (
	"context"
	"errors"
	"maps"
	"slices"

	"vipd/dataplane/internal/ipset"
)

// makeSets makes sure that the sets in use are there, and compares those of which nothing is known.
func (g *legacy) makeSets(ctx context.Context, tool Tool) error {
	for _, m := range g.members {
		if !g.uses(m) || m.state == present {
			continue
		}
		m.lacking = nil
		err := m.create(g.sets)
		if errors.Is(err, ipset.ErrDifferent) { // left by another version
			if err = g.removeRules(ctx, tool); err == nil {
				err = errors.Join(m.destroy(ctx, g.sets), m.create(g.sets))
			}
		}
		if m.def.optional && errors.Is(err, ipset.ErrUnsupported) {
			m.lacking, m.state, err = err, present, nil // as far as it can be
		}
		if err != nil {
			return err
		}
	}
	sources, arrivals := g.has(g.set(allowedSet)), g.has(g.set(arrivedSet))
	if g.plan.sources != sources || g.plan.arrivals != arrivals {
		g.plan.sources, g.plan.arrivals, g.stale = sources, arrivals, true
	}
	return nil
}

// uses reports whether the guard has any use for the set, or rules that look at it.
func (g *legacy) uses(m *members) bool {
	if m.def.native {
		return false
	}
	if m.def.direct {
		return g.directed() || len(g.plan.direct) > 0
	}
	return !m.def.ipvs || g.plan.mode.LocalIn
}

// directed reports whether there are direct frontends.
func (g *legacy) directed() bool {
	return g.plan.mode.LocalIn && g.direct.some()
}

// has reports whether the guard has the set.
func (g *legacy) has(m *members) bool { return g.uses(m) && m.lacking == nil }

// restrict puts in what restricts, and takes out what must not be there when others are applied.
func (g *legacy) restrict() error {
	for _, m := range slices.Backward(g.members) { // exceptions before rules
		if m.def.early && g.has(m) {
			if err := m.fill(); err != nil {
				return err
			}
		}
		if err := m.withdraw(); err != nil {
			return err
		}
	}
	return nil
}

// syncSets adds what was applied, and deletes what is not wanted.
func (g *legacy) syncSets(ctx context.Context) error {
	for _, m := range slices.Backward(g.members) {
		if g.has(m) {
			if err := m.fill(); err != nil {
				return err
			}
		}
	}
	for _, m := range g.members {
		if g.has(m) {
			if err := m.trim(); err != nil {
				return err
			}
		}
		if !g.uses(m) && m.state != absent {
			if err := m.discard(ctx, g.sets); err != nil {
				return err
			}
		}
	}
	return nil
}

// cover makes the rules' networks contain all that the sets hold or shall hold. They may shrink where all is compared.
func (g *legacy) cover(shrink bool) {
	g.clamp()
	vips := []*members{g.frontends, g.special}
	if g.plan.mode.Marked {
		vips = vips[1:]
	}
	changed := shrink
	fit := func(c *cover, needed bool, sets ...*members) {
		next := *c
		if !needed {
			next = nil
		} else if shrink || next == nil || c.lacks(sets...) {
			next = coverOf(sets...)
		}
		changed = changed || !slices.Equal(*c, next)
		*c = next
	}
	fit(&g.plan.vips, true, vips...)
	fit(&g.plan.held, true, g.held)
	fit(&g.plan.owned, g.owned.some(), g.owned)
	fit(&g.plan.direct, g.directed(), g.direct)
	roaming := g.roaming()
	g.stale = g.stale || changed || roaming != g.plan.roaming
	g.plan.roaming = roaming
}

// clamp makes the rules' clamps those that are wanted.
func (g *legacy) clamp() {
	if len(g.clamps.dirty) == 0 {
		return
	}
	clear(g.clamps.dirty)
	clamps := slices.SortedFunc(maps.Keys(g.clamps.count), ipset.Entry.Compare)
	if !slices.Equal(clamps, g.plan.clamps) {
		g.plan.clamps, g.stale = clamps, true
	}
}

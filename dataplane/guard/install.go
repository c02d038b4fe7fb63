package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// try finds out what the kernel can do beyond what every kernel can. Most can do all, which takes one trial.
func (g *legacy) try(ctx context.Context, tool Tool) error {
	full := g.plan
	full.hairpin, full.randomFully, full.mode.Marked = true, true, false
	hairpin, randomFully := masqueradeChains(&full)[0].Rules[1], masqueradeChains(&full)[1].Rules[1]
	hairpin, _, _ = strings.Cut(hairpin, " -g ")
	works := func(rules ...string) (bool, error) {
		err := tool.Restore(ctx, xtables.Trial("nat", rules...))
		if err == nil {
			return true, nil
		}
		if ctx.Err() == nil && isRefused(err) {
			err = nil
		}
		return false, err
	}
	all, err := works(hairpin, randomFully, clampRule)
	for _, trial := range []struct {
		rule string
		can  *bool
	}{{hairpin, &full.hairpin}, {randomFully, &full.randomFully}, {clampRule, &full.clamp}} {
		if *trial.can = all; err == nil && !all {
			*trial.can, err = works(trial.rule)
		}
	}
	if err != nil {
		return fmt.Errorf("trying rules of the nat table: %w", err)
	}
	g.stale = g.stale || full.hairpin != g.plan.hairpin || full.randomFully != g.plan.randomFully || full.clamp != g.plan.clamp
	g.plan.hairpin, g.plan.randomFully, g.plan.clamp = full.hairpin, full.randomFully, full.clamp
	return nil
}

// batch is what is written for some parts in one run of the program: to start programs is most of what the guard takes. Each part
// is its own transaction, and none looks at what another one writes.
type batch struct {
	Tool
	text string
	// done are what to note once all is written.
	done []func()
	read map[[2]string][]string // rules by table and chain
}

func (b *batch) add(text string, done func()) {
	b.text += text
	b.done = append(b.done, done)
}

// Rules implements Tool: parts have base chains in common, which are read once.
func (b *batch) Rules(ctx context.Context, table, chain string) (rules []string, err error) {
	at := [2]string{table, chain}
	rules, known := b.read[at]
	if !known {
		rules, err = b.Tool.Rules(ctx, table, chain)
		b.read[at] = rules
	}
	return rules, err
}

// write writes what is to be done for parts. Where something is refused it is as if nothing was known to be done: to do it part by
// part finds out which, and what is done twice changes nothing.
func write(ctx context.Context, tool Tool, parts []*part, add func(context.Context, *batch, *part) error) error {
	b := &batch{Tool: tool, read: map[[2]string][]string{}}
	for _, p := range parts {
		if err := add(ctx, b, p); err != nil {
			return err
		}
	}
	if b.text != "" {
		if err := tool.Restore(ctx, b.text); err != nil {
			return err
		}
	}
	for _, done := range b.done {
		done()
	}
	return nil
}

// change adds what makes a part what it should be: all of it where that is not known, else what differs.
func (g *legacy) change(ctx context.Context, b *batch, p *part) error {
	switch {
	case !g.wants(p):
		if p.chains == nil && g.looked {
			return nil
		}
		b.add("", p.forget)
		return g.remove(ctx, b, p)
	case p.chains == nil:
		return g.install(ctx, b, p)
	case g.stale:
		return g.rewrite(ctx, b, p)
	}
	return nil
}

// bring makes one part what it should be.
func (g *legacy) bring(ctx context.Context, tool Tool, p *part) error {
	if p.failed != nil && !p.refusals.over() {
		return nil
	}
	err := write(ctx, tool, []*part{p}, g.change)
	switch {
	case err == nil:
		if p.failed != nil {
			g.log.Info("the kernel takes a part of the guard now that it refused", "part", p.def.name, "family", g.family)
		}
		p.refusals, p.failed = refusals{}, nil
	case ctx.Err() == nil && isRefused(err) && p.refusals.again():
		g.log.Debug("the kernel refuses a part of the guard", "part", p.def.name, "family", g.family, "again", p.refusals.due, "err", err)
		p.failed, err = err, nil
		p.forget()
	}
	if err != nil {
		return fmt.Errorf("putting up the part %s: %w", p.def.name, err)
	}
	return nil
}

// install puts a part in the place of whatever an earlier process left of it, in one transaction: there is no moment
// without either.
func (g *legacy) install(ctx context.Context, b *batch, p *part) error {
	chains, jumps := p.def.chains(&g.plan), p.def.jumps(&g.plan)
	further, err := join(ctx, b, p.def.table, jumps, true, chains)
	if err != nil {
		return err
	}
	b.add(xtables.Input(p.def.table, chains, further...), func() {
		p.chains, p.jumps = chains, jumps
		g.log.Debug("put up a part of the guard", "part", p.def.name, "family", g.family)
	})
	return nil
}

// join returns the lines that make the jumps, or without put none, the only rules of their bases that lead to the part's chains.
func join(ctx context.Context, tool Tool, table string, jumps []jump, put bool, own []xtables.Chain) (lines []string, err error) {
	names := make([]string, len(own))
	for i, c := range own {
		names[i] = c.Name
	}
	for _, j := range jumps {
		rules, err := tool.Rules(ctx, table, j.base)
		if err != nil {
			return nil, err
		}
		rule := ""
		if put {
			rule = j.rule
		}
		lines = append(lines, xtables.Join(rules, j.base, rule, names...)...)
	}
	return lines, nil
}

// rewrite rewrites the chains that the plan makes others.
func (g *legacy) rewrite(ctx context.Context, b *batch, p *part) error {
	if !slices.Equal(p.jumps, p.def.jumps(&g.plan)) {
		return g.install(ctx, b, p)
	}
	chains := p.def.chains(&g.plan)
	var changed []xtables.Chain
	for i, c := range chains {
		if !slices.Equal(c.Rules, p.chains[i].Rules) {
			changed = append(changed, c)
		}
	}
	if len(changed) > 0 {
		b.add(xtables.Input(p.def.table, changed), func() { p.chains = chains })
	}
	return nil
}

// refresh rewrites what the plan makes others, where the guard is up. What can't be done is left to the next prepare.
func (g *legacy) refresh(ctx context.Context) error {
	if !g.stale || !g.ready || g.failed != nil {
		return nil
	}
	return g.note(g.establish(ctx))
}

// leave removes the guard if any of it may be there.
func (g *legacy) leave(ctx context.Context) error {
	if g.sets == nil || g.failed != nil || g.looked && !g.ready {
		return nil
	}
	if !g.ready {
		present, err := g.present()
		if err != nil {
			return err
		}
		if g.looked = !present; !present {
			return nil
		}
	}
	tool, err := g.rules(ctx)
	if err != nil {
		return err
	}
	if err := g.removeRules(ctx, tool); err != nil {
		return err
	}
	if err := g.removeOthers(ctx, tool); err != nil {
		return err
	}
	for _, m := range g.members {
		if err := m.discard(ctx, g.sets); err != nil {
			return err
		}
	}
	g.forget()
	g.looked = true
	g.log.Debug("removed the guard", "family", g.family)
	return nil
}

// present looks whether any of the sets is there.
func (g *legacy) present() (bool, error) {
	names := make([]string, len(g.members))
	for i, m := range g.members {
		names[i] = m.name
	}
	return g.anySet(names...)
}

// anySet looks whether any of these sets is there.
func (g *legacy) anySet(names ...string) (bool, error) {
	for _, name := range names {
		if _, err := g.sets.Header(name); !errors.Is(err, ipset.ErrNotFound) {
			return err == nil, err
		}
	}
	return false, nil
}

// removeRules removes all parts.
func (g *legacy) removeRules(ctx context.Context, tool Tool) error {
	parts := slices.Clone(g.parts)
	slices.Reverse(parts)
	if err := write(ctx, tool, parts, g.remove); err != nil {
		return fmt.Errorf("removing rules of the guard: %w", err)
	}
	for _, p := range parts {
		p.forget()
	}
	return nil
}

// removeOthers removes all parts from all variants but that of tool, and the table of nf_tables, unless that was done before.
func (g *legacy) removeOthers(ctx context.Context, tool Tool) error {
	if g.looked {
		return nil
	}
	if g.native != nil {
		if err := g.native(); err != nil {
			return err
		}
	}
	for _, other := range g.others(ctx, tool) {
		if err := write(ctx, other, g.parts, g.remove); err != nil {
			return err
		}
	}
	return nil
}

// possible reports whether the part can be there. To look for a chain in a table of the legacy variant makes the table,
// which costs all packets; and the kernel keeps sets for as long as rules look at them.
func (g *legacy) possible(p *part) (bool, error) {
	if !p.def.direct || g.sets == nil {
		return !p.def.direct, nil
	}
	return g.anySet(setName(directSet, inet.IPv4), setName(directSet, inet.IPv6)) // cleanup asks one guard for both
}

// there are the chains of a part that the kernel has, with that of a trial that was cut short.
func (g *legacy) there(ctx context.Context, tool Tool, p *part) (there []xtables.Chain, err error) {
	if possible, err := g.possible(p); !possible {
		return nil, err
	}
	for _, c := range append(p.def.chains(&g.plan), xtables.NewChain(xtables.TrialChain)) {
		exists, err := tool.ChainExists(ctx, p.def.table, c.Name)
		if err != nil {
			return nil, err
		}
		if exists {
			there = append(there, xtables.NewChain(c.Name))
		}
	}
	return there, nil
}

// remove adds what removes a part's jumps and chains.
func (g *legacy) remove(ctx context.Context, b *batch, p *part) error {
	chains, err := g.there(ctx, b, p)
	if len(chains) == 0 || err != nil {
		return err
	}
	further, err := join(ctx, b, p.def.table, p.def.jumps(&g.plan), false, chains)
	if err != nil {
		return err
	}
	for _, c := range chains {
		further = append(further, "-X "+c.Name)
	}
	b.add(xtables.Input(p.def.table, chains, further...), func() {})
	return nil
}

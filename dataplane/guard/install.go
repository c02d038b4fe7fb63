package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"vipd/dataplane/internal/ipset"
)

// trialChain holds a rule for a moment, to prove that the kernel takes it.
const trialChain = "VIPD-TRIAL"

// try finds out what the kernel can do beyond what every kernel can. Most can do all, which takes one trial.
func (g *legacy) try(ctx context.Context, tool Tool) error {
	full := g.plan
	full.hairpin, full.randomFully, full.mode.Marked = true, true, false
	hairpin, randomFully := masqueradeChains(&full)[0].rules[1], masqueradeChains(&full)[1].rules[1]
	hairpin, _, _ = strings.Cut(hairpin, " -g ")
	works := func(rules ...string) (bool, error) {
		err := tool.Restore(ctx, restore("nat", []chain{{trialChain, rules}})+restore("nat", []chain{{name: trialChain}}, "-X "+trialChain))
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

// bring makes a part what it should be: all of it where that is not known, else what differs.
func (g *legacy) bring(ctx context.Context, tool Tool, p *part) error {
	var err error
	switch {
	case p.failed != nil && !p.refusals.over():
		return nil
	case !g.wants(p):
		if p.chains != nil || !g.looked {
			err = g.removePart(ctx, tool, p)
		}
	case p.chains == nil:
		err = g.install(ctx, tool, p)
	case g.stale:
		err = g.rewrite(ctx, tool, p)
	}
	switch {
	case err == nil:
		if p.failed != nil {
			g.log.Info("the kernel takes a part of the guard now that it refused", "part", p.def.name, "family", g.family)
		}
		p.refusals, p.failed = refusals{}, nil
	case ctx.Err() == nil && isRefused(err) && p.refusals.again():
		g.log.Debug("the kernel refuses a part of the guard", "part", p.def.name, "family", g.family, "again", p.refusals.due, "err", err)
		p.failed, err = err, nil
		p.chains, p.jumps = nil, nil
	}
	if err != nil {
		return fmt.Errorf("putting up the part %s: %w", p.def.name, err)
	}
	return nil
}

// install puts a part in the place of whatever an earlier process left of it, in one transaction: there is no moment
// without either.
func (g *legacy) install(ctx context.Context, tool Tool, p *part) error {
	chains, jumps := p.def.chains(&g.plan), p.def.jumps(&g.plan)
	declared := slices.Clone(chains)
	var further, retired []string
	for _, name := range p.def.retired {
		exists, err := tool.ChainExists(ctx, p.def.table, name)
		if err != nil {
			return err
		}
		if exists {
			declared, retired = append(declared, chain{name: name}), append(retired, "-X "+name)
		}
	}
	for _, j := range jumps {
		lines, err := rejoin(ctx, tool, p.def.table, j, declared)
		if err != nil {
			return err
		}
		further = append(further, lines...)
	}
	if err := tool.Restore(ctx, restore(p.def.table, declared, append(further, retired...)...)); err != nil {
		return err
	}
	p.chains, p.jumps = chains, jumps
	g.log.Debug("put up a part of the guard", "part", p.def.name, "family", g.family)
	return nil
}

// rejoin returns the lines that make j the only rule of its base that leads to one of our chains. Where it is there, in these
// words, it stays in its place: others may have put theirs before it, and would do so again.
func rejoin(ctx context.Context, tool Tool, table string, j jump, own []chain) ([]string, error) {
	rules, err := jumpsTo(ctx, tool, table, j.base, own)
	if err != nil {
		return nil, err
	}
	var lines []string
	there := false
	for _, r := range rules {
		if r == j.rule && !there {
			there = true
			continue
		}
		lines = append(lines, "-D "+j.base+" "+r)
	}
	if !there {
		lines = append(lines, j.insertion())
	}
	return lines, nil
}

// jumpsTo returns the rules of a base chain that lead to any of the chains.
func jumpsTo(ctx context.Context, tool Tool, table, base string, chains []chain) ([]string, error) {
	rules, err := tool.Rules(ctx, table, base)
	return slices.DeleteFunc(rules, func(rule string) bool {
		return !slices.ContainsFunc(chains, func(c chain) bool { return leadsTo(rule, c.name) })
	}), err
}

// rewrite rewrites the chains that the plan makes others.
func (g *legacy) rewrite(ctx context.Context, tool Tool, p *part) error {
	if !slices.Equal(p.jumps, p.def.jumps(&g.plan)) {
		return g.install(ctx, tool, p)
	}
	chains := p.def.chains(&g.plan)
	var changed []chain
	for i, c := range chains {
		if !slices.Equal(c.rules, p.chains[i].rules) {
			changed = append(changed, c)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	if err := tool.Restore(ctx, restore(p.def.table, changed)); err != nil {
		return err
	}
	p.chains = chains
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
	if !g.looked {
		if err := g.removeOthers(ctx, tool); err != nil {
			return err
		}
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
	for _, m := range g.members {
		_, err := g.sets.Header(m.name)
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, ipset.ErrNotFound):
			return false, err
		}
	}
	return false, nil
}

// removeRules removes all parts.
func (g *legacy) removeRules(ctx context.Context, tool Tool) error {
	parts := slices.Clone(g.parts)
	slices.Reverse(parts)
	err := g.atOnce(ctx, tool, parts, func(tool Tool, p *part) error { return g.removePart(ctx, tool, p) })
	if !isRefused(err) {
		return err
	}
	for _, p := range slices.Backward(g.parts) {
		if err := g.removePart(ctx, tool, p); err != nil {
			return fmt.Errorf("removing the part %s: %w", p.def.name, err)
		}
	}
	return nil
}

// removeOthers removes all parts from all variants but that of tool, and the table of nf_tables.
func (g *legacy) removeOthers(ctx context.Context, tool Tool) error {
	if g.native != nil {
		if err := g.native(); err != nil {
			return err
		}
	}
	for _, other := range g.others(ctx, tool) {
		for _, p := range g.parts {
			if _, err := g.remove(ctx, other, p, false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *legacy) removePart(ctx context.Context, tool Tool, p *part) error {
	_, err := g.remove(ctx, tool, p, false)
	if err == nil {
		p.chains, p.jumps = nil, nil
	}
	return err
}

// possible reports whether the part can be there. To look for a chain in a table of the legacy variant makes the table,
// which costs all packets; and the kernel keeps sets for as long as rules look at them.
func (g *legacy) possible(p *part) (bool, error) {
	if !p.def.direct || g.sets == nil {
		return !p.def.direct, nil
	}
	for _, family := range []ipset.Family{ipset.IPv4, ipset.IPv6} { // cleanup asks one guard for both
		_, err := g.sets.Header(setName(directSet, family))
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, ipset.ErrNotFound):
			return false, err
		}
	}
	return false, nil
}

// remove removes a part's jumps and chains, and those of earlier versions, in one transaction. It returns the names of
// the chains that there are, which is all that it does in a dry run.
func (g *legacy) remove(ctx context.Context, tool Tool, p *part, dry bool) ([]string, error) {
	if possible, err := g.possible(p); !possible {
		return nil, err
	}
	var chains []chain
	var names, further []string
	for _, c := range p.def.chains(&g.plan) {
		chains = append(chains, chain{name: c.name})
	}
	for _, name := range p.def.retired {
		chains = append(chains, chain{name: name})
	}
	var present []chain
	for _, c := range chains {
		exists, err := tool.ChainExists(ctx, p.def.table, c.name)
		if err != nil {
			return nil, err
		}
		if exists {
			present, names = append(present, c), append(names, c.name)
		}
	}
	if len(present) == 0 || dry {
		return names, nil
	}
	for _, j := range p.def.jumps(&g.plan) {
		rules, err := jumpsTo(ctx, tool, p.def.table, j.base, present)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			further = append(further, "-D "+j.base+" "+r)
		}
	}
	for _, name := range names {
		further = append(further, "-X "+name)
	}
	return names, tool.Restore(ctx, restore(p.def.table, present, further...))
}

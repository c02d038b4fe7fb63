package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// ruleKernel is what changes rules; *xtables.Tool does it.
type ruleKernel interface {
	Restore(ctx context.Context, input string) error
	EnsureJump(ctx context.Context, table, chain string, first bool, rule ...string) error
	RemoveJumpsTo(ctx context.Context, table, chain string, targets ...string) ([]string, error)
	ChainExists(ctx context.Context, table, chain string) (bool, error)
	DeleteChains(ctx context.Context, table string, chains ...string) error
}

// guard is the guard of one family.
//
// Goals, and how each is met:
//  1. Restrictions are in force before what they are for: entries of early sets follow the union of what is wanted and
//     what is applied, and come in with prepare; what opens a port is in the others, which follow the intersection: it
//     comes in with finish, and goes with prepare.
//  2. Work is what changed: entries are counted by those who want them, and only differences reach the kernel.
//  3. Nothing is there that nobody needs: a part exists while anybody wants something in its gate.
//  4. Without privilege or kernel support the rest of the host goes on: see problems.
type guard struct {
	family ipset.Family
	// tool finds iptables. It is asked once after each resync; what it could not say in one round, it is asked in the next.
	tool func(ctx context.Context) (ruleKernel, error)
	// found and missing are its last answer.
	found   ruleKernel
	missing error
	// others finds what may hold rules that an earlier process put into another backend.
	others func(ctx context.Context, than ruleKernel) []ruleKernel
	sets   setKernel // nil: there is no access to ipsets, for the reason err
	err    error
	log    *slog.Logger
	parts  []*part
	// held is the set of addresses that vipd added.
	held *members
}

// part is a partDef in the kernel.
type part struct {
	def  partDef
	sets []*members
	// ready: the kernel has sets, chain and jumps.
	ready bool
	// looked: it is known whether the kernel has anything of the part.
	looked bool
	// failed is why the part can't be had here; it is not tried again before the next resync.
	failed error
}

// compose makes the parts of a guard that has all else.
func (g *guard) compose() *guard {
	for _, def := range parts() {
		p := &part{def: def}
		for _, s := range def.sets {
			m := newMembers(s, g.sets, g.family)
			if s.name == heldSet {
				g.held = m
			}
			p.sets = append(p.sets, m)
		}
		g.parts = append(g.parts, p)
	}
	return g
}

// want counts f by times more among what is wanted or what is applied.
func (g *guard) want(f *balancer.Frontend, by int, applied bool) {
	for _, p := range g.parts {
		for _, m := range p.sets {
			if m.def.entries == nil {
				continue
			}
			for _, e := range m.def.entries(f) {
				if applied || m.def.early {
					m.want(e, by)
				} else {
					m.ask(e, by)
				}
			}
		}
	}
}

// prepare puts in force what restricts, and closes what shall not be open any more.
func (g *guard) prepare(ctx context.Context) error {
	if !isUnsupported(g.missing) {
		g.missing = nil
	}
	return g.each(func(p *part) error {
		switch {
		case p.needed():
		case p.sets[0].def.early: // what is applied may need it still
			return nil
		default:
			return g.leave(ctx, p)
		}
		if err := g.install(ctx, p); err != nil {
			return err
		}
		for _, m := range slices.Backward(p.sets) { // the gate last: exceptions before the rule
			change := m.withdraw
			if m.def.early {
				change = m.fill
			}
			if err := change(); err != nil {
				return err
			}
		}
		return nil
	})
}

// rules returns what changes rules.
func (g *guard) rules(ctx context.Context) (ruleKernel, error) {
	if g.found != nil || g.missing != nil {
		return g.found, g.missing
	}
	tool, err := g.tool(ctx)
	if err == nil {
		g.found = tool
	}
	g.missing = err
	return g.found, err
}

// finish opens what was applied, and removes what nobody needs.
func (g *guard) finish(ctx context.Context) error {
	return g.each(func(p *part) error {
		if !p.needed() {
			return g.leave(ctx, p)
		}
		if err := g.install(ctx, p); err != nil {
			return err
		}
		for _, m := range slices.Backward(p.sets) {
			if err := m.fill(); err != nil {
				return err
			}
		}
		for _, m := range p.sets {
			if err := m.trim(); err != nil {
				return err
			}
		}
		return nil
	})
}

// each calls do for every part that has not failed, and notes failures. Those that trying again won't mend are problems,
// not errors. Where somebody else has the lock of the tables the other parts are not tried: each would wait for it.
func (g *guard) each(do func(*part) error) error {
	var all []error
	for _, p := range g.parts {
		if p.failed != nil {
			continue
		}
		err := do(p)
		switch {
		case err == nil:
		case isUnsupported(err):
			p.failed = err
		default:
			p.ready, p.looked = false, false // compare in full next time
			all = append(all, fmt.Errorf("putting up the part %s of the guard: %w", p.def.name, err))
			if xtables.IsBusy(err) {
				return errors.Join(all...)
			}
		}
	}
	return errors.Join(all...)
}

// needed reports whether the part has anything to do.
func (p *part) needed() bool { return !p.sets[0].empty() }

// install makes sets, chain and jumps, and compares the sets with what is wanted.
func (g *guard) install(ctx context.Context, p *part) error {
	if p.ready {
		return nil
	}
	if g.sets == nil {
		return g.err
	}
	tool, err := g.rules(ctx)
	if err != nil {
		return err
	}
	for _, m := range p.sets {
		err := m.create()
		if errors.Is(err, ipset.ErrDifferent) { // left by another version
			if err = g.removeRules(ctx, tool, p); err == nil {
				err = errors.Join(m.destroy(ctx), m.create())
			}
		}
		if err != nil {
			return err
		}
	}
	if err := tool.Restore(ctx, p.def.restore(g.family)); err != nil {
		return err
	}
	for _, base := range p.def.bases {
		if err := tool.EnsureJump(ctx, p.def.table, base, true, p.def.jump(g.family)...); err != nil {
			return err
		}
	}
	if !p.looked {
		if err := g.removeOthers(ctx, tool, p); err != nil {
			return err
		}
	}
	p.ready, p.looked = true, true
	g.log.Debug("put up a part of the guard", "part", p.def.name, "family", g.family)
	return nil
}

// leave removes the part if it may be there.
func (g *guard) leave(ctx context.Context, p *part) error {
	if g.sets == nil || p.looked && !p.ready {
		return nil
	}
	if !p.ready {
		present, err := p.present()
		if err != nil {
			return err
		}
		if p.looked = !present; !present {
			return nil
		}
	}
	tool, err := g.rules(ctx)
	if err != nil {
		return err
	}
	if err := g.remove(ctx, tool, p); err != nil {
		return err
	}
	p.ready, p.looked = false, true
	g.log.Debug("removed a part of the guard", "part", p.def.name, "family", g.family)
	return nil
}

// present looks whether any of the part's sets is there.
func (p *part) present() (bool, error) {
	for _, m := range p.sets {
		_, err := m.kernel.Header(m.name)
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, ipset.ErrNotFound):
			return false, err
		}
	}
	return false, nil
}

// remove removes rules, then sets.
func (g *guard) remove(ctx context.Context, tool ruleKernel, p *part) error {
	if err := g.removeRules(ctx, tool, p); err != nil {
		return err
	}
	if !p.looked {
		if err := g.removeOthers(ctx, tool, p); err != nil {
			return err
		}
	}
	for _, m := range p.sets {
		if err := m.destroy(ctx); err != nil {
			return err
		}
	}
	return nil
}

// removeRules removes the jumps, then the chain.
func (g *guard) removeRules(ctx context.Context, tool ruleKernel, p *part) error {
	exists, err := tool.ChainExists(ctx, p.def.table, p.def.chain)
	if err != nil || !exists {
		return err
	}
	for _, base := range p.def.bases {
		if _, err := tool.RemoveJumpsTo(ctx, p.def.table, base, p.def.chain); err != nil {
			return err
		}
	}
	return tool.DeleteChains(ctx, p.def.table, p.def.chain)
}

// removeOthers removes the part's rules from all backends but that of tool.
func (g *guard) removeOthers(ctx context.Context, tool ruleKernel, p *part) error {
	for _, other := range g.others(ctx, tool) {
		if err := g.removeRules(ctx, other, p); err != nil {
			return err
		}
	}
	return nil
}

// intact looks at the headers of the sets of every part that is there.
func (g *guard) intact() (string, error) {
	for _, p := range g.parts {
		if !p.ready {
			continue
		}
		for i, m := range p.sets {
			if reason, err := m.intact(p.def.references(i, g.family)); reason != "" || err != nil {
				return reason, err
			}
		}
	}
	return "", nil
}

// resync makes the next prepare and finish compare in full.
func (g *guard) resync() {
	g.found, g.missing = nil, nil
	for _, p := range g.parts {
		p.ready, p.looked, p.failed = false, false, nil
	}
}

// problems says which parts can't be had while they are needed.
func (g *guard) problems() []balancer.Problem {
	var out []balancer.Problem
	for _, p := range g.parts {
		if p.failed != nil && p.needed() {
			out = append(out, balancer.Problem{Severity: p.def.severity, Text: fmt.Sprintf("%s (%s): %v", p.def.loss, g.family, p.failed)})
		}
	}
	return out
}

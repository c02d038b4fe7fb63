package guard

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/xtables"
)

// Tool is what changes rules; *xtables.Tool does it.
type Tool interface {
	Restore(ctx context.Context, input string) error
	Rules(ctx context.Context, table, chain string) ([]string, error)
	ChainExists(ctx context.Context, table, chain string) (bool, error)
}

// legacy is the guard of one family in iptables and ipsets, for kernels without nf_tables.
//
// Goals, and how each is met:
//  1. Restrictions are in force before what they are for: entries of early sets follow the union of what is wanted and
//     what is applied, and come in with prepare; what opens a port is in the others, which follow the intersection: it
//     comes in with finish, and goes with prepare. Where an applied frontend is unknown, its entries stay.
//  2. Work is what changed: entries are counted by those who want them, and only differences reach the kernel. Rules
//     change with the networks that cover all VIPs, and with the host's interfaces.
//  3. Traffic for no VIP pays nearly nothing: see plan and cover.
//  4. Without privilege or kernel support the rest of the host goes on: see problems.
type legacy struct {
	*wanted
	// tool finds iptables. It is asked once after each resync; what it could not say in one round, it is asked in the next.
	tool func(ctx context.Context) (Tool, error)
	// found and missing are its last answer.
	found   Tool
	missing error
	// others finds what may hold rules that an earlier process put into another variant.
	others func(ctx context.Context, than Tool) []Tool
	// native removes what a guard in nf_tables has left; nil means there can be none.
	native func() error
	// watch looks at rules, for intact.
	watch ruleWatch
	sets  setMaker // nil means there is no access to ipsets, for the reason err
	err   error

	parts []*part
	// plan is what the rules are made for, and stale, that those in the kernel may be for another.
	plan  plan
	stale bool
	// refit: the networks have to cover others than before.
	refit bool

	// ready: the sets are there, and were compared; looked: it is known whether the kernel has anything of the guard.
	ready, looked bool
	// failed is why nothing can be had here; it is not tried again before the next resync.
	failed error
	// fault is why the guard was not put up or changed the last time; nil means it was.
	fault error
}

// part is a partDef in the kernel.
type part struct {
	def partDef
	// chains are those that the kernel has, and jumps what leads to them; nil means not compared yet.
	chains []xtables.Chain
	jumps  []jump
	// refusals are what is known of the kernel's refusing the part.
	refusals refusals
	// failed is why the guard does without the part for now; it is tried again from time to time.
	failed error
}

// forget has the part compared in full.
func (p *part) forget() { p.chains, p.jumps = nil, nil }

// compose makes the parts of a guard that has all else.
func (g *legacy) compose(w *wanted) *legacy {
	g.wanted = w
	g.plan = plan{family: w.family, bits: w.bits, mode: w.mode, sources: true}
	w.set(allowedSet).disjoint = false
	w.on(g.sets, func(name string) string { return setName(name, w.family) })
	for _, def := range parts() {
		g.parts = append(g.parts, &part{def: def})
	}
	g.obey()
	return g
}

// obey has the rules follow the mode and the interfaces that are wanted. Virtual servers forward past the place where both
// interfaces are known, see masqueradeChains.
func (g *legacy) obey() {
	names := make([]string, 0, len(g.interfaces))
	for _, i := range g.interfaces {
		if plainName.MatchString(i.Name) && g.mode.Forward && !g.mode.LocalIn {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	if slices.Equal(g.plan.interfaces, names) && g.plan.mode == g.mode {
		return
	}
	if g.plan.mode != g.mode {
		g.refit = g.refit || g.plan.mode.Marked != g.mode.Marked
		g.found = nil // more has to be tried
	}
	g.plan.mode, g.plan.interfaces, g.stale = g.mode, names, true
}

// plainName is what an interface's name has to be to stand in a rule of iptables as it is: a + at its end would stand for
// any end.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_.:@][A-Za-z0-9_.:@-]*$`)

// wants reports whether the guard has any use for the part.
func (g *legacy) wants(p *part) bool {
	if p.def.special && g.plan.mode.Marked && len(g.special.count) == 0 && len(g.special.have) == 0 {
		return false
	}
	if p.def.direct && len(g.plan.direct) == 0 {
		return false
	}
	if p.def.clamps && len(g.plan.clamps) == 0 {
		return false
	}
	if p.def.others && len(g.plan.owned) == 0 && !g.plan.roaming {
		return false
	}
	return g.plan.mode.Forward || !p.def.forward
}

// prepare puts in force what restricts, and closes what shall not be open any more.
func (g *legacy) prepare(ctx context.Context) error {
	if !isUnsupported(g.missing) {
		g.missing = nil
	}
	if !g.needed() { // what is applied may need it still
		return nil
	}
	return g.note(g.establish(ctx))
}

// finish opens what was applied, and removes what is not needed.
func (g *legacy) finish(ctx context.Context) error {
	if !g.needed() {
		return g.note(g.leave(ctx))
	}
	err := g.note(g.establish(ctx))
	if err != nil || g.failed != nil {
		return err
	}
	return g.note(g.syncSets(ctx))
}

// note keeps what trying again won't mend for problems, and has all else compared in full the next time.
func (g *legacy) note(err error) error {
	g.fault = err
	switch {
	case err == nil:
		return nil
	case isUnsupported(err):
		g.failed = err
		return nil
	}
	g.forget()
	return fmt.Errorf("putting up the guard (%s): %w", g.family, err)
}

// forget has all compared in full.
func (g *legacy) forget() {
	g.ready, g.looked = false, false
	for _, m := range g.members {
		m.state = unseen
	}
	for _, p := range g.parts {
		p.forget()
	}
}

// establish makes sets and rules, and puts in what restricts.
func (g *legacy) establish(ctx context.Context) error {
	if g.failed != nil {
		return nil
	}
	if g.sets == nil {
		return g.err
	}
	tool, err := g.rules(ctx)
	if err != nil {
		return err
	}
	if err := g.makeSets(ctx, tool); err != nil {
		return err
	}
	g.cover(!g.ready || g.refit)
	g.refit = false
	if err := g.restrict(); err != nil {
		return err
	}
	if err := g.bringAll(ctx, tool); err != nil {
		return err
	}
	if err := g.removeOthers(ctx, tool); err != nil {
		return err
	}
	g.ready, g.looked, g.stale = true, true, false
	return nil
}

// bringAll brings every part, where any is not as it should be, and looks what came of it.
func (g *legacy) bringAll(ctx context.Context, tool Tool) error {
	if !slices.ContainsFunc(g.parts, g.due) {
		return nil
	}
	for _, table := range tables() {
		if err := g.watch.writing(ctx, tool, table); err != nil {
			return err
		}
	}
	if err := g.bringParts(ctx, tool); err != nil {
		return err
	}
	return g.wrote(ctx, tool)
}

// bringParts brings every part: at once, or, where that is refused or a part was before, one by one.
func (g *legacy) bringParts(ctx context.Context, tool Tool) error {
	if !slices.ContainsFunc(g.parts, func(p *part) bool { return !p.refusals.since.IsZero() }) {
		if err := write(ctx, tool, g.parts, g.change); !isRefused(err) {
			return err
		}
	}
	var all []error
	for _, p := range g.parts {
		if err := g.bring(ctx, tool, p); err != nil {
			all = append(all, err)
		}
		if len(all) > 0 && xtables.IsBusy(all[len(all)-1]) {
			break // each of the others would wait for the lock
		}
	}
	return errors.Join(all...)
}

// due reports whether there may be something to do about a part.
func (g *legacy) due(p *part) bool {
	return g.stale || !g.looked || !p.refusals.since.IsZero() || g.wants(p) != (p.chains != nil)
}

// rules returns what changes rules.
func (g *legacy) rules(ctx context.Context) (Tool, error) {
	if g.found != nil || g.missing != nil {
		return g.found, g.missing
	}
	tool, err := g.tool(ctx)
	g.missing = err
	if err != nil {
		return nil, err
	}
	if g.plan.mode.Forward && slices.ContainsFunc(g.parts, func(p *part) bool { return p.def.table == "nat" }) {
		if err := g.try(ctx, tool); err != nil {
			g.missing = err
			return nil, err
		}
	}
	g.found = tool
	return tool, nil
}

// intact looks for entries that are gone, by counts alone, and for rules and jumps that are others.
func (g *legacy) intact(ctx context.Context) (string, error) {
	if !g.ready || g.failed != nil {
		return "", nil
	}
	for _, m := range g.members {
		if !g.has(m) {
			continue
		}
		if reason, err := m.intact(g.sets); reason != "" || err != nil {
			return reason, err
		}
	}
	return g.rulesIntact(ctx)
}

// rulesIntact looks for rules and jumps that are gone or others.
func (g *legacy) rulesIntact(ctx context.Context) (string, error) {
	for _, table := range tables() {
		if g.sizes(table) == nil {
			continue
		}
		if reason, err := g.watch.look(ctx, g.found, table); reason != "" || err != nil {
			return inTable(reason, table, g.family), err
		}
	}
	return "", nil
}

func inTable(reason, table string, family inet.Family) string {
	if reason == "" {
		return ""
	}
	return fmt.Sprintf("table %s (%s): %s", table, family, reason)
}

// resync makes the next prepare and finish compare in full.
func (g *legacy) resync() {
	g.found, g.missing, g.failed = nil, nil, nil
	for _, p := range g.parts {
		p.failed = nil
		p.refusals.due = time.Time{}
	}
	g.forget()
}

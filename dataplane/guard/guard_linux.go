package guard

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// Guard is the guard of both families. Its methods are for one goroutine at a time.
type Guard struct {
	families [2]*family // IPv4 and IPv6
	sets     *ipset.Conn
}

// New returns a guard of which nothing is wanted. It changes nothing in the kernel; Close closes what it opens there.
func New(o Options) *Guard {
	g := &Guard{}
	var kernel setKernel
	sets, noSets := ipset.Open()
	if noSets == nil {
		g.sets, kernel = sets, sets
	}
	for i, f := range []ipset.Family{ipset.IPv4, ipset.IPv6} {
		y := &family{family: f, sets: kernel, err: noSets, tool: o.tool(f), others: otherTools(f), watch: newWatch(), log: o.Log}
		g.families[i] = y.compose(o)
	}
	return g
}

// Close closes what New opened; what is in the kernel stays.
func (g *Guard) Close() {
	if g.sets != nil {
		g.sets.Close()
	}
}

// tool finds iptables when the guard needs it.
func (o Options) tool(f ipset.Family) func(context.Context) (Tool, error) {
	if o.Tools != nil {
		return func(ctx context.Context) (Tool, error) { return o.Tools(ctx, xtables.Family(f)) }
	}
	return func(ctx context.Context) (Tool, error) {
		t, err := xtables.Find(ctx, xtables.Family(f), o.Backend, o.Log)
		if err != nil {
			return nil, err // a nil *xtables.Tool in an interface would not be nil
		}
		return t, nil
	}
}

// otherTools finds the backends that an earlier process may have used.
func otherTools(family ipset.Family) func(context.Context, Tool) []Tool {
	return func(ctx context.Context, than Tool) []Tool {
		var others []Tool
		for _, t := range xtables.Existing(ctx, xtables.Family(family)) {
			if used, ok := than.(*xtables.Tool); ok && used.Backend() != t.Backend() {
				others = append(others, t)
			}
		}
		return others
	}
}

// of is the guard of the address's family.
func (g *Guard) of(a netip.Addr) *family {
	if a.Is4() {
		return g.families[0]
	}
	return g.families[1]
}

// Want counts f by times more among the wanted frontends, or among the applied ones.
func (g *Guard) Want(f *balancer.Frontend, by int, applied bool) { g.of(f.Addr).want(f, by, applied) }

// Hold counts an address that vipd adds: it answers on the ports of services alone.
func (g *Guard) Hold(a netip.Addr, by int) { g.of(a).hold(a, by) }

// Silence counts a held address that does not answer yet.
func (g *Guard) Silence(a netip.Addr, by int) { g.of(a).pending.want(ipset.Entry{Addr: a}, by) }

// Holds reports whether any address of a family is held.
func (g *Guard) Holds(a netip.Addr) bool { return len(g.of(a).held.count) > 0 }

// Knows reports whether any frontend of the address's family is wanted or applied.
func (g *Guard) Knows(a netip.Addr) bool { return len(g.of(a).vips.count) > 0 }

// SetMode says what the mode does. It reports whether that is news: then Connect has to follow.
func (g *Guard) SetMode(m dataplane.Needs) (news bool) {
	for _, y := range g.families {
		news = y.setMode(m) || news
	}
	return news
}

// Connect sets the interfaces, by name, that packets are forwarded between; the next Prepare or Refresh obeys.
func (g *Guard) Connect(names []string) {
	for _, y := range g.families {
		y.connect(names)
	}
}

// Prepare puts in force what restricts, and closes what shall not be open any more. It returns an error or nil for IPv4 and
// for IPv6: addresses of a family with an error must not be added, for all their ports would be open.
func (g *Guard) Prepare(ctx context.Context) (failed [2]error) {
	for i, y := range g.families {
		failed[i] = y.prepare(ctx)
	}
	return failed
}

// Finish opens what was applied, and removes what nothing needs.
func (g *Guard) Finish(ctx context.Context) error {
	var all []error
	for _, y := range g.families {
		all = append(all, y.finish(ctx))
	}
	return errors.Join(all...)
}

// Refresh follows Connect where the guard stands. What can't be done is left to the next Prepare.
func (g *Guard) Refresh(ctx context.Context) error {
	var all []error
	for _, y := range g.families {
		all = append(all, y.refresh(ctx))
	}
	return errors.Join(all...)
}

// Intact says what others have changed of the guard; "": nothing that it noticed. What the kernel has refused it tries again
// when that is due, and mended reports that something was taken.
func (g *Guard) Intact(ctx context.Context) (reason string, mended bool, err error) {
	for _, y := range g.families {
		mended = y.retry(ctx) || mended
	}
	for _, y := range g.families {
		if reason, err := y.intact(ctx); reason != "" || err != nil {
			return reason, mended, err
		}
	}
	return "", mended, nil
}

// Ready says why a frontend must not be applied yet; nil: it may be. One with source ranges waits until the guard of its
// family stands and knows it. Where the guard can't be had, only a dataplane that enforces source ranges by itself serves it;
// what was served within the same source ranges before goes on.
func (g *Guard) Ready(c dataplane.Change, enforced bool) error {
	if unrestricted(c) {
		return nil
	}
	return g.of(c.New.Addr).restricts(c.New, enforced)
}

// Problems says what of the guard can't be had while it is needed.
func (g *Guard) Problems() []balancer.Problem {
	return slices.Concat(g.families[0].problems(), g.families[1].problems())
}

// Resync makes the next Prepare and Finish compare with the kernel in full.
func (g *Guard) Resync() {
	for _, y := range g.families {
		y.resync()
	}
}

package guard

import (
	"context"
	"errors"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/nft"
	"vipd/dataplane/internal/xtables"
)

// Guard is the guard of both families. Its methods are for one goroutine at a time.
type Guard struct {
	families [2]*family  // IPv4 and IPv6
	sets     *ipset.Conn // nil where there are none
	conns    []*nft.Conn
	restarts *restarts
}

// family is the guard of one family.
type family struct {
	*wanted
	// form is how it stands in the kernel; nil means that it is not chosen yet.
	form form
	// choose finds out which form works here.
	choose func() form
}

// form is how a guard stands in the kernel: in nf_tables, or in iptables and ipsets.
type form interface {
	// prepare puts in force what restricts, and closes what shall not be open any more.
	prepare(ctx context.Context) error
	// finish opens what was applied, and removes what is not needed.
	finish(ctx context.Context) error
	// obey has the next prepare follow the mode and the interfaces.
	obey()
	// refresh makes the rules what obey has made others, where the guard stands.
	refresh(ctx context.Context) error
	// retry tries again what the kernel has refused and is due, and reports whether it was taken.
	retry(ctx context.Context) (mended bool)
	// intact says what others have changed.
	intact(ctx context.Context) (string, error)
	// restricts says why what restricts f is not in force; nil means it is, or it is unavailable and the dataplane enforces it by itself.
	restricts(f *balancer.Frontend, enforced bool) error
	// problems says what is needed and unavailable.
	problems() []balancer.Problem
	// resync has all compared in full.
	resync()
}

// New returns a guard of which nothing is wanted. It changes nothing in the kernel; Close closes what it opens there.
func New(o Options) *Guard {
	g := &Guard{restarts: newRestarts(o.Log)}
	sets, noSets := ipset.Open()
	if noSets == nil {
		g.sets = sets
	}
	for i, f := range inet.Families() {
		w := newWanted(f, o)
		g.families[i] = &family{wanted: w, choose: func() form { return g.choose(w, o, noSets) }}
	}
	return g
}

// choose returns the form in nf_tables, unless the legacy variant is asked for or the kernel can't do it. What the other form
// has left goes once the one that is chosen stands.
func (g *Guard) choose(w *wanted, o Options, noSets error) form {
	conn, err := nft.Open()
	if err == nil {
		g.conns = append(g.conns, conn)
		former := newWanted(w.family, Options{Mode: dataplane.Needs{Forward: true}, MasqueradeBit: o.MasqueradeBit, Log: o.Log})
		n := newNative(w, conn, newAcceptor(w, o, conn), func(ctx context.Context) error {
			err := newLegacy(former, o, g.sets, noSets).leave(ctx)
			if isUnsupported(err) { // where there are no ipsets or no iptables, no guard can stand in them
				o.Log.Debug("no guard of an earlier version is looked for", "family", w.family, "err", err)
				return nil
			}
			return err
		})
		n.dead = func(some bool) { g.restarts.watch(w.family, some) }
		if o.Variant == xtables.Legacy {
			err = errors.New("iptables.backend is legacy")
		} else if err = n.try(); err == nil {
			err = conn.Listen()
		}
		if err == nil {
			return n
		}
	}
	o.Log.Debug("the guard stands in iptables and ipsets", "family", w.family, "err", err)
	l := newLegacy(w, o, g.sets, noSets)
	if conn != nil {
		l.native = func() error {
			if _, err := conn.Generation(); err != nil {
				return nil //nolint:nilerr // a kernel without nf_tables has none
			}
			return (&nft.Owned{Conn: conn, Table: newLayout(w.family).table}).Remove()
		}
	}
	return l
}

// newLegacy is the guard of a family in iptables and ipsets, for which sets is nil where there are none for a reason.
func newLegacy(w *wanted, o Options, sets *ipset.Conn, reason error) *legacy {
	g := &legacy{err: reason, tool: o.tool(w.family), others: otherTools(w.family), watch: newWatch()}
	if sets != nil {
		g.sets = sets
	}
	return g.compose(w)
}

// formed is the form that works here.
func (y *family) formed() form {
	if y.form == nil {
		y.form = y.choose()
	}
	return y.form
}

// Close closes what New opened; what is in the kernel stays.
func (g *Guard) Close() {
	g.restarts.close()
	if g.sets != nil {
		g.sets.Close()
	}
	for _, c := range g.conns {
		_ = c.Close() // nothing depends on it any more
	}
}

// tool finds iptables when the guard needs it.
func (o Options) tool(f inet.Family) func(context.Context) (Tool, error) {
	if o.Tools != nil {
		return func(ctx context.Context) (Tool, error) { return o.Tools(ctx, f) }
	}
	return func(ctx context.Context) (Tool, error) {
		t, err := xtables.Find(ctx, f, o.Variant, o.Log)
		if err != nil {
			return nil, err // a nil *xtables.Tool in an interface would not be nil
		}
		return t, nil
	}
}

// otherTools finds the variants that an earlier process may have used.
func otherTools(family inet.Family) func(context.Context, Tool) []Tool {
	return func(ctx context.Context, than Tool) []Tool {
		var others []Tool
		for _, t := range xtables.Existing(ctx, family) {
			if used, ok := than.(*xtables.Tool); ok && used.Variant() != t.Variant() {
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

// Own counts an address that one host of several has: frontends on it serve while this is the one. It answers on the ports of services
// alone, as a held one does.
func (g *Guard) Own(a netip.Addr, by int) {
	g.of(a).own(a, by)
}

// Silence counts a held address that does not answer yet.
func (g *Guard) Silence(a netip.Addr, by int) { g.of(a).pending.want(ipset.Entry{Addr: a}, by) }

// Holds reports whether any address of a family is held.
func (g *Guard) Holds(a netip.Addr) bool { return len(g.of(a).held.count) > 0 }

// Knows reports whether any frontend of the address's family is wanted or applied.
func (g *Guard) Knows(a netip.Addr) bool { return len(g.of(a).frontends.count) > 0 }

// Roams reports whether connections to any frontend come from other hosts.
func (g *Guard) Roams() bool { return g.families[0].answers.some() || g.families[1].answers.some() }

// SetMode says what the mode does. It reports whether that is news: then Connect has to follow.
func (g *Guard) SetMode(m dataplane.Needs) (news bool) {
	for _, y := range g.families {
		news = y.setMode(m) || news
	}
	if news {
		g.obey()
	}
	return news
}

// Connect sets the interfaces that packets are forwarded between; the next Prepare or Refresh obeys.
func (g *Guard) Connect(interfaces []Interface) {
	for _, y := range g.families {
		y.connect(interfaces)
	}
	g.obey()
}

func (g *Guard) obey() {
	for _, y := range g.families {
		if y.form != nil {
			y.form.obey()
		}
	}
}

// Prepare puts in force what restricts, and closes what shall not be open any more. It returns an error or nil for IPv4 and
// for IPv6: addresses of a family with an error must not be added, for all their ports would be open.
func (g *Guard) Prepare(ctx context.Context) (failed [2]error) {
	for i, y := range g.families {
		failed[i] = y.formed().prepare(ctx)
	}
	return failed
}

// Finish opens what was applied, and removes what nothing needs.
func (g *Guard) Finish(ctx context.Context) error {
	var all []error
	for _, y := range g.families {
		all = append(all, y.formed().finish(ctx))
	}
	return errors.Join(all...)
}

// Refresh follows Connect where the guard stands. What can't be done is left to the next Prepare.
func (g *Guard) Refresh(ctx context.Context) error {
	var all []error
	for _, y := range g.families {
		if y.form != nil {
			all = append(all, y.form.refresh(ctx))
		}
	}
	return errors.Join(all...)
}

// Intact says what others have changed of the guard; "" means nothing that it noticed. What the kernel has refused it tries again
// when that is due, and mended reports that something was taken.
func (g *Guard) Intact(ctx context.Context) (reason string, mended bool, err error) {
	for _, y := range g.families {
		mended = y.form != nil && y.form.retry(ctx) || mended
	}
	for _, y := range g.families {
		if y.form == nil {
			continue
		}
		found, also := y.form.intact(ctx)
		if err = errors.Join(err, also); found != "" {
			return found, mended, err
		}
	}
	return "", mended, err
}

// Ready says why a frontend must not be applied yet; nil means it may be. One with source ranges, or on an address that another host
// may have, waits until the guard of its family stands and knows it. Where the guard is unavailable, only a dataplane that enforces
// source ranges by itself serves it; what was served within the same source ranges before goes on.
func (g *Guard) Ready(c dataplane.Change, enforced bool) error {
	y := g.of(c.New.Addr)
	if y.unrestricted(c) {
		return nil
	}
	return y.formed().restricts(c.New, enforced)
}

// Problems says which parts of the guard are needed and unavailable.
func (g *Guard) Problems() (all []balancer.Problem) {
	for _, y := range g.families {
		if y.form != nil {
			all = append(all, y.form.problems()...)
		}
	}
	return all
}

// Resync makes the next Prepare and Finish compare with the kernel in full.
func (g *Guard) Resync() {
	for _, y := range g.families {
		if y.form != nil {
			y.form.resync()
		}
	}
}

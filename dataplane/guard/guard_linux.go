package guard

import (
	"context"
	"errors"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// Guard is the guard of both families. Its methods are for one goroutine at a time.
type Guard struct {
	families [2]*family // IPv4 and IPv6
	restarts *restarts
}

// New returns a guard of which nothing is wanted. It changes nothing in the kernel.
func New(o Options) *Guard {
	g := &Guard{restarts: newRestarts(o.Log)}
	for i, f := range inet.Families() {
		g.families[i] = newFamily(newWanted(f, o), newAcceptor(f, o))
		g.families[i].dead = func(some bool) { g.restarts.watch(f, some) }
	}
	return g
}

// Close ends the guard's connections; what is in the kernel stays.
func (g *Guard) Close() {
	g.restarts.close()
	for _, y := range g.families {
		y.close()
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
func (g *Guard) Silence(a netip.Addr, by int) { g.of(a).pending.want(entry{Addr: a}, by) }

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
		y.obey()
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

// Intact says what others have changed of the guard; "" means nothing that it noticed. What the kernel has refused it tries again
// when that is due, and mended reports that something was taken.
func (g *Guard) Intact(ctx context.Context) (reason string, mended bool, err error) {
	for _, y := range g.families {
		mended = y.retry(ctx) || mended
	}
	for _, y := range g.families {
		found, also := y.intact(ctx)
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
	return y.restricts(c.New, enforced)
}

// Problems says which parts of the guard are needed and unavailable.
func (g *Guard) Problems() (all []balancer.Problem) {
	for _, y := range g.families {
		all = append(all, y.problems()...)
	}
	return all
}

// Resync makes the next Prepare and Finish compare with the kernel in full.
func (g *Guard) Resync() {
	for _, y := range g.families {
		y.resync()
	}
}

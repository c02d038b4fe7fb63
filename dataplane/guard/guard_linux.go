package guard

import (
	"context"
	"errors"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
)

// Guard is the guard of both families. Calls to its methods must not overlap.
type Guard struct {
	families [2]*familyGuard // IPv4 and IPv6
	restarts *restarts
}

// New returns a guard without frontends. It changes nothing in the kernel.
func New(o Options) *Guard {
	g := &Guard{restarts: newRestarts(o.Log)}
	for i, f := range inet.Families() {
		g.families[i] = newFamily(newWanted(f, o), newAcceptor(f, o))
		g.families[i].dead = func(some bool) { g.restarts.watch(f, some) }
	}
	return g
}

// Close closes the guard's connections. It leaves the kernel's state unchanged.
func (g *Guard) Close() {
	g.restarts.close()
	for _, y := range g.families {
		y.close()
	}
}

func (g *Guard) of(a netip.Addr) *familyGuard {
	if a.Is4() {
		return g.families[0]
	}
	return g.families[1]
}

// Want adds the argument by to the reference count of each set entry that f needs. If applied is
// set, f counts as an applied frontend, otherwise as a desired frontend.
func (g *Guard) Want(f *balancer.Frontend, by int, applied bool) { g.of(f.Addr).want(f, by, applied) }

// Hold adds the argument by to the reference count of a held address, which vipd adds to the host.
// A held address answers only on the ports of services.
func (g *Guard) Hold(a netip.Addr, by int) { g.of(a).hold(a, by) }

// Own adds the argument by to the reference count of an address that only one of several hosts has
// at a time. Its frontends serve clients while this host has the address. Like a held address, it
// answers only on the ports of services.
func (g *Guard) Own(a netip.Addr, by int) {
	g.of(a).own(a, by)
}

// Silence adds the argument by to the reference count of a held address that must not answer yet.
func (g *Guard) Silence(a netip.Addr, by int) { g.of(a).pending.want(setEntry{Addr: a}, by) }

// Holds reports whether any address of a's family is held.
func (g *Guard) Holds(a netip.Addr) bool { return len(g.of(a).held.count) > 0 }

// Knows reports whether any frontend of a's family is desired or applied.
func (g *Guard) Knows(a netip.Addr) bool { return len(g.of(a).frontends.count) > 0 }

// HasMovable reports whether connections to any frontend may move here from other hosts.
func (g *Guard) HasMovable() bool {
	return g.families[0].answers.nonEmpty() || g.families[1].answers.nonEmpty()
}

// SetMode sets the mode's requirements. If they have changed, it returns true and the caller must
// call SetInterfaces.
func (g *Guard) SetMode(m dataplane.Needs) (news bool) {
	for _, y := range g.families {
		news = y.setMode(m) || news
	}
	if news {
		g.markStale()
	}
	return news
}

// SetInterfaces sets the interfaces between which packets are forwarded, and whether a route has
// its own MTU. The next Prepare or Refresh applies them.
func (g *Guard) SetInterfaces(interfaces []Interface, routeMTU bool) {
	for _, y := range g.families {
		y.setInterfaces(interfaces, routeMTU)
	}
	g.markStale()
}

// SetFastPathDevices sets the devices that exist and that the fast path may use. The caller must
// call SetInterfaces afterwards.
func (g *Guard) SetFastPathDevices(names []string) {
	for _, y := range g.families {
		y.fast.present = names
	}
}

func (g *Guard) markStale() {
	for _, y := range g.families {
		y.markStale()
	}
}

// Prepare adds restrictions, and closes ports that the desired frontends do not open. It returns
// IPv4's and IPv6's errors separately. After an error, do not add addresses of that family, because
// all their ports would be open.
func (g *Guard) Prepare(ctx context.Context) (failed [2]error) {
	for i, y := range g.families {
		failed[i] = y.prepare(ctx)
	}
	return failed
}

// Finish opens the applied ports and removes unused objects.
func (g *Guard) Finish(ctx context.Context) error {
	var all []error
	for _, y := range g.families {
		all = append(all, y.finish(ctx))
	}
	return errors.Join(all...)
}

// Refresh applies the last SetInterfaces to the tables that exist. If it fails, the next Prepare
// applies them.
func (g *Guard) Refresh(ctx context.Context) error {
	var all []error
	for _, y := range g.families {
		all = append(all, y.refresh(ctx))
	}
	return errors.Join(all...)
}

// Intact describes a change to the guard by another program, or returns "". It also retries rules
// that iptables refused. mended reports whether a retry succeeded.
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

// Ready returns the reason why a frontend must not be applied yet, or nil. A frontend waits if it
// has source ranges or an address that another host may have. It waits until its family's guard is
// complete and contains the frontend. If the guard is unavailable, only a dataplane that enforces
// source ranges itself may serve the frontend. A frontend that is already served with the same
// source ranges does not wait.
func (g *Guard) Ready(c dataplane.Change, enforced bool) error {
	y := g.of(c.New.Addr)
	if y.unrestricted(c) {
		return nil
	}
	return y.restricts(c.New, enforced)
}

// Problems returns a problem for each required part of the guard that is unavailable.
func (g *Guard) Problems() (all []balancer.Problem) {
	for _, y := range g.families {
		all = append(all, y.problems()...)
	}
	return append(all, g.families[0].fast.problems(g.families[0].mode)...)
}

// Resync makes the next Prepare and Finish compare everything with the kernel.
func (g *Guard) Resync() {
	for _, y := range g.families {
		y.resync()
	}
}

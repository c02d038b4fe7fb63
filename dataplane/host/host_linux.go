package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
)

// Host implements dataplane.Host. Of its methods, Problems, Addresses, LocalAddresses, FollowAddresses and Alerts may be
// called by any goroutine at any time; the others by one at a time.
type Host struct {
	*state
	*routes
	*announcer
	*tuning
	*observer
	*mover

	// busy gets the errors of the addresses that are being added while the mode writes its rules; nil means that none are.
	busy chan error
	// inherited: the ledger of an earlier process had addresses when this one began.
	inherited bool
	public    atomic.Pointer[public]
}

var (
	_ dataplane.Host = (*Host)(nil)
)

// public is what other goroutines may see.
type public struct {
	addresses snap.Map[netip.Addr, shown]
	wanted    snap.Map[balancer.Key, *balancer.Frontend]
	other     []balancer.Problem
}

// New opens what a Host needs of the kernel; it changes nothing. What an earlier process left according to the ledger
// is taken over.
func New(o Options) (*Host, error) {
	st, err := newState(o.withDefaults())
	if err != nil {
		return nil, err
	}
	h := assemble(st)
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil {
		return nil, errors.Join(fmt.Errorf("asking for the kernel's version: %w", err), st.closeSockets())
	}
	h.release = unix.ByteSliceToString(system.Release[:])
	for a := range h.ledger.Addresses {
		h.showOurs(a, true)
		h.guard.Hold(a, 1)
	}
	h.inherited = len(h.ledger.Addresses) > 0
	h.publish()
	return h, nil
}

// assemble makes a Host of parts that share a state.
func assemble(st *state) *Host {
	rs, an := &routes{state: st}, &announcer{state: st}
	ob := &observer{state: st, routes: rs, announcer: an}
	return &Host{
		state: st, routes: rs, announcer: an, observer: ob,
		tuning: &tuning{state: st}, mover: &mover{state: st, routes: rs, observer: ob},
	}
}

// Inherited reports whether an earlier process has left addresses that were still held when this one began.
func (h *Host) Inherited() bool { return h.inherited }

// Close closes what New opened; what is held stays.
func (h *Host) Close() error {
	failed := h.await()
	h.guard.Close()
	return errors.Join(failed, h.closeSockets())
}

// Refuse has the addresses that vipd holds refuse new connections, while what is established goes on: for the time in
// which a dataplane is closed, when no other program is to answer in its place. Release follows.
func (h *Host) Refuse(ctx context.Context) error { return h.Prepare(ctx, balancer.Desired{}) }

// Release removes all that this Host holds and made, as if nothing were wanted: the addresses first, which refuse new
// connections by then, and the guard after them.
func (h *Host) Release(ctx context.Context) error {
	h.Resync(true)
	none := balancer.Desired{}
	return errors.Join(h.Prepare(ctx, none), h.Finish(ctx, none.Frontends))
}

// SetMode says what the mode in use does; the next Prepare obeys. It may be called by any goroutine.
func (h *Host) SetMode(m dataplane.Needs) { h.mode.Store(&m) }

// obey gives the guards what they depend on besides frontends: whether packets are forwarded, and between which
// interfaces.
func (h *Host) obey() {
	mode := *h.mode.Load()
	if h.guard.SetMode(mode) {
		h.relinked = true
	}
	if !h.relinked {
		return
	}
	h.guard.Connect(h.view.interfaces())
	h.relinked = false
}

// Prepare makes restrictions and addresses of what is wanted. Where the mode forwards, many addresses may still be on
// their way when it returns; Finish waits for them.
func (h *Host) Prepare(ctx context.Context, want balancer.Desired) error {
	if err := h.await(); err != nil {
		return err
	}
	if err := h.updateView(); err != nil {
		return err
	}
	h.downed = false
	for _, c := range snap.Diff(h.want.Frontends, want.Frontends) {
		h.weigh(c, false)
	}
	for a, c := range snap.Diff(h.want.Addresses, want.Addresses) {
		r := h.at(a)
		r.wanted = c.HasNew
		h.mark(r)
	}
	for a, c := range snap.Diff(h.want.VIPStates, want.VIPStates) {
		r := h.at(a)
		r.standing = c.New
		h.mark(r)
		h.closeOwned(a, c)
	}
	h.want = want
	h.obey()
	return errors.Join(h.holdWanted(ctx), ctx.Err())
}

// closeOwned has the guard keep this host silent about an address that vipd owner brings, until it is here, and close the host's own
// ports on it.
func (h *Host) closeOwned(a netip.Addr, c snap.Change[balancer.VIPState]) {
	if c.Old == balancer.Owned {
		h.guard.Own(a, -1)
	}
	if c.New == balancer.Owned {
		h.guard.Own(a, 1)
	}
}

// weigh counts what a frontend puts into the guard's sets.
func (h *Host) weigh(c snap.Change[*balancer.Frontend], applied bool) {
	if c.HadOld {
		h.guard.Want(c.Old, -1, applied)
	}
	if c.HasNew {
		h.guard.Want(c.New, 1, applied)
	}
}

// Finish opens what was applied, and removes the addresses that nothing needs.
func (h *Host) Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	all := []error{h.await()}
	late := false
	for _, c := range snap.Diff(h.applied, applied) {
		h.weigh(c, true)
		if r := h.count(c.New, 1); r != nil && r.lateFor(applied) {
			h.mark(r)
			late = true
		}
		h.count(c.Old, -1)
	}
	h.applied = applied
	all = append(all, h.removeUnneeded(ctx))
	if late {
		all = append(all, h.holdWanted(ctx), h.await())
	}
	all = append(all, h.guard.Finish(ctx))
	h.announceAll()
	all = append(all, h.clear(), h.ledger.save())
	h.publish()
	return errors.Join(all...)
}

// count keeps the number of applied frontends on a VIP. It returns the VIP's record.
func (h *Host) count(f *balancer.Frontend, by int) *address {
	if f == nil || f.NodePort {
		return nil
	}
	r := h.at(f.Addr)
	switch r.applied += by; {
	case r.applied > 0:
		h.setSilent(r, false)
	case !r.wanted:
		h.mark(r)
	}
	return r
}

// Ready implements dataplane.Host: a frontend with source ranges is not applied before the guard of its family stands and
// knows it. An address that vipd adds waits for the guard itself, but those of the host, of node ports, and those that
// are routed to it are there anyway. Where the guard is unavailable, only a dataplane that restricts by itself serves it; what
// was served within the same source ranges before goes on.
func (h *Host) Ready(c dataplane.Change, enforced bool) error {
	return h.guard.Ready(c, enforced)
}

// Resync makes the next Prepare and Finish compare the guard with the kernel in full, and with addresses also these. Without, they
// are as the kernel's events tell.
func (h *Host) Resync(addresses bool) {
	h.full = h.full || addresses
	h.ledger.changed = true // its file may have been removed
	h.guard.Resync()
}

// publish shows the state to other goroutines.
func (h *Host) publish() {
	p := &public{addresses: h.shown, wanted: h.want.Frontends, other: slices.Concat(h.arp, h.unforwarded, h.untuned, h.unfinished(), h.guard.Problems())}
	h.public.Store(p)
}

// Problems says which VIPs are not local, and which parts of the guard and which sysctls are unavailable.
func (h *Host) Problems() []balancer.Problem {
	p := h.public.Load()
	out := p.other[:len(p.other):len(p.other)]
	for _, a := range p.addresses.All() {
		if a.held.Where == nowhere && a.held.Standing == "" && h.opts.Bind {
			out = append(out, notLocal(a.held, p.wanted))
		}
	}
	return out
}

// Addresses says of every VIP in use who holds it, in the order of addresses.
func (h *Host) Addresses() []Held {
	p := h.public.Load()
	out := make([]Held, 0, p.addresses.Len())
	for _, a := range p.addresses.All() {
		if a.held != (Held{}) {
			out = append(out, a.held)
		}
	}
	return out
}

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

// Host implements [dataplane.Host]. Problems, Addresses, LocalAddresses, FollowAddresses and Alerts
// are safe for concurrent use. Calls to the other methods must not overlap.
type Host struct {
	*state
	*routes
	*announcer
	*tuning
	*observer
	*mover
	*realServer

	// busy receives the result of adding addresses in the background. It is nil if there is no such
	// work.
	busy chan error
	// inherited reports whether an earlier process's ledger had addresses when this process
	// started.
	inherited bool
	public    atomic.Pointer[public]
}

var (
	_ dataplane.Host = (*Host)(nil)
)

// public is the part of the state that other goroutines may read.
type public struct {
	addresses snap.Map[netip.Addr, shown]
	wanted    snap.Map[balancer.Key, *balancer.Frontend]
	other     []balancer.Problem
}

// New opens the sockets that a Host needs. It changes nothing in the kernel. It adopts the objects
// that an earlier process recorded in the ledger.
func New(o Options) (*Host, error) {
	st, err := newState(o.withDefaults())
	if err != nil {
		return nil, err
	}
	h := assemble(st)
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil {
		return nil, errors.Join(fmt.Errorf("reading the kernel's version: %w", err), st.closeSockets())
	}
	h.release = unix.ByteSliceToString(system.Release[:])
	for a := range h.ledger.Addresses {
		h.showOurs(a, true)
		h.guard.Hold(a, 1)
	}
	for a := range h.ledger.Direct {
		h.showOurs(a, true)
	}
	h.inherited = len(h.ledger.Addresses) > 0
	h.publish()
	return h, nil
}

// assemble returns a Host whose parts share a state.
func assemble(st *state) *Host {
	rs, an, tn := &routes{state: st}, &announcer{state: st}, &tuning{state: st}
	ob := &observer{state: st, routes: rs, announcer: an}
	return &Host{
		state: st, routes: rs, announcer: an, observer: ob,
		tuning: tn, mover: &mover{state: st, routes: rs, observer: ob}, realServer: &realServer{state: st, tuning: tn},
	}
}

// Inherited reports whether an earlier process left addresses that were still held when this
// process started.
func (h *Host) Inherited() bool { return h.inherited }

// Close closes the sockets. It leaves addresses and rules in the kernel.
func (h *Host) Close() error {
	failed := h.await()
	h.guard.Close()
	return errors.Join(failed, h.closeSockets())
}

// Refuse makes the addresses that vipd holds refuse new connections, while established connections
// continue. Call it before closing a dataplane, so no other program can answer instead, and call
// Release afterwards.
func (h *Host) Refuse(ctx context.Context) error { return h.Prepare(ctx, balancer.Desired{}) }

// Release removes everything that this Host holds or has created. The guard is removed last, so the
// addresses refuse new connections until they are removed.
func (h *Host) Release(ctx context.Context) error {
	h.Resync(true)
	none := balancer.Desired{}
	return errors.Join(h.Prepare(ctx, none), h.Finish(ctx, none.Frontends))
}

// SetMode sets the current mode's requirements. The next Prepare applies them. It is safe for
// concurrent use.
func (h *Host) SetMode(m dataplane.Needs) { h.mode.Store(&m) }

// applyMode passes the mode to the guard. If the mode or the host's interfaces have changed, it
// also passes the interfaces.
func (h *Host) applyMode() {
	mode := *h.mode.Load()
	if h.guard.SetMode(mode) {
		h.linksChanged = true
	}
	if !h.linksChanged {
		return
	}
	h.passInterfaces()
}

// Prepare creates the restrictions and addresses of want. If the mode forwards, many addresses may
// still be missing when it returns; Finish waits for them.
func (h *Host) Prepare(ctx context.Context, want balancer.Desired) error {
	if err := h.await(); err != nil {
		return err
	}
	if err := h.updateView(); err != nil {
		return err
	}
	h.deviceWentDown = false
	for _, c := range snap.Diff(h.want.Frontends, want.Frontends) {
		h.countGuardEntries(c, false)
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
		h.guardOwned(a, c)
	}
	h.want = want
	_, failed := h.releaseDirect()
	h.applyMode()
	return errors.Join(failed, h.holdWanted(ctx), ctx.Err())
}

// guardOwned tells the guard whether an address is owned, which means that vipd owner manages it.
// The guard drops packets to an owned address while another node has it, and closes the host's own
// ports on it.
func (h *Host) guardOwned(a netip.Addr, c snap.Change[balancer.VIPState]) {
	if c.Old == balancer.Owned {
		h.guard.Own(a, -1)
	}
	if c.New == balancer.Owned {
		h.guard.Own(a, 1)
	}
}

// countGuardEntries updates the guard's reference counts for a frontend's set entries.
func (h *Host) countGuardEntries(c snap.Change[*balancer.Frontend], applied bool) {
	if c.HadOld {
		h.guard.Want(c.Old, -1, applied)
	}
	if c.HasNew {
		h.guard.Want(c.New, 1, applied)
	}
}

// Finish opens the applied ports, and removes unneeded addresses.
func (h *Host) Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	all := []error{h.await()}
	late := false
	for _, c := range snap.Diff(h.applied, applied) {
		h.countGuardEntries(c, true)
		if r := h.countApplied(c.New, 1); r != nil && r.lateFor(applied) {
			h.mark(r)
			late = true
		}
		h.countApplied(c.Old, -1)
	}
	h.applied = applied
	all = append(all, h.removeUnneeded(ctx))
	if late {
		all = append(all, h.holdWanted(ctx), h.await())
	}
	all = append(all, h.guard.Finish(ctx))
	h.announceAll()
	_, failed := h.holdDirect()
	all = append(all, failed, h.clear(), h.ledger.save())
	h.publish()
	return errors.Join(all...)
}

// countApplied updates the number of applied frontends on a VIP. It returns the VIP's record, or
// nil for a node port.
func (h *Host) countApplied(f *balancer.Frontend, by int) *address {
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

// Ready implements [dataplane.Host]. A frontend with source ranges must not be applied before its
// family's guard is complete and contains the frontend. Addresses that vipd adds wait for the guard
// anyway. Node addresses, the host's other addresses and routed addresses already exist. If the
// guard is unavailable, only a dataplane that enforces source ranges itself may serve the frontend.
// A frontend that is already served with the same source ranges does not wait.
func (h *Host) Ready(c dataplane.Change, enforced bool) error {
	return h.guard.Ready(c, enforced)
}

// Resync makes the next Prepare and Finish compare the whole guard with the kernel. If addresses is
// set, they also compare the addresses. Between resyncs, the kernel's events are sufficient.
func (h *Host) Resync(addresses bool) {
	h.full = h.full || addresses
	h.ledger.changed = true // the ledger's file may have been removed
	h.guard.Resync()
}

func (h *Host) publish() {
	p := &public{addresses: h.shown, wanted: h.want.Frontends, other: slices.Concat(h.sysctlProblems(), h.directProblems, h.unfinished(), h.guard.Problems())}
	h.public.Store(p)
}

// Problems returns a problem for each VIP that is not local, and for each unavailable part of the
// guard or the sysctls.
func (h *Host) Problems() []balancer.Problem {
	p := h.public.Load()
	out := p.other[:len(p.other):len(p.other)]
	for _, a := range p.addresses.All() {
		if a.held.Where == nowhere && a.held.Standing == "" && h.opts.Bind && !leaves(a.held, p.wanted) {
			out = append(out, notLocal(a.held, p.wanted))
		}
	}
	return out
}

// Addresses returns the holders of VIPs in use, sorted by address.
func (h *Host) Addresses() []Held {
	p := h.public.Load()
	out := make([]Held, 0, p.addresses.Len())
	for _, a := range p.addresses.All() {
		if a.held != (Held{}) && !leaves(a.held, p.wanted) {
			out = append(out, a.held)
		}
	}
	return out
}

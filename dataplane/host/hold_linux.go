package host

import (
	"context"
	"errors"
	"slices"
)

// plan decides who holds each address that is dirty or whose last change failed. It groups the
// addresses by their next step.
func (h *Host) plan() map[step][]*address {
	due := h.leftover(func(r *address) bool { return r.needed() && (r.dirty || r.failed) })
	if len(due) > 0 {
		world := probeDestinations()
		h.gateways, h.broadcasts = h.Gateways(world[:]), h.view.broadcasts()
	}
	todo := map[step][]*address{}
	for _, r := range due {
		held, next := h.decideOnDevice(r)
		h.show(r, held)
		r.dirty, r.failed = false, false
		todo[next] = append(todo[next], r)
	}
	return todo
}

// holdWanted prepares the guard. It then adds, moves and releases the addresses that are dirty or
// whose last change failed.
func (h *Host) holdWanted(ctx context.Context) error {
	todo := h.plan()
	if unseen, err := h.recheckOwn(todo[add]); unseen || err != nil {
		h.markAll()
		if err != nil {
			return err
		}
		todo = h.plan()
	}
	fresh := slices.Concat(todo[add], todo[move])
	for _, r := range fresh {
		h.record(r.addr, h.device.name)
	}
	for _, r := range todo[add] {
		h.setSilent(r, r.applied == 0)
	}
	all := []error{h.deviceFailed(todo[wait])}
	if err := h.ledger.save(); err != nil {
		all = append(all, h.postpone(fresh, err))
		fresh = nil
	}
	all = append(all, h.countPackets())
	h.publish()
	for family, err := range h.guard.Prepare(ctx) {
		if err != nil {
			all = append(all, err)
			fresh = h.postponeUnguarded(fresh, family, err)
		}
	}
	return errors.Join(append(all, h.runRest(len(fresh), func() error { return h.move(ctx, fresh, todo[release]) }))...)
}

// deviceFailed returns the device's error if the error may be temporary. In that case, it schedules
// another lookup of the device and a retry of the addresses that wait for it.
func (h *Host) deviceFailed(waiting []*address) error {
	if !h.device.passes {
		return nil
	}
	for _, r := range waiting {
		h.tryAgain(r)
	}
	err := h.device.err
	h.device = holder{}
	return err
}

// move adds and removes addresses. It also updates their routes and announcements, and the sysctls.
func (h *Host) move(ctx context.Context, fresh, gone []*address) error {
	all := []error{h.addAll(ctx, fresh)}
	for _, r := range gone {
		if err := h.removeOurs(r); err != nil {
			h.tryAgain(r)
			all = append(all, err)
		}
	}
	all = append(all, h.rerouteAll(), h.unshadow(ctx, fresh, h.catchUp), h.strictARP(), h.forwarding(), h.virtualServers(h.guard.HasMovable()), h.ledger.save())
	h.announceAll() // announce addresses that were removed and added again
	h.publish()
	return errors.Join(all...)
}

// removeUnneeded removes the addresses that are not wanted and have no frontend.
func (h *Host) removeUnneeded(ctx context.Context) error {
	if h.full || h.stale { // without a current view, an address may seem to be removed
		if err := h.updateView(); err != nil {
			return err
		}
	}
	var all []error
	for _, r := range h.leftover(func(r *address) bool { return r.dirty && !r.needed() }) {
		if ctx.Err() != nil {
			return errors.Join(append(all, ctx.Err())...)
		}
		if err := h.removeOurs(r); err != nil {
			all = append(all, err)
			continue
		}
		h.forget(r)
	}
	return errors.Join(all...)
}

// clear restores the ARP sysctls if no IPv4 address is held, and removes the device if no address
// is held.
func (h *Host) clear() error {
	var all []error
	if !h.wantsStrictARP() {
		h.arpProblems = nil
		var names []string
		for _, m := range strictARP() {
			names = append(names, m.name)
		}
		all = append(all, restoreSysctls(h.sys, h.ledger, names))
	}
	if len(h.ledger.Addresses) == 0 {
		all = append(all, h.removeDevices())
	}
	return errors.Join(all...)
}

package host

import (
	"context"
	"errors"
	"slices"
)

// plan decides about every address that has to be compared again, or whose last attempt failed.
func (h *Host) plan() map[step][]*address {
	due := h.leftover(func(r *address) bool { return r.needed() && (r.dirty || r.failed) })
	if len(due) > 0 {
		world := world()
		h.gateways = h.Gateways(world[:])
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

// holdWanted brings every dirty address to where it should be, with the guard up before.
func (h *Host) holdWanted(ctx context.Context) error {
	todo := h.plan()
	if unseen, err := h.unseen(todo[add]); unseen || err != nil {
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
		all = append(all, h.refuse(fresh, err))
		fresh = nil
	}
	h.publish()
	for family, err := range h.guard.Prepare(ctx) {
		if err != nil {
			all = append(all, err)
			fresh = h.putOff(fresh, family, err)
		}
	}
	return errors.Join(append(all, h.beside(len(fresh), func() error { return h.move(ctx, fresh, todo[release]) }))...)
}

// deviceFailed is why there is no device, if that may pass: it is looked for again then, with what waits for it.
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

// move adds addresses and takes others away, with all that follows from it.
func (h *Host) move(ctx context.Context, fresh, gone []*address) error {
	all := []error{h.addAll(ctx, fresh)}
	for _, r := range gone {
		if err := h.removeOurs(r); err != nil {
			h.tryAgain(r)
			all = append(all, err)
		}
	}
	all = append(all, h.rerouteAll(), h.unshadow(ctx, fresh, h.catchUp), h.strictARP(), h.forwarding(), h.virtualServers(h.guard.Roams()), h.ledger.save())
	h.announceAll() // what is back after it was removed
	h.publish()
	return errors.Join(all...)
}

// removeUnneeded removes the addresses that neither are wanted nor have a frontend left.
func (h *Host) removeUnneeded(ctx context.Context) error {
	if h.full || h.stale { // what can't be seen must not count as gone
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

// clear removes what is of no use any more: sysctls without IPv4 addresses, the device without any.
func (h *Host) clear() error {
	var all []error
	if !h.wantsStrictARP() {
		h.arp = nil
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

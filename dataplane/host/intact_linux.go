package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"vipd/balancer"
)

// Intact looks at what has happened to addresses since the last look, and at the guard. What could not be announced yet
// it announces, what of the guard was refused it tries again, and the guard follows what has happened to interfaces.
func (h *Host) Intact(ctx context.Context) (string, error) {
	if h.full {
		return "", ctx.Err() // nothing was prepared yet, or Resync was called: Prepare is due anyway
	}
	if err := h.updateView(); err != nil {
		return "", err
	}
	h.lookAtIPv6()
	if reason := h.addressesIntact(); reason != "" {
		return reason, nil
	}
	arrived := h.dropArrived()
	if len(h.leftover(func(r *address) bool { return r.unannounced })) > 0 {
		h.announceAll()
		h.publish()
	}
	if reason := h.reconnect(ctx); reason != "" {
		return reason, ctx.Err()
	}
	reason, mended, err := h.guard.Intact(ctx)
	if mended {
		h.publish()
	}
	if reason != "" {
		return reason, err
	}
	changed, failed := h.lookAtSysctls()
	if changed {
		h.publish()
	}
	return "", errors.Join(arrived, err, failed)
}

// addressesIntact says what has happened to addresses, or to the device that holds them, since the last look. It costs
// what has changed, however many addresses are held.
func (h *Host) addressesIntact() (reason string) {
	if h.downed {
		h.full, h.downed = true, false
		return "the device that holds the VIPs was taken down"
	}
	moved := false
	for _, r := range h.leftover(func(r *address) bool { return r.dirty && r.needed() }) {
		was := r.held
		held, next := r.decide(h.place(r.addr), h.site())
		switch {
		case (next == keep || next == wait) && held.Where == was.Where:
		case (next == keep || next == wait) && (r.standing == balancer.Owned || !h.opts.Bind):
			h.show(r, held) // vipd owner or another program brings and takes it: that is no drift
			moved = true
		default:
			return h.difference(r.addr, was)
		}
		r.dirty = false
	}
	if moved {
		h.publish()
	}
	if reason := h.routesIntact(); reason != "" {
		return reason
	}
	if reason := h.sourceChanged(); reason != "" {
		return reason
	}
	if h.asleep && h.view.devices[h.device.index].up {
		return fmt.Sprintf("device %s has come up, for which routes to VIPs were waiting", h.device.name)
	}
	return ""
}

// reconnect has the guards follow the host's interfaces, which come and go all the time on some hosts: that is no drift.
// A reason says what could not be done.
func (h *Host) reconnect(ctx context.Context) (reason string) {
	if !h.relinked {
		return ""
	}
	h.relinked = false
	h.guard.Connect(h.view.interfaces())
	if err := h.guard.Refresh(ctx); err != nil {
		h.relinked = true
		reason = fmt.Sprintf("the host's interfaces are others now: %v", err)
	}
	return reason
}

// difference says what happened to an address.
func (h *Host) difference(a netip.Addr, was Held) string {
	switch {
	case was.Where == nowhere:
		return fmt.Sprintf("address %s can be had now", a)
	case len(h.view.addrs[a]) == 0:
		return fmt.Sprintf("address %s is gone from %s", a, was.Where)
	}
	return fmt.Sprintf("address %s is now also on another device than %s", a, was.Where)
}

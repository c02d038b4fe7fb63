package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"vipd/balancer"
)

// Intact describes a change to the addresses or the guard by another program, or returns "". It
// also retries failed announcements and rules that iptables refused, updates the guard's
// interfaces, and restores sysctls.
func (h *Host) Intact(ctx context.Context) (string, error) {
	if h.full {
		return "", ctx.Err() // before the first Prepare or after Resync, Prepare compares everything anyway
	}
	if err := h.updateView(); err != nil {
		return "", err
	}
	h.retryAfterIPv6Enabled()
	if reason := cmp.Or(h.addressesIntact(), h.directIntact()); reason != "" {
		return reason, nil
	}
	arrived := h.dropArrived()
	if len(h.leftover(func(r *address) bool { return r.unannounced })) > 0 {
		h.announceAll()
		h.publish()
	}
	if reason := h.updateInterfaces(ctx); reason != "" {
		return reason, ctx.Err()
	}
	reason, mended, err := h.guard.Intact(ctx)
	if mended {
		h.publish()
	}
	if reason != "" {
		return reason, err
	}
	changed, failed := h.checkSysctls()
	if changed {
		h.publish()
	}
	return "", errors.Join(arrived, err, failed)
}

// addressesIntact describes a change to the addresses or to their device since the last check, or
// returns "". Its cost depends on the number of changes, not on the number of addresses.
func (h *Host) addressesIntact() (reason string) {
	if h.deviceWentDown {
		h.full, h.deviceWentDown = true, false
		return "the device that holds the VIPs was taken down"
	}
	moved := false
	for _, r := range h.leftover(func(r *address) bool { return r.dirty && r.needed() }) {
		was := r.held
		held, next := r.decide(h.place(r.addr), h.site())
		switch {
		case (next == keep || next == wait) && held.Where == was.Where:
		case (next == keep || next == wait) && (r.standing == balancer.Owned || !h.opts.Bind):
			h.show(r, held) // vipd owner or another program may move this address, so the change is not drift
			moved = true
		default:
			return h.describeChange(r.addr, was)
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
		return fmt.Sprintf("device %s is up, and routes to VIPs were waiting for it", h.device.name)
	}
	return ""
}

// updateInterfaces updates the guard's interfaces. It returns a reason only if the update fails,
// because some hosts constantly create and remove interfaces.
func (h *Host) updateInterfaces(ctx context.Context) (reason string) {
	if !h.linksChanged {
		return ""
	}
	h.passInterfaces()
	if err := h.guard.Refresh(ctx); err != nil {
		h.linksChanged = true
		reason = fmt.Sprintf("the host's interfaces have changed: %v", err)
	}
	return reason
}

func (h *Host) describeChange(a netip.Addr, was Held) string {
	switch {
	case was.Where == nowhere:
		return fmt.Sprintf("address %s can be added now", a)
	case len(h.view.addrs[a]) == 0:
		return fmt.Sprintf("address %s is missing from %s", a, was.Where)
	}
	return fmt.Sprintf("address %s is now also on a device other than %s", a, was.Where)
}

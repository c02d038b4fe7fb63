package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"vipd/balancer"
)

// updateView brings the view up to date: by what has happened since the last look, or in full where that is not enough.
func (h *Host) updateView() error {
	complete, err := h.events.drain(h.noteEvent)
	if err != nil {
		return err
	}
	if complete && !h.full && !h.stale {
		return nil
	}
	h.stale, h.lost = true, h.lost || !complete // until all of this has succeeded
	v, err := h.readView(h.nl)
	if err != nil {
		return err
	}
	h.view, h.device, h.renumbered, h.relinked = v, holder{}, [2]bool{true, true}, true
	if h.full {
		h.adopt()
		if err := h.readRoutes(); err != nil {
			return err
		}
		h.lost = false
		clear(h.source[:])
	}
	for _, r := range h.open {
		r.arriving = false // an event may have been lost
	}
	h.full, h.stale = false, false
	for a := range h.ledger.Addresses {
		h.at(a)
	}
	h.markAll()
	return nil
}

// markAll notes that all addresses have to be compared again with what is wanted.
func (h *Host) markAll() {
	for _, r := range h.all {
		h.mark(r)
	}
}

// catchUp takes in events in the middle of work.
func (h *Host) catchUp() {
	if complete, err := h.events.drain(h.noteEvent); err != nil || !complete {
		h.stale, h.lost = true, true
	}
}

// noteEvent takes in one event.
func (h *Host) noteEvent(c change) {
	if c.route {
		r := h.all[c.addr]
		h.lost = h.lost || r != nil && r.source.IsValid() // else vipd itself has removed it
		return
	}
	if c.addr.IsValid() {
		if c.gone {
			h.view.unset(c.addr, c.link, c.at.bits)
		} else {
			h.view.set(c.addr, c.at)
		}
		if r := h.all[c.addr]; r != nil {
			r.arriving = r.arriving && c.gone
			h.mark(r)
		}
		if h.ledger.Addresses[c.addr] == "" {
			h.renumbered[familyOf(c.addr)] = true
		}
		return
	}
	was := h.view.devices[c.link]
	if c.link == h.device.index && h.device.index != 0 {
		if c.gone || was.up && !c.device.up {
			h.full, h.downed = true, true // its routes are gone with it
		}
		if !was.running && c.device.running && h.device.kind == realDevice {
			h.announceAgain()
		}
	}
	h.relinked = true
	if c.gone {
		delete(h.view.devices, c.link)
		return
	}
	if h.device.err != nil && c.device.name == h.opts.Interface {
		h.stale = true // the device for VIPs is there now
	}
	h.view.devices[c.link] = c.device
}

// adopt takes the addresses on a device that vipd made for its own and, where the ledger was lost, those on other devices to
// which vipd's routes lead.
func (h *Host) adopt() {
	if link, err := h.nl.LinkByName(h.opts.Interface); err == nil && h.madeByUs(link) {
		h.ledger.setLink(h.opts.Interface)
		for a := range h.view.addrs {
			if h.view.has(a, link.Attrs().Index) && !a.IsLinkLocalUnicast() {
				h.record(a, h.opts.Interface)
			}
		}
	}
	if len(h.ledger.Addresses) > 0 {
		return
	}
	for _, r := range h.ourRoutes(routeProtocol) {
		if a, _ := netip.AddrFromSlice(r.Dst.IP); h.view.has(a.Unmap(), r.LinkIndex) {
			h.record(a.Unmap(), h.view.devices[r.LinkIndex].name)
		}
	}
}

// record notes that an address is ours.
func (h *Host) record(a netip.Addr, device string) {
	if _, ok := h.ledger.Addresses[a]; !ok {
		h.guard.Hold(a, 1)
	}
	h.ledger.setAddress(a, device)
	h.showOurs(a, true)
}

// unrecord notes that an address is not ours any more.
func (h *Host) unrecord(r *address) {
	if _, ok := h.ledger.Addresses[r.addr]; ok {
		h.guard.Hold(r.addr, -1)
	}
	h.ledger.dropAddress(r.addr)
	r.unrouted, r.unannounced = "", false
	h.setSilent(r, false)
	h.showOurs(r.addr, false)
}

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
	return "", errors.Join(arrived, err, h.lookAtSysctls())
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

// routesIntact looks whether our routes are there, if one was removed: vipd itself may have put it back since.
func (h *Host) routesIntact() string {
	if !h.lost {
		return ""
	}
	h.lost = false
	there := map[netip.Addr]bool{}
	for _, r := range h.ourRoutes(routeProtocol) {
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			there[a.Unmap()] = true
		}
	}
	for a, r := range h.all {
		if r.source.IsValid() && !there[a] {
			return fmt.Sprintf("the route to %s is gone from %s", a, h.device.name)
		}
	}
	return ""
}

// lookAtSysctls restores changed sysctls, and shows what was mended by hand or needs to be.
func (h *Host) lookAtSysctls() error {
	before := slices.Concat(h.arp, h.unforwarded, h.untuned)
	err := errors.Join(h.strictARP(), h.forwarding(), h.virtualServers(h.guard.Roams()), h.ledger.save())
	if !slices.Equal(before, slices.Concat(h.arp, h.unforwarded, h.untuned)) {
		h.publish()
	}
	return err
}

// lookAtIPv6 has the addresses looked at again that the device could not take for want of IPv6, once it has that.
func (h *Host) lookAtIPv6() {
	if !h.device.without6 {
		return
	}
	if value, err := h.sys.Read(disableIPv6(h.device.name)); err == nil && value == "0" {
		h.device.without6 = false
		for _, r := range h.all {
			if r.wanted && r.addr.Is6() && r.held.Where == nowhere {
				h.mark(r)
			}
		}
	}
}

// mend records what was changed of ours and is repaired.
func (h *Host) mend(what string) { h.mended = append(h.mended, what) }

// Mended implements dataplane.Host.
func (h *Host) Mended() []string {
	all := h.mended
	h.mended = nil
	return all
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

// sourceChanged reports whether connections to held VIPs should leave with another address of the node.
func (h *Host) sourceChanged() string {
	if len(h.ledger.Addresses) == 0 {
		return ""
	}
	for i, s := range h.source {
		if s.IsValid() && len(h.view.addrs[s]) == 0 {
			return fmt.Sprintf("the node's address %s is gone", s)
		}
		if s.IsValid() || !h.renumbered[i] || !h.holds(i) {
			continue
		}
		if found := h.anySource(i); found.IsValid() {
			return fmt.Sprintf("the node has an address for connections to its VIPs now: %s", found)
		}
		h.renumbered[i] = false
	}
	return ""
}

// holds reports whether any address of the family is held.
func (h *Host) holds(family int) bool { return h.guard.Holds(world()[family]) }

// deprecated reports whether the kernel avoids the address as a source.
func (p local) deprecated() bool {
	return p.flags&(unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED|unix.IFA_F_TEMPORARY) != 0
}

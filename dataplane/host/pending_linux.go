package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/neigh"
)

// notYet is why a route is missing that was not tried yet.
const notYet = "it was not tried yet"

// rerouteAll gives held addresses their routes: those that have none yet, and all where the source has changed.
func (h *Host) rerouteAll() error {
	if _, err := h.holder(); err != nil {
		return nil // there is nothing that routes could lead to, which is a problem of every VIP already
	}
	var all []error
	h.asleep = false
	for family := range h.source {
		if !h.holds(family) {
			continue
		}
		if h.sourceLost(family) {
			h.source[family], h.renumbered[family] = h.anySource(family), false
			for a := range h.ledger.Addresses {
				if r := h.at(a); familyOf(a) == family && r.held.Where == h.device.name && r.unrouted == "" {
					r.unrouted = notYet
					h.reopen(r)
				}
			}
		}
		all = append(all, h.reroute(family, h.leftover(func(r *address) bool {
			return r.unrouted != "" && familyOf(r.addr) == family && r.held.Where == h.device.name
		})))
	}
	return errors.Join(all...)
}

// sourceLost reports whether a family's source is none of the node's addresses any more, or none was found before those
// changed.
func (h *Host) sourceLost(family int) bool {
	s := h.source[family]
	return s.IsValid() && len(h.view.addrs[s]) == 0 || !s.IsValid() && h.renumbered[family]
}

// reroute gives addresses of a family their routes, or notes why they have none. That the device is down is no error: it
// will come up.
func (h *Host) reroute(family int, some []*address) error {
	if !h.view.devices[h.device.index].up {
		for _, r := range some {
			h.asleep = true
			h.unroutable(r, "device "+h.device.name+" is down")
		}
		return nil
	}
	var all []error
	for i, err := range h.route(family, some) {
		r := some[i]
		if err != nil {
			h.unroutable(r, err.Error())
			all = append(all, err)
			continue
		}
		r.unrouted = ""
		h.show(r, Held{Addr: r.addr, Where: h.device.name, Note: h.device.note})
	}
	return errors.Join(all...)
}

// unroutable notes why an address has no route.
func (h *Host) unroutable(r *address, reason string) {
	r.unrouted = reason
	h.show(r, Held{Addr: r.addr, Where: h.device.name, Note: "its route is pending: " + reason})
}

// announceAgain has all addresses announced that are on the device: it is connected to something now.
func (h *Host) announceAgain() {
	for a, device := range h.ledger.Addresses {
		if device == h.device.name {
			r := h.at(a)
			r.unannounced = true
			h.reopen(r)
		}
	}
}

// announceAll announces what is not announced yet and serves. What can't be announced now stays for the next look.
func (h *Host) announceAll() {
	h.unheard = ""
	serving := h.leftover(func(r *address) bool { return r.unannounced && !r.silent })
	if len(serving) == 0 {
		return
	}
	d, err := h.holder()
	switch {
	case err != nil:
		h.unheard = err.Error()
		return
	case !h.view.devices[d.index].running:
		h.unheard = d.name + " is down, or connected to nothing"
		return
	}
	const atOnce = 100 // what is announced twice after an error does no harm
	for part := range slices.Chunk(serving, atOnce) {
		addrs := make([]netip.Addr, len(part))
		for i, r := range part {
			addrs[i] = r.addr
		}
		if err := neigh.Announce(d.index, addrs); err != nil {
			h.unheard = err.Error()
			return
		}
		for _, r := range part {
			r.unannounced = false
		}
	}
}

// unfinished are the problems of addresses that are held but for something that is tried again.
func (h *Host) unfinished() []balancer.Problem {
	var out []balancer.Problem
	if some := h.leftover(func(r *address) bool { return r.unrouted != "" }); len(some) > 0 && some[0].unrouted != notYet {
		out = append(out, balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf(
			"VIPs are held without their routes (%d, such as %s): connections from this host to them fail, or leave with the VIP's own address: %s", len(some), some[0].addr, some[0].unrouted)})
	}
	if h.unheard == "" {
		return out
	}
	if some := h.leftover(func(r *address) bool { return r.unannounced }); len(some) > 0 {
		out = append(out, balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf(
			"VIPs are not announced to the neighbours yet (%d, such as %s): %s", len(some), some[0].addr, h.unheard)})
	}
	return out
}

package host

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/neigh"
)

// announcements are what the neighbours have yet to be told: unannounced are the addresses, and unheard is why they were not.
type announcements struct {
	unannounced map[netip.Addr]bool
	unheard     string
}

// notYet is why a route is missing that was not tried yet.
const notYet = "it was not tried yet"

// rerouteAll gives held addresses their routes: those that have none yet, and all where the source has changed.
func (h *Host) rerouteAll() error {
	if _, err := h.holder(); err != nil {
		return nil // there is nothing that routes could lead to, which is a problem of every VIP already
	}
	var all []error
	h.asleep, h.unrouted = false, dataplane.Shrink(h.unrouted)
	for family := range h.source {
		if !h.holds(family) {
			continue
		}
		addrs := slices.Collect(maps.Keys(h.unrouted))
		if h.sourceLost(family) {
			h.source[family], h.renumbered[family] = h.anySource(family), false
			addrs = slices.Collect(maps.Keys(h.ledger.Addresses))
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		all = append(all, h.reroute(family, slices.DeleteFunc(addrs, func(a netip.Addr) bool {
			return familyOf(a) != family || h.held.At(a).Where != h.device.name
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
func (h *Host) reroute(family int, addrs []netip.Addr) error {
	if !h.view.devices[h.device.index].up {
		for _, a := range addrs {
			h.asleep = true
			h.unroutable(a, "device "+h.device.name+" is down")
		}
		return nil
	}
	var all []error
	for i, err := range h.route(family, addrs) {
		a := addrs[i]
		if err != nil {
			h.unroutable(a, err.Error())
			all = append(all, err)
			continue
		}
		if _, pending := h.unrouted[a]; pending {
			delete(h.unrouted, a)
			if held := (Held{Addr: a, Where: h.device.name, Note: h.device.note}); h.held.At(a) != held {
				h.held = h.held.Set(a, held)
			}
		}
	}
	return errors.Join(all...)
}

// unroutable notes why an address has no route.
func (h *Host) unroutable(a netip.Addr, reason string) {
	h.unrouted[a] = reason
	h.held = h.held.Set(a, Held{Addr: a, Where: h.device.name, Note: "its route is pending: " + reason})
}

// announceAgain has all addresses announced that are on the device: it is connected to something now.
func (h *Host) announceAgain() {
	for a, device := range h.ledger.Addresses {
		if device == h.device.name {
			h.unannounced[a] = true
		}
	}
}

// announceAll announces what is not announced yet and serves. What can't be announced now stays for the next look.
func (h *Host) announceAll() {
	h.unheard = ""
	serving := make([]netip.Addr, 0, len(h.unannounced))
	for a := range h.unannounced {
		if !h.pending[a] {
			serving = append(serving, a)
		}
	}
	if len(serving) == 0 {
		h.unannounced = dataplane.Shrink(h.unannounced)
		return
	}
	switch d, err := h.holder(); {
	case err != nil:
		h.unheard = err.Error()
		return
	case d.kind != realDevice:
		h.unannounced = map[netip.Addr]bool{}
		return
	}
	if !h.view.devices[h.device.index].running {
		h.unheard = h.device.name + " is down, or connected to nothing"
		return
	}
	const atOnce = 100 // what is announced twice after an error does no harm
	slices.SortFunc(serving, netip.Addr.Compare)
	for addrs := range slices.Chunk(serving, atOnce) {
		if err := neigh.Announce(h.device.index, addrs); err != nil {
			h.unheard = err.Error()
			return
		}
		for _, a := range addrs {
			delete(h.unannounced, a)
		}
	}
}

// unfinished are the problems of addresses that are held but for something that is tried again.
func (h *Host) unfinished() []balancer.Problem {
	var out []balancer.Problem
	if a, n := first(h.unrouted); n > 0 && h.unrouted[a] != notYet {
		out = append(out, balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf(
			"VIPs are held without their routes (%d, such as %s): connections from this host to them fail, or leave with the VIP's own address: %s", n, a, h.unrouted[a])})
	}
	if a, n := first(h.unannounced); n > 0 && h.unheard != "" {
		out = append(out, balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf(
			"VIPs are not announced to the neighbours yet (%d, such as %s): %s", n, a, h.unheard)})
	}
	return out
}

// first returns the least of some addresses, and how many there are.
func first[V any](addrs map[netip.Addr]V) (least netip.Addr, n int) {
	for a := range addrs {
		if !least.IsValid() || a.Less(least) {
			least = a
		}
	}
	return least, len(addrs)
}

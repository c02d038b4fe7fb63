package host

import (
	"net/netip"
	"slices"

	"vipd/balancer"
)

// step is what has to be done about one address.
type step string

const (
	keep    step = "keep"    // it is as it should be
	add     step = "add"     // to the device
	release step = "release" // take ours away
	move    step = "move"    // from one device to another
	wait    step = "wait"    // nothing can be done
)

// needPrivilege is the way out for who may not add addresses.
const needPrivilege = "adding it needs the capability CAP_NET_ADMIN: run as root, use VIPs in 127.0.0.0/8, or let someone else add them"

// decide says who holds a needed address, or will when what it asks for is done. It changes nothing.
func (h *Host) decide(a netip.Addr) (Held, step) {
	on, recorded := h.ledger.Addresses[a]
	ours := recorded && h.view.has(a, h.view.link(on))
	standing := h.standings.At(a)
	otherwise := func(where, note string, next step) (Held, step) {
		if recorded {
			next = release
		}
		return Held{Addr: a, Where: where, Note: note}, next
	}
	rests := func(note string) (Held, step) {
		held, next := otherwise(nowhere, note, wait)
		held.Standing = standing
		return held, next
	}
	switch {
	case a.IsLoopback():
		return otherwise(onHost, "loopback", keep)
	case h.elsewhere(a):
		held, next := otherwise(onHost, "", keep)
		if standing == balancer.Owned {
			held.Standing = standing
		}
		return held, next
	case !h.want.Has(a): // a frontend is left on it: what is there stays for that, and nothing is added
		if ours {
			return Held{Addr: a, Where: on}, keep
		}
		return Held{Addr: a}, wait
	case standing == balancer.Owned:
		return rests(`not owned by this host: "vipctl get vips" names the owner`)
	case standing == balancer.Withdrawn:
		return rests("withdrawn: no endpoint of its services is usable")
	case !h.opts.Bind:
		return otherwise(nowhere, "bind = false, and it has not been added to this host", wait)
	case slices.Contains(h.gateways, a):
		return otherwise(nowhere, "it is a gateway of this node, which would reach itself in its place: choose another address", wait)
	}
	to, err := h.holder()
	held := Held{Addr: a, Where: to.name, Note: to.note}
	switch {
	case err != nil && ours && to.passes: // it serves where it is until the device is looked for again
		return Held{Addr: a, Where: on, Note: err.Error()}, wait
	case err != nil:
		return Held{Addr: a, Where: nowhere, Note: err.Error()}, wait
	case ours && on == to.name && len(h.ledger.Leaving[a]) == 0:
		return held, keep
	case ours || len(h.ledger.Leaving[a]) > 0:
		return held, move
	case standing == balancer.Serving && !balancer.Served(a, h.applied):
		h.late[a] = true
		return rests("is added once its frontends are applied")
	}
	return held, add
}

// elsewhere reports whether the address is anywhere but where vipd has put it.
func (h *Host) elsewhere(a netip.Addr) bool {
	places := len(h.view.addrs[a])
	if places == 0 {
		return false
	}
	for _, device := range h.ledger.devices(a) {
		if h.view.has(a, h.view.link(device)) {
			places--
		}
	}
	return places > 0
}

// decideOnDevice decides with the device made and up, if the address is to be on it.
func (h *Host) decideOnDevice(a netip.Addr) (Held, step) {
	held, next := h.decide(a)
	if next != release && next != wait && held.Where != onHost && h.device.kind == madeDevice && !h.device.ready {
		h.makeDevice()
		return h.decide(a)
	}
	return held, next
}

package host

import (
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/balancer/snap"
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

// place says where an address is now.
type place struct {
	// on is the device to which vipd has added the address according to the ledger, or "".
	on string
	// there reports whether the address is on that device, and leaving whether it may still be on an earlier one.
	there, leaving bool
	// elsewhere reports whether the address is on this host, but not because of vipd.
	elsewhere bool
}

// site is the part of a decision that is the same for all addresses.
type site struct {
	bind bool
	// gateways are the addresses by which the host reaches the world.
	gateways []netip.Addr
	device   holder
	applied  snap.Map[balancer.Key, *balancer.Frontend]
}

// decide returns who holds a needed address, or will hold it after the step that it returns.
func (r *address) decide(at place, s *site) (Held, step) {
	a := r.addr
	otherwise := func(where, note string, next step) (Held, step) {
		if at.on != "" {
			next = release
		}
		return Held{Addr: a, Where: where, Note: note}, next
	}
	rests := func(note string) (Held, step) {
		held, next := otherwise(nowhere, note, wait)
		held.Standing = r.standing
		return held, next
	}
	switch {
	case a.IsLoopback():
		return otherwise(onHost, "loopback", keep)
	case at.elsewhere:
		held, next := otherwise(onHost, "", keep)
		if r.standing == balancer.Owned {
			held.Standing = r.standing
		}
		return held, next
	case !r.wanted: // a frontend is left on it: what is there stays for that, and nothing is added
		if at.there {
			return Held{Addr: a, Where: at.on}, keep
		}
		return Held{}, wait
	case r.standing == balancer.Owned:
		return rests(`not owned by this host: "vipctl get vips" names the owner`)
	case r.standing == balancer.Withdrawn:
		return rests("withdrawn: no endpoint of its services is usable")
	case !s.bind:
		return otherwise(nowhere, "bind = false, and it has not been added to this host", wait)
	case slices.Contains(s.gateways, a):
		return otherwise(nowhere, "it is a gateway of this node, which would reach itself in its place: choose another address", wait)
	}
	to := s.device
	held := Held{Addr: a, Where: to.name, Note: to.note}
	switch {
	case to.err != nil && at.there && to.passes: // it serves where it is until the device is looked for again
		return Held{Addr: a, Where: at.on, Note: to.err.Error()}, wait
	case to.err != nil:
		return Held{Addr: a, Where: nowhere, Note: to.err.Error()}, wait
	case at.there && at.on == to.name && !at.leaving:
		return held, keep
	case at.there || at.leaving:
		return held, move
	case r.standing == balancer.Serving && !balancer.Served(a, s.applied):
		return rests("is added once its frontends are applied")
	}
	return held, add
}

// place returns where an address is.
func (st *state) place(a netip.Addr) place {
	p := place{on: st.ledger.Addresses[a], leaving: len(st.ledger.Leaving[a]) > 0}
	p.there = p.on != "" && st.view.has(a, st.view.link(p.on))
	places := len(st.view.addrs[a])
	for _, device := range st.ledger.devices(a) {
		if st.view.has(a, st.view.link(device)) {
			places--
		}
	}
	p.elsewhere = places > 0
	return p
}

// site returns what the decisions about addresses depend on now.
func (st *state) site() *site {
	d, _ := st.holder() // the error is part of the device
	return &site{bind: st.opts.Bind, gateways: st.gateways, device: d, applied: st.applied}
}

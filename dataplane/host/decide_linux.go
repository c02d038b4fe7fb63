package host

import (
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// step is the next action for an address.
type step string

const (
	keep    step = "keep"    // nothing to do
	add     step = "add"     // add it to the device
	release step = "release" // remove the address that vipd added
	move    step = "move"    // move it from one device to another
	wait    step = "wait"    // nothing can be done now
)

// needPrivilege is the advice for a process that may not add addresses.
const needPrivilege = "adding it needs the capability CAP_NET_ADMIN: run as root, use VIPs in 127.0.0.0/8, or let another program add them"

// place describes where an address is.
type place struct {
	// device is the device to which vipd added the address according to the ledger, or "".
	device string
	// onDevice reports whether the address is on that device. leaving reports whether the address
	// may still be on an earlier device.
	onDevice, leaving bool
	// elsewhere reports whether the host has the address independently of vipd.
	elsewhere bool
}

// site is the input of decide that all addresses share.
type site struct {
	bind bool
	// gateways are the host's next hops to the rest of the network.
	gateways []netip.Addr
	// broadcasts are the broadcast addresses of the host's networks.
	broadcasts map[netip.Addr]netip.Prefix
	device     holder
	applied    snap.Map[balancer.Key, *balancer.Frontend]
}

// decide returns the next step for a needed address, and the holder after that step.
func (r *address) decide(at place, s *site) (Held, step) {
	a := r.addr
	otherwise := func(where, note string, next step) (Held, step) {
		if at.device != "" {
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
	case !r.wanted: // a frontend still uses the address, so keep existing objects and add nothing
		if at.onDevice {
			return Held{Addr: a, Where: at.device}, keep
		}
		return Held{}, wait
	case r.standing == balancer.Owned:
		return rests(`not owned by this host: "vipctl get vips" names the owner, or "vipctl status" with VRRP`)
	case r.standing == balancer.Withdrawn:
		return rests("withdrawn: none of its services has a usable endpoint")
	case !s.bind:
		return otherwise(nowhere, "bind = false, and it has not been added to this host", wait)
	case slices.Contains(s.gateways, a):
		return otherwise(nowhere, "it is the address of a gateway, which this node could then not reach: choose another address", wait)
	case s.broadcasts[a].IsValid():
		return otherwise(nowhere, fmt.Sprintf("it is the broadcast address of %s, one of this node's networks: choose another address", s.broadcasts[a]), wait)
	}
	to := s.device
	held := Held{Addr: a, Where: to.name, Note: to.note}
	switch {
	case to.err != nil && at.onDevice && to.passes: // the address stays in use until the device is found again
		return Held{Addr: a, Where: at.device, Note: to.err.Error()}, wait
	case to.err != nil:
		return Held{Addr: a, Where: nowhere, Note: to.err.Error()}, wait
	case at.onDevice && at.device == to.name && !at.leaving:
		return held, keep
	case at.onDevice || at.leaving:
		return held, move
	case r.standing == balancer.Serving && !balancer.Served(a, s.applied):
		return rests("is added once its frontends are applied")
	}
	return held, add
}

func (st *state) place(a netip.Addr) place {
	p := place{device: st.ledger.Addresses[a], leaving: len(st.ledger.Leaving[a]) > 0}
	p.onDevice = p.device != "" && st.view.has(a, st.view.link(p.device))
	places := len(st.view.addrs[a])
	for _, device := range st.ledger.devices(a) {
		if st.view.has(a, st.view.link(device)) {
			places--
		}
	}
	p.elsewhere = places > 0
	return p
}

// site returns the current input of decide that all addresses share.
func (st *state) site() *site {
	d, _ := st.holder() // d.err is the same error
	return &site{bind: st.opts.Bind, gateways: st.gateways, broadcasts: st.broadcasts, device: d, applied: st.applied}
}

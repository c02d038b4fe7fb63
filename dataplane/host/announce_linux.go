package host

import (
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/neigh"
)

// announcer tells the neighbors of addresses.
type announcer struct {
	*state
	// unheard is the reason why the neighbors have not been told of all addresses.
	unheard string
}

// announceAgain has all addresses announced that are on the device: it is connected to something now.
func (an *announcer) announceAgain() {
	for a, device := range an.ledger.Addresses {
		if device == an.device.name {
			r := an.at(a)
			r.unannounced = true
			an.reopen(r)
		}
	}
}

// announceAll announces what is not announced yet and serves. What can't be announced now stays for the next look.
func (an *announcer) announceAll() {
	an.unheard = ""
	serving := an.leftover(func(r *address) bool { return r.unannounced && !r.silent })
	if len(serving) == 0 {
		return
	}
	d, err := an.holder()
	switch {
	case err != nil:
		an.unheard = err.Error()
		return
	case !an.view.devices[d.index].running:
		an.unheard = d.name + " is down, or connected to nothing"
		return
	}
	const atOnce = 100 // what is announced twice after an error does no harm
	for part := range slices.Chunk(serving, atOnce) {
		addrs := make([]netip.Addr, len(part))
		for i, r := range part {
			addrs[i] = r.addr
		}
		if err := neigh.Announce(d.index, addrs); err != nil {
			an.unheard = err.Error()
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

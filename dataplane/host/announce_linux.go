package host

import (
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/neigh"
)

// announcer announces addresses to the neighbors by ARP and NDP.
type announcer struct {
	*state
	// failure is the reason why some addresses are not announced, or "".
	failure string
}

// announceAgain announces all addresses on the device again, because the link is up again.
func (an *announcer) announceAgain() {
	for a, device := range an.ledger.Addresses {
		if device == an.device.name {
			r := an.at(a)
			r.unannounced = true
			an.reopen(r)
		}
	}
}

// announceAll announces serving addresses that have not been announced yet. The next check retries
// failed announcements.
func (an *announcer) announceAll() {
	an.failure = ""
	serving := an.leftover(func(r *address) bool { return r.unannounced && !r.silent })
	if len(serving) == 0 {
		return
	}
	d, err := an.holder()
	switch {
	case err != nil:
		an.failure = err.Error()
		return
	case !an.view.devices[d.index].running:
		an.failure = d.name + " is down or has no carrier"
		return
	}
	const atOnce = 100 // after an error, the whole batch is announced again, which is harmless
	for part := range slices.Chunk(serving, atOnce) {
		addrs := make([]netip.Addr, len(part))
		for i, r := range part {
			addrs[i] = r.addr
		}
		if err := neigh.Announce(d.index, addrs); err != nil {
			an.failure = err.Error()
			return
		}
		for _, r := range part {
			r.unannounced = false
		}
	}
}

// unfinished returns a problem for each held address whose route or announcement is missing.
func (h *Host) unfinished() []balancer.Problem {
	var out []balancer.Problem
	if some := h.leftover(func(r *address) bool { return r.unrouted != "" }); len(some) > 0 && some[0].unrouted != notYet {
		out = append(out, balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf(
			"VIPs lack their routes (%d, such as %s): connections from this host to them fail, or use the VIP as their source address: %s", len(some), some[0].addr, some[0].unrouted)})
	}
	if h.failure == "" {
		return out
	}
	if some := h.leftover(func(r *address) bool { return r.unannounced }); len(some) > 0 {
		out = append(out, balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf(
			"VIPs are not announced to neighbors yet (%d, such as %s): %s", len(some), some[0].addr, h.failure)})
	}
	return out
}

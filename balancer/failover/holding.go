package failover

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover/local"
)

// holding binds the VIPs that this node owns, and hands them over to other nodes.
type holding struct {
	*parts
	// unbinds maps the ID of each pending Unbind action to the function to call after it.
	unbinds map[int]func()
	// pause is the backoff after etcd has refused a handover with an error. No handover starts
	// before the time until. A handover briefly silences its VIPs, which would be useless while
	// etcd accepts no writes.
	pause time.Duration
	until local.Time
	// unsure holds the handovers that etcd may have written. retry is when to reclaim their VIPs.
	unsure []handover
	retry  local.Time
}

// adopt binds the VIPs that this session owns, and releases VIPs that users have removed. It does
// nothing while the gate does not permit binding.
func (h *holding) adopt() {
	if h.gate.state != open {
		return // Node.Opened calls it again
	}
	if !h.gate.passes() {
		h.stale = true // so adopt is called again
		return
	}
	var addrs []netip.Addr
	for _, v := range h.vips.order {
		if h.session.owns(v) && !v.bound && v.giving == 0 {
			v.bound = true
			addrs = append(addrs, v.addr)
		}
	}
	if len(addrs) > 0 {
		h.vips.bound += len(addrs)
		h.do(local.Bind{Addrs: addrs})
	}
	for _, name := range slices.Sorted(maps.Keys(h.vips.removed)) {
		h.release(h.vips.removed[name])
	}
}

// Moved returns the announcements of bound VIPs that an operator has moved to this node.
func (n *Node) Moved(bound []netip.Addr) (all []Announcement) {
	for _, a := range bound {
		v := n.vips.find(a.String())
		if v == nil || !v.bound || !n.session.owns(v) {
			continue
		}
		if o := n.etcd.owners[v.name].value; o.Requested() {
			all = append(all, Announcement{a, o.Generation})
		}
	}
	return all
}

// unbind removes a VIP from its device.
func (h *holding) unbind(v *vip) {
	if v.bound {
		h.vips.unbind(v)
		h.do(local.Unbind{Addrs: []netip.Addr{v.addr}})
	}
}

// forgetGone deletes a VIP from the list of removed VIPs if this node no longer owns it, or if
// users have added it again.
func (h *holding) forgetGone() {
	maps.DeleteFunc(h.vips.removed, func(name string, v *vip) bool {
		return h.vips.byName[name] != nil || v.giving == 0 && !v.bound && !h.session.owns(v)
	})
}

// ownerChanged processes a change to the record of a VIP's owner. The parameter moved is true if
// the VIP now belongs to another session or to no session.
func (h *holding) ownerChanged(name string, moved bool) {
	v := h.vips.find(name)
	if v == nil {
		return
	}
	if moved {
		v.moved(h.now)
	}
	// A pending write for this VIP compares an older revision, so it can no longer succeed.
	v.giving = 0
	v.clear = false
	v.stranger = ""
	v.askAgain = 0
	if !h.session.owns(v) {
		h.unbind(v)
	} else if moved && v.flapping(h.now) {
		h.do(local.Note{Kind: local.NoteFlapping, VIPs: 1, Text: fmt.Sprintf("flapping: %s has moved %d times within a minute, so failing checks and preempt will not move it for %s",
			v.name, maxMoves, formatSeconds(movesTime-h.now.Since(v.changed[0])))})
	}
}

// lose gives up the session and all its VIPs, and prepares a new session.
func (h *holding) lose(why string) {
	h.do(local.Note{Kind: local.NoteLost, Text: why, VIPs: h.vips.bound})
	h.session.reset(h.etcd.revision)
	h.writer.claiming = false
	h.closeGate()
}

// closeGate closes the gate so that no earlier refresh can reopen it, and unbinds all VIPs. A VIP
// whose handover etcd may have written stays unbound until the outcome is known, even if the gate
// opens again.
func (h *holding) closeGate() {
	h.gate.state = closing
	h.do(local.CloseGate{})
	for _, all := range []map[string]*vip{h.vips.byName, h.vips.removed} {
		for _, v := range all {
			if _, unwritten := h.unbinds[v.giving]; unwritten || !h.session.live {
				v.giving = 0
			}
			v.bound = false
		}
	}
	h.vips.bound = 0
	clear(h.unbinds)
}

// lapse closes the gate and reports why. The kernel's timeout may already have closed the gate.
func (h *holding) lapse(why local.Lapse, lasts time.Duration) {
	by := ""
	if why == local.NotRefreshed && !h.session.passes() {
		why = local.NotConfirmed
		lasts = 0
		by = " (" + h.session.silentJurors() + " silent)"
		if d := h.session.deadline; d > 0 {
			lasts = h.now.Since(d) + h.o.Timing.Confirm
		}
	}
	text := "gate closed: " + string(why)
	if lasts > 0 {
		text += " for " + formatSeconds(lasts)
	}
	h.do(local.Note{Kind: local.NoteGate, Text: text + by + "; " + restText(h.vips.boundNames()), VIPs: h.vips.bound, Why: string(why)})
	h.closeGate()
}

func restText(names []string) string {
	switch len(names) {
	case 0:
		return "this host had no VIPs"
	case 1:
		return "1 VIP no longer answers: " + names[0]
	}
	return fmt.Sprintf("%d VIPs no longer answer: %s", len(names), listFirst(names))
}

// depart closes a stopped node's gate permanently, once the node has released all VIPs that other
// nodes can hold.
func (h *holding) depart() {
	if !h.gate.stopping || h.gate.leaving {
		return
	}
	for _, v := range h.vips.order {
		if v.giving != 0 || v.bound && h.gate.passes() && h.ranking.best(v) != "" {
			return
		}
	}
	h.gate.leaving = true
	h.closeGate()
}

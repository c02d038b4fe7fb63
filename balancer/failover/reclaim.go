package failover

import "time"

// These are the minimum and maximum pauses after a handover that etcd refuses with an error.
const (
	minPause = 2 * time.Second
	maxPause = 30 * time.Second
)

// slowDown delays the next handover if etcd has refused this handover with an error. After a
// success, it ends the backoff.
func (h *holding) slowDown(o Outcome) {
	switch o {
	case Done:
		h.pause = 0
	case Unsent:
		h.pause = min(max(2*h.pause, minPause), maxPause)
		h.until = h.now.Add(h.pause)
	}
}

// reclaim determines who owns the VIPs whose handover etcd may have written. This node writes
// itself as the owner, on the condition that the previous owner record is unchanged. Until the
// outcome is known, the VIPs stay unbound, because another node may become their owner at any time.
func (h *holding) reclaim(all []handover) {
	for _, g := range all {
		if !h.session.owns(g.vip) {
			g.end() // etcd has reported the new owner
		}
		if g.over() {
			continue
		}
		w := Write{}
		h.assign(&w, g.vip, Owner{Node: h.o.Name, Session: h.session.id, Why: "kept"})
		id := h.session.id
		h.writer.write(w, func(o Outcome, revision int64) {
			switch {
			case h.session.id != id:
			case o == Unknown:
				h.reclaim([]handover{g})
			case o == Unsent:
				h.reclaimLater(g)
			case o == Done:
				h.writer.apply(&w, revision)
				h.keep([]handover{g})
			default: // the handover was written, and etcd's watch will report the owner
			}
		})
	}
}

// reclaimLater schedules a reclaim of the handover's VIP after one heartbeat interval.
func (h *holding) reclaimLater(g handover) {
	h.unsure = append(h.unsure, g)
	h.retry = h.now.Add(h.o.Timing.Beat)
}

// reclaimDue reclaims the VIPs in unsure if it is time to retry.
func (h *holding) reclaimDue() {
	if all := h.unsure; len(all) > 0 && h.now >= h.retry {
		h.unsure = nil
		h.reclaim(all)
	}
}

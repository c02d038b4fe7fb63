package failover

import "time"

// hindrance is what keeps VIPs from being given away: each gift silences them for a moment, and is in vain where etcd does not write.
type hindrance struct {
	// away: etcd is unreachable.
	away bool
	// Etcd refused the last gift with an error: no other begins for pause, until a moment.
	pause time.Duration
	until Time
	// unsure are gifts of which it is unknown whether etcd has written them; retry is when they are reclaimed.
	unsure []gift
	retry  Time
}

// The bounds of hindrance.pause.
const (
	leastPause = 2 * time.Second
	mostPause  = 30 * time.Second
)

// Away takes in that etcd is unreachable, until Stored gets all records again.
func (n *Node) Away(now Time) []Action {
	n.now, n.hindered.away = now, true
	return nil
}

// begins reports whether a gift may begin.
func (h *hindrance) begins(now Time) bool { return !h.away && now >= h.until }

// gave takes in what became of the write of a gift.
func (h *hindrance) gave(now Time, o Outcome) {
	switch o {
	case Done:
		h.pause = 0
	case Unsent:
		h.pause = min(max(2*h.pause, leastPause), mostPause)
		h.until = now.Add(h.pause)
	}
}

// reclaimLater reclaims gifts after a heartbeat.
func (n *Node) reclaimLater(gifts ...gift) {
	n.hindered.unsure = append(n.hindered.unsure, gifts...)
	n.hindered.retry = n.now.Add(n.o.Timing.Beat)
}

// reclaimDue reclaims the gifts whose time has come.
func (n *Node) reclaimDue() {
	if gifts := n.hindered.unsure; len(gifts) > 0 && n.now >= n.hindered.retry {
		n.hindered.unsure = nil
		n.reclaim(gifts)
	}
}

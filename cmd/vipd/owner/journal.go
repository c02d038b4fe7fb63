package owner

import (
	"log/slog"
	"maps"
	"sync"
	"time"

	"vipd/balancer/failover/local"
	"vipd/cmd/internal/api"
)

// maxEvents is the maximum number of events that are stored for vipd.
const maxEvents = 200

// journal logs and counts the owner's events, and stores the latest events.
type journal struct {
	log *slog.Logger

	mu     sync.Mutex // guards the fields below
	events []api.OwnerEvent
	number int
	counts map[local.NoteKind]map[string]int
	// confirmed is a histogram of how much longer the session is confirmed, observed at each tick.
	// takeovers is a histogram of how long VIPs had no owner.
	confirmed, takeovers api.Histogram
}

// note logs an event, and stores it for vipd.
func (j *journal) note(n local.Note) {
	j.log.Info(n.Text, "kind", string(n.Kind))
	j.mu.Lock()
	defer j.mu.Unlock()
	if n.Why != "" {
		if j.counts[n.Kind] == nil {
			j.counts[n.Kind] = map[string]int{}
		}
		j.counts[n.Kind][n.Why] += max(n.VIPs, 1)
	}
	if n.After > 0 {
		j.takeovers.Observe(n.After.Seconds())
	}
	j.number++
	j.events = append(j.events, api.OwnerEvent{Number: j.number, Time: time.Now(), Text: n.Text})
	j.events = j.events[max(0, len(j.events)-maxEvents):]
}

// observe records how much longer the session is confirmed.
func (j *journal) observe(left time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.confirmed.Observe(max(left.Seconds(), 0))
}

// describe adds events and counts to a status.
func (j *journal) describe(s *api.OwnerStatus) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s.Events = append([]api.OwnerEvent{}, j.events...)
	s.Took, s.Gave = maps.Clone(j.counts[local.NoteTook]), maps.Clone(j.counts[local.NoteGave])
	s.GateClosed = maps.Clone(j.counts[local.NoteGate])
	s.ConfirmedFor, s.TakenAfter = j.confirmed, j.takeovers
}

package daemon

import (
	"fmt"
	"log/slog"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/journal"
)

// stillDownTold is how many endpoints are named at the start; more are told in one event.
const stillDownTold = 20

// tellStillDown records which endpoints are down as vipd starts, by what is known from before: they have no event that says
// so in this process.
func (m *model) tellStillDown(s *state, now time.Time) {
	var down []journal.Event
	for t, verdict := range s.inputs.Health.All() {
		if verdict != balancer.HealthDown {
			continue
		}
		since, cause := m.checks.DownSince(t)
		if since.IsZero() || since.After(m.started) {
			continue // it is told as what has happened now
		}
		down = append(down, journal.Event{
			At: now, Kind: journal.Health, Level: slog.LevelWarn, Service: t.Service, Endpoint: t.Address(), Text: "is still down", Cause: cause,
			Was: string(balancer.HealthDown), Lasted: now.Sub(since),
		})
	}
	if n := len(down); n > stillDownTold {
		down = []journal.Event{{
			At: now, Kind: journal.Health, Level: slog.LevelWarn,
			Text: fmt.Sprintf("%d endpoints are still down, as before the start; vipctl get endpoints --down lists them", n),
		}}
	}
	for _, e := range down {
		m.journal.Record(e)
	}
}

// fallen keeps, from those before, the targets that went down from being up. What was down from the first look on had no
// connections to be cut.
func (s *state) fallen(before *state) {
	s.fell = before.fell
	for t, c := range snap.Diff(before.inputs.Health, s.inputs.Health) {
		switch {
		case c.New != balancer.HealthDown && s.fell.Has(t):
			s.fell = s.fell.Delete(t)
		case c.New == balancer.HealthDown && c.Old == balancer.HealthUp:
			s.fell = s.fell.Set(t, true)
		}
	}
}

package recorder

import (
	"fmt"
	"log/slog"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/model"
)

// stillDownTold is how many endpoints are named at the start; more are told in one event.
const stillDownTold = 20

// tellStillDown records which endpoints are down as vipd starts, by what is known from before: they have no event that says
// so in this process.
func (r *Recorder) tellStillDown(s *model.State, now time.Time) {
	var down []events.Event
	for t, verdict := range s.Inputs.Health.All() {
		if verdict != balancer.HealthDown {
			continue
		}
		since, cause := r.o.DownSince(t)
		if since.IsZero() || since.After(r.o.Started) {
			continue // it is told as what has happened now
		}
		down = append(down, events.Event{
			At: now, Kind: events.Health, Level: slog.LevelWarn, Service: t.Service, Endpoint: t.Address(), Text: "is still down", Cause: cause,
			Was: string(balancer.HealthDown), Lasted: now.Sub(since),
		})
	}
	if n := len(down); n > stillDownTold {
		down = []events.Event{{
			At: now, Kind: events.Health, Level: slog.LevelWarn,
			Text: fmt.Sprintf("%d endpoints are still down, as before the start; vipctl get endpoints --down lists them", n),
		}}
	}
	for _, e := range down {
		r.o.Journal.Record(e)
	}
}

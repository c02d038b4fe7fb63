package daemon

import (
	"log/slog"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/probe"
	"vipd/cmd/internal/journal"
)

// healthEvent tells of a verdict that has changed.
func healthEvent(t balancer.Target, c probe.Change) journal.Event {
	e := journal.Event{
		At: c.State.Since, Kind: journal.Health, Service: t.Service, Endpoint: t.Address(), Text: "is " + string(c.State.Verdict),
		Cause: c.State.Last.Text, Was: string(c.Before), Lasted: c.For,
	}
	if c.State.Verdict == balancer.HealthDown {
		e.Level = slog.LevelWarn
	}
	if c.State.Last.Outcome == health.Passed && c.Before != balancer.HealthUnknown {
		e.Text = "is up again"
	}
	return e
}

package checks

import (
	"context"
	"errors"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/probe"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
	"vipd/store"
)

// Found is what is known of a target.
type Found struct {
	// Own is what this node's own check has found, if Checked.
	Own     probe.Status
	Checked bool
	// Fleet is what the fleet has found, if Shared.
	Fleet  quorum.Standing
	Shared bool
}

// Of returns what is known of a target.
func (c *Checks) Of(t balancer.Target) (f Found) {
	f.Own, f.Checked = c.runner.Status(t)
	f.Fleet, f.Shared = c.fleet.Standing(t)
	return f
}

// All are the targets of the last Verdicts, whoever checks them. It is for the caller of that.
func (c *Checks) All() snap.Map[balancer.Target, health.Subject] { return c.all }

// Awaits reports whether what a fleet has found is to be read before s is served.
func (c *Checks) Awaits(s *store.Snapshot) bool { return c.fleet.Awaits(s) }

// FleetExec reports whether some node of the fleet may run the programs that checks ask for.
func (c *Checks) FleetExec() bool { return c.fleet.MayRun() }

// Problems says why checks are not shared with the fleet, which is connected or not.
func (c *Checks) Problems(connected bool) []balancer.Problem {
	if c.fleet == nil {
		return nil
	}
	return c.fleet.Problems(connected)
}

// Hint has the check of a target, if this node makes one, be done at once. It does not block.
func (c *Checks) Hint(t balancer.Target) { c.runner.Hint(t) }

// Once checks a target apart from the schedule, whoever of a fleet checks it otherwise.
func (c *Checks) Once(ctx context.Context, t balancer.Target, at health.Subject) (health.Result, string, error) {
	r, exchange, err := c.runner.Now(ctx, t)
	if errors.Is(err, probe.ErrUnchecked) {
		return c.runner.Exchange(ctx, probe.New(at.Health, at.Proto), at.At)
	}
	return r, exchange, err
}

// DownSince is since when a target is down, and what its last result was.
func (c *Checks) DownSince(t balancer.Target) (since time.Time, cause string) {
	if standing, shared := c.fleet.Standing(t); shared && !standing.Alone {
		return standing.Since, standing.Words()
	}
	status, _ := c.runner.Status(t)
	return status.State.Since, status.State.Last.Text
}

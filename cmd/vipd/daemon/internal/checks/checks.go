package checks

import (
	"bufio"
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/fleetchecks"
	"vipd/dataplane/probe"
	"vipd/store/etcd/client"
	"vipd/store/statedir"
)

// Checks runs this node's health checks.
type Checks struct {
	// Fleet is this node's part in a fleet's checks. It is nil if the store does not belong to a
	// fleet. Its methods accept nil.
	Fleet   *fleetchecks.Checks
	o       Options
	runner  *probe.Runner
	targets health.Targets // only the goroutine that calls Verdicts uses targets and all
	all     snap.Map[balancer.Target, health.Subject]
	found   *statedir.File
	lease   *statedir.File
	changed atomic.Bool // set if states have changed since they were saved
	unable  unable
	late    late
}

// Options configures Checks.
type Options struct {
	// StateDir is used to save the results for the next run.
	StateDir *statedir.Dir
	// Node is this node's name. It makes the schedules of nodes differ.
	Node string
	// Etcd is the store in which a fleet shares checks, or nil if checks are not shared. Lease is
	// how long this node's votes stay valid after vipd exits. Log receives the state of the
	// connection to etcd.
	Etcd   *client.Config
	Lease  time.Duration
	Log    *slog.Logger
	Events *events.History
	// Kick makes the model call Verdicts again. It must not block.
	Kick func()
	// OnResult receives each result.
	OnResult func(probe.TargetResult)
	// Observe receives the duration of each check.
	Observe func(t balancer.HealthType, took time.Duration)
}

// keepPause is the interval at which changed states are saved.
const keepPause = 5 * time.Second

const checksFile = "health.json"

// keptChecks is the JSON content of the file health.json.
type keptChecks struct {
	Version int          `json:"version"`
	Checks  []probe.Kept `json:"checks"`
}

// New reads the results that the previous run saved. Checks start after Verdicts and Run are
// called. New returns an error if this node's name is not allowed in a fleet.
func New(o Options) (*Checks, error) {
	c := &Checks{
		o: o, found: o.StateDir.File(checksFile, "a restart will lose health check results", statedir.Large),
		lease: o.StateDir.File(leaseFile, "after a crash, this node's votes on health remain valid for "+o.Lease.String(), statedir.Small),
	}
	var kept keptChecks
	held := c.found.Held()
	c.found.Read(&kept)
	seed := fnv.New64a()
	_, _ = seed.Write([]byte(o.Node)) // Write never fails
	c.runner = probe.NewRunner(probe.Options{
		Report: c.report, Seed: seed.Sum64(), Kept: kept.Checks, Held: held,
		OnResult: func(h probe.TargetResult) {
			if c.unable.add(h) {
				o.Kick()
			}
			o.OnResult(h)
		},
		Observe: func(t balancer.HealthType, r health.Result) { o.Observe(t, r.Took) },
	})
	if o.Etcd == nil {
		return c, nil
	}
	var err error
	c.Fleet, err = fleetchecks.New(fleetchecks.Options{
		Config: *o.Etcd, Node: o.Node, Runner: c.runner, Log: o.Log, Record: o.Events.Record, Kick: o.Kick,
		Lease: o.Lease, Former: c.formerLease(), Keep: c.keepLease,
	})
	return c, err
}

// Verdicts starts the checks of the endpoints in the inputs, stops all other checks, and returns
// the verdicts.
func (c *Checks) Verdicts(env *balancer.Env, in *balancer.Inputs) snap.Map[balancer.Target, balancer.Verdict] {
	before := c.all
	c.all = c.targets.Next(env, in)
	switch {
	case c.Fleet == nil && c.all == before: // only verdicts, or objects without checks, have changed
		return c.runner.Verdicts()
	case c.Fleet == nil:
		return c.runner.Set(c.all)
	}
	return c.Fleet.Verdicts(c.all, env.AllowExec)
}

// Lacking returns problems for the checks that this node can't run and for late checks, and the
// number of endpoints whose checks can't run.
func (c *Checks) Lacking(services snap.Map[balancer.Name, *balancer.Service]) ([]balancer.Problem, int) {
	problems, endpoints := c.unable.problems(services, func(t balancer.Target, check int) bool {
		status, checked := c.runner.Status(t)
		return checked && check < max(1, len(status.Checks))
	})
	return append(problems, c.late.problems()...), endpoints
}

// report passes changed verdicts to the fleet. It records the verdicts on targets outside the fleet
// in the history. Then it makes the model compile.
func (c *Checks) report(changes []probe.Transition) {
	for _, change := range changes {
		for _, t := range c.Fleet.Vote(change.Targets) {
			c.o.Events.Record(healthEvent(t, change))
		}
	}
	c.changed.Store(true)
	c.o.Kick()
}

// Run runs checks until ctx is done, and saves the results for the next run.
func (c *Checks) Run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { c.runner.Run(ctx) })
	look := time.NewTicker(keepPause)
	defer look.Stop()
	kept := false
	for {
		select {
		case <-ctx.Done():
			running.Wait()
			c.keep()
			return nil
		case <-look.C:
			if c.late.update(c.runner.Late()) {
				c.o.Kick()
			}
			if changed := c.changed.Swap(false); changed || !kept {
				kept = c.keep()
			} else {
				c.found.Confirm()
			}
		}
	}
}

// keep schedules a save of the results, and reports whether there are any results. The file is
// written later, with the results at that time.
func (c *Checks) keep() bool {
	if c.runner.Verdicts().Len() == 0 {
		return false
	}
	c.found.Keep(func(w *bufio.Writer) error { return statedir.Text(keptChecks{statedir.Version, c.runner.Keep()})(w) })
	return true
}

// healthEvent returns the event for a changed verdict.
func healthEvent(t balancer.Target, c probe.Transition) events.Event {
	e := events.Event{
		At: c.State.Since, Kind: events.Health, Service: t.Service, Endpoint: t.Address(), Text: "is " + string(c.State.Verdict),
		Cause: c.State.Cause, Was: string(c.Before), Lasted: c.For,
	}
	switch {
	case c.State.Verdict == balancer.HealthDown:
		e.Level = slog.LevelWarn
	case c.Before != balancer.HealthUnknown:
		e.Text = "is up again"
	}
	return e
}

const leaseFile = "healthlease.json"

// keptLease is the JSON content of the file that stores the lease of this node's votes in the
// fleet.
type keptLease struct {
	Version int   `json:"version"`
	Lease   int64 `json:"lease"`
}

// formerLease returns the lease of a previous run that was killed, so this run can immediately
// revoke that run's votes.
func (c *Checks) formerLease() int64 {
	var kept keptLease
	c.lease.Read(&kept)
	return kept.Lease
}

func (c *Checks) keepLease(lease int64) {
	c.lease.Keep(statedir.Text(keptLease{statedir.Version, lease}))
}

// Found is the state of a target.
type Found struct {
	// Own is the result of this node's own check, if Checked is set.
	Own     probe.Status
	Checked bool
	// Fleet is the fleet's tally, if Shared is set.
	Fleet  quorum.Tally
	Shared bool
}

// StateOf returns the state of a target.
func (c *Checks) StateOf(t balancer.Target) (f Found) {
	f.Own, f.Checked = c.runner.Status(t)
	f.Fleet, f.Shared = c.Fleet.Standing(t)
	return f
}

// All returns the targets of the last call to Verdicts, regardless of which nodes check them. Only
// the caller of Verdicts may call it.
func (c *Checks) All() snap.Map[balancer.Target, health.Subject] { return c.all }

// Uncheckable reports whether one of a target's checks could not run on this node, or whether this
// node has no checks of the target's service. Only the caller of Verdicts may call it.
func (c *Checks) Uncheckable(t balancer.Target) bool {
	if subject, wanted := c.all.Get(t); wanted {
		return c.unable.includes(t, subject)
	}
	for range c.all.While(balancer.Target{Service: t.Service}, func(other balancer.Target) bool { return other.Service == t.Service }) {
		return false // this node does not use the endpoint
	}
	return true
}

// Hint makes the check of a target run immediately, if this node checks the target. It does not
// block.
func (c *Checks) Hint(t balancer.Target) { c.runner.Hint(t) }

// Once runs each check of a target outside the schedule. It also checks targets that only other
// nodes of the fleet check.
func (c *Checks) Once(ctx context.Context, t balancer.Target, at health.Subject) ([]probe.Exchanged, error) {
	all, err := c.runner.Now(ctx, t)
	if errors.Is(err, probe.ErrUnchecked) {
		return c.runner.Exchange(ctx, at)
	}
	return all, err
}

// DownSince returns when a target went down, and the cause.
func (c *Checks) DownSince(t balancer.Target) (since time.Time, cause string) {
	if standing, shared := c.Fleet.Standing(t); shared && !standing.Alone {
		return standing.Since, standing.Text()
	}
	status, _ := c.runner.Status(t)
	return status.State.Since, status.State.Last.Text
}

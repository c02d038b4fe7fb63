package checks

import (
	"bufio"
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"net/netip"
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

// Checks are this node's health checks.
type Checks struct {
	// Fleet is this node's part in what a fleet checks; nil means the store is not a fleet's, which its methods know.
	Fleet   *fleetchecks.Checks
	o       Options
	runner  *probe.Runner
	targets health.Targets // belongs to the caller of Verdicts, and so does all
	all     snap.Map[balancer.Target, health.Subject]
	found   *statedir.File
	lease   *statedir.File
	changed atomic.Bool // since the states were kept
	unable  unable
	late    late
}

// Options are what Checks are made of.
type Options struct {
	// StateDir keeps what was found for the next run.
	StateDir *statedir.Dir
	// Node is this node's name: nodes check the same endpoint at different times.
	Node string
	// Etcd is where a fleet shares checks; nil means they are not shared. Lease is how long after this node's end what it has found
	// counts there, and Log is for what becomes of the connection.
	Etcd   *client.Config
	Lease  time.Duration
	Log    *slog.Logger
	Events *events.History
	// Service returns what is served as name; nil means nothing.
	Service func(name balancer.Name) *balancer.Service
	// Kick has Verdicts be called again. It must not block.
	Kick func()
	// Heard is told of each result, and where it was found, which may be another port than the target's.
	Heard func(t balancer.Target, at netip.AddrPort, res health.Result)
	// Observe is told how long each check took.
	Observe func(t balancer.HealthType, took time.Duration)
}

// keepPause is the time between two looks whether there are states of checks to be kept.
const keepPause = 5 * time.Second

const checksFile = "health.json"

// keptChecks is the content of that file.
type keptChecks struct {
	Version int          `json:"version"`
	Checks  []probe.Kept `json:"checks"`
}

// New reads what an earlier run has found. It checks nothing before Verdicts and Run. An error says that the node can't have
// its name in a fleet.
func New(o Options) (*Checks, error) {
	c := &Checks{
		o: o, found: o.StateDir.File(checksFile, "what health checks have found does not outlive a restart", statedir.Large),
		lease: o.StateDir.File(leaseFile, "after a crash, what this node tells the fleet of health counts for "+o.Lease.String(), statedir.Small),
	}
	var kept keptChecks
	held := c.found.Held()
	c.found.Read(&kept)
	seed := fnv.New64a()
	_, _ = seed.Write([]byte(o.Node)) // a hash takes everything
	c.runner = probe.NewRunner(probe.Options{
		Report: c.report, Seed: seed.Sum64(), Kept: kept.Checks, Held: held,
		Heard: func(t balancer.Target, at netip.AddrPort, res health.Result) {
			c.heard(t, res)
			o.Heard(t, at, res)
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

// Verdicts has the endpoints of in be checked from now on, and returns what is known of them.
func (c *Checks) Verdicts(env *balancer.Env, in *balancer.Inputs) snap.Map[balancer.Target, balancer.Verdict] {
	before := c.all
	c.all = c.targets.Next(env, in)
	switch {
	case c.Fleet == nil && c.all == before: // a verdict has changed, or something that is not checked
		return c.runner.Verdicts()
	case c.Fleet == nil:
		return c.runner.Set(c.all)
	}
	return c.Fleet.Verdicts(c.all, env.AllowExec)
}

// heard recompiles when a check has been unable to run for long, and when it runs again.
func (c *Checks) heard(t balancer.Target, res health.Result) {
	s := c.o.Service(t.Service)
	if s != nil && s.Health != nil && c.unable.heard(t, res, s.Health.Fall) {
		c.o.Kick()
	}
}

// Lacking says what this node can't check, of how many endpoints that is true, and which checks are late.
func (c *Checks) Lacking(services snap.Map[balancer.Name, *balancer.Service]) ([]balancer.Problem, int) {
	problems, endpoints := c.unable.problems(services, func(t balancer.Target) bool {
		_, checked := c.runner.Status(t)
		return checked
	})
	return append(problems, c.late.problems()...), endpoints
}

// report records what has changed and recompiles.
func (c *Checks) report(changes []probe.Transition) {
	for _, change := range changes {
		for _, t := range c.Fleet.Vote(change.Targets) {
			c.o.Events.Record(healthEvent(t, change))
		}
	}
	c.changed.Store(true)
	c.o.Kick()
}

// Run checks until ctx ends, and keeps what is known for the next run.
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

// keep has what is known be kept, as it is when that is written, and reports whether it does. Where nothing is checked there is
// nothing to keep.
func (c *Checks) keep() bool {
	if c.runner.Verdicts().Len() == 0 {
		return false
	}
	c.found.Keep(func(w *bufio.Writer) error { return statedir.Text(keptChecks{statedir.Version, c.runner.Keep()})(w) })
	return true
}

// healthEvent tells of a verdict that has changed.
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

// keptLease is the content of that file: under which lease this node has told the fleet what it has found.
type keptLease struct {
	Version int   `json:"version"`
	Lease   int64 `json:"lease"`
}

// formerLease is the lease of a run that was killed, so that this one takes back at once what that one has said.
func (c *Checks) formerLease() int64 {
	var kept keptLease
	c.lease.Read(&kept)
	return kept.Lease
}

// keepLease keeps the lease of this run for the next.
func (c *Checks) keepLease(lease int64) {
	c.lease.Keep(statedir.Text(keptLease{statedir.Version, lease}))
}

// Found is what is known of a target.
type Found struct {
	// Own is what this node's own check has found, if Checked.
	Own     probe.Status
	Checked bool
	// Fleet is what the fleet has found, if Shared.
	Fleet  quorum.Tally
	Shared bool
}

// Of returns what is known of a target.
func (c *Checks) Of(t balancer.Target) (f Found) {
	f.Own, f.Checked = c.runner.Status(t)
	f.Fleet, f.Shared = c.Fleet.Standing(t)
	return f
}

// All returns the targets of the last Verdicts, checked here or by other nodes. Only the caller of Verdicts may call it.
func (c *Checks) All() snap.Map[balancer.Target, health.Subject] { return c.all }

// Hint has the check of a target, if this node makes one, be done at once. It does not block.
func (c *Checks) Hint(t balancer.Target) { c.runner.Hint(t) }

// Once checks a target outside of the schedule, also one that other nodes of the fleet check.
func (c *Checks) Once(ctx context.Context, t balancer.Target, at health.Subject) (health.Result, string, error) {
	r, exchange, err := c.runner.Now(ctx, t)
	if errors.Is(err, probe.ErrUnchecked) {
		return c.runner.Exchange(ctx, at)
	}
	return r, exchange, err
}

// DownSince is since when a target is down, and what its last result was.
func (c *Checks) DownSince(t balancer.Target) (since time.Time, cause string) {
	if standing, shared := c.Fleet.Standing(t); shared && !standing.Alone {
		return standing.Since, standing.Text()
	}
	status, _ := c.runner.Status(t)
	return status.State.Since, status.State.Last.Text
}

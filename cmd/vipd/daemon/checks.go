package daemon

import (
	"context"
	"hash/fnv"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/probe"
	"vipd/balancer/snap"
	"vipd/cmd/internal/journal"
	"vipd/cmd/vipd/daemon/internal/fleetchecks"
)

// checks runs the health checks of endpoints. Its verdicts are an input of what the model compiles:
//
//	services, endpoints -> targets -> runner -> verdicts -> compile
//	                                  report -> the model looks again, and the log says so
type checks struct {
	*Daemon
	runner  *probe.Runner
	fleet   *fleetchecks.Checks // nil: the store is not a fleet's
	targets health.Targets      // belongs to the model's loop, and so does all
	all     snap.Map[balancer.Target, health.Subject]
	files   files       // belongs to run
	changed atomic.Bool // since the states were kept
	unable  unable
}

// keepPause is the time between two looks whether there are states of checks to be kept.
const keepPause = 5 * time.Second

const checksFile = "health.json"

// keptChecks is the content of that file.
type keptChecks struct {
	Version int          `json:"version"`
	Checks  []probe.Kept `json:"checks"`
}

func (k *keptChecks) version() int { return k.Version }

func newChecks(d *Daemon) *checks {
	c := &checks{Daemon: d, files: files{dir: d.config.StateDir, failed: map[string]error{}, tell: func(err error) {
		d.journal.Record(journal.Event{
			Kind: journal.Problem, Level: slog.LevelWarn, Text: "what health checks have found does not outlive a restart", Cause: err.Error(),
		})
	}}}
	var kept keptChecks
	c.files.read(checksFile, &kept)
	seed := fnv.New64a()
	_, _ = seed.Write([]byte(d.config.Node)) // a hash takes everything
	c.runner = probe.NewRunner(probe.Options{
		Report: c.report, Seed: seed.Sum64(), Kept: kept.Checks,
		Heard: func(t balancer.Target, at netip.AddrPort, res health.Result) {
			c.heard(t, res)
			d.passive.Heard(t, at, res)
		},
		Observe: func(t balancer.HealthType, r health.Result) { d.metrics.checked(t, r.Took) },
	})
	return c
}

// verdicts has the endpoints of in be checked from now on, and returns what is known of them.
func (c *checks) verdicts(in *balancer.Inputs, allowExec bool) snap.Map[balancer.Target, balancer.Verdict] {
	c.all = c.targets.Next(in, allowExec)
	if c.fleet == nil {
		return c.runner.Set(c.all)
	}
	return c.fleet.Verdicts(c.all, allowExec)
}

// heard has it be told that a check can't be carried out for long, and that it can again.
func (c *checks) heard(t balancer.Target, res health.Result) {
	s := c.model.state().snapshot.Services.At(t.Service)
	if s != nil && s.Health != nil && c.unable.heard(t, res, s.Health.Fall) {
		c.model.kick()
	}
}

// lacking says what this node can't check, and of how many endpoints that is true.
func (c *checks) lacking(services snap.Map[balancer.Name, *balancer.Service]) ([]balancer.Problem, int) {
	return c.unable.problems(services, func(t balancer.Target) bool {
		_, checked := c.runner.Status(t)
		return checked
	})
}

// report records what has changed, and has it be compiled.
func (c *checks) report(changes []probe.Change) {
	for _, change := range changes {
		for _, t := range c.fleet.Vote(change.Targets) {
			c.journal.Record(healthEvent(t, change))
		}
	}
	c.changed.Store(true)
	c.model.kick()
}

// run checks until ctx ends, and keeps what is known for the next run.
func (c *checks) run(ctx context.Context) error {
	var running sync.WaitGroup
	running.Go(func() { c.runner.Run(ctx) })
	look := time.NewTicker(keepPause)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			running.Wait()
			c.keep()
			return nil
		case <-look.C:
			if c.changed.Swap(false) {
				c.keep()
			}
		}
	}
}

// keep writes what is known. Where nothing is checked there is nothing to keep.
func (c *checks) keep() {
	if kept := c.runner.Keep(); len(kept) > 0 {
		c.files.keep(checksFile, c.files.write(checksFile, keptChecks{fileVersion, kept}))
	}
}

package model

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/lookup"
	"vipd/store"
)

// State is a compiled state with its inputs.
type State struct {
	Snapshot store.Snapshot
	Inputs   balancer.Inputs
	Env      balancer.Env
	Desired  balancer.Desired
	// Checked holds the targets with a health check, which this node or another node runs.
	Checked snap.Map[balancer.Target, health.Subject]
	// Local holds this node's manual overrides.
	Local  snap.Map[balancer.Target, *balancer.Override]
	Config config.Config
	// Problems lists problems of the configuration and of saved files.
	Problems []balancer.Problem
	// Complete reports whether the first snapshot is included. EverRead reports whether the store
	// has ever been readable.
	Complete, EverRead bool
	// NamesUntil is the time until which the node is not ready, because a host name in its own
	// services has no DNS answer yet. It is zero if no answer is missing.
	NamesUntil time.Time
	// Lacking lists problems about checks that this node can't run, and about silent agents. Unable
	// is the number of endpoints whose checks can't run.
	Lacking []balancer.Problem
	Unable  int
	// Fell holds the targets that changed from up to down.
	Fell snap.Map[balancer.Target, bool]
}

// Reported returns the problems of the configuration, the store and saved files without duplicates.
// Both the configuration and the store report an unreadable file, and the store's text may add the
// consequences.
func (s *State) Reported() []balancer.Problem {
	all := append([]balancer.Problem{}, s.Snapshot.Problems...) // not nil, so the JSON is []
	for _, p := range s.Problems {
		if !slices.ContainsFunc(all, func(q balancer.Problem) bool {
			text := q.Text
			q.Text = p.Text
			return q == p && strings.HasPrefix(text, p.Text)
		}) {
			all = append(all, p)
		}
	}
	return all
}

// Place returns the objects that requests can name: all services with their endpoints, and this
// node's manual overrides.
func (s *State) Place() lookup.Place {
	in := s.Inputs
	in.Overrides = s.Local
	return lookup.Place{Inputs: &in}
}

// fallen updates Fell, the set of targets that changed from up to down. It omits targets that were
// never up, because they had no connections to cut.
func (s *State) fallen(before *State) {
	s.Fell = before.Fell
	for t, c := range snap.Diff(before.Inputs.Health, s.Inputs.Health) {
		switch {
		case c.New != balancer.HealthDown && s.Fell.Has(t):
			s.Fell = s.Fell.Delete(t)
		case c.New == balancer.HealthDown && c.Old == balancer.HealthUp:
			s.Fell = s.Fell.Set(t, true)
		}
	}
}

// Published holds the last compiled state, and requests new ones. It is created before the Model's
// inputs, because some of them request compilations. Its methods are safe for concurrent use.
type Published struct {
	wake    wake.Signal // sent when the model must compile again
	current atomic.Pointer[State]
	changed atomic.Pointer[chan struct{}] // closed when current is replaced
}

// NewPublished returns a Published whose state has only a configuration.
func NewPublished(c config.Config) *Published {
	p := &Published{wake: wake.New()}
	changed := make(chan struct{})
	p.changed.Store(&changed)
	p.current.Store(&State{Config: c})
	return p
}

// Kick makes the model compile again. It does not block.
func (p *Published) Kick() { p.wake.Send() }

// State returns the last compiled state. Before the first state, only Config and Local are set.
func (p *Published) State() *State { return p.current.Load() }

// Changed returns a channel that is closed when a state is published after this call.
func (p *Published) Changed() <-chan struct{} { return *p.changed.Load() }

func (p *Published) show(s *State) {
	p.current.Store(s)
	changed := make(chan struct{})
	close(*p.changed.Swap(&changed))
}

// clock detects steps of the wall clock. Drains and ramps use the wall clock so they survive a
// restart. A step must neither end them early nor extend them by hours. A suspension of the host
// also counts as a step, because drains and ramps made no progress.
type clock struct {
	began time.Time     // has both clock readings
	ahead time.Duration // total forward steps of the wall clock since then
}

func newClock(now time.Time) clock { return clock{began: now} }

// clockStep is the minimum size of a step. Smaller differences result from the time between the two
// readings.
const clockStep = 100 * time.Millisecond

// stepped returns the step of the wall clock since the last call, given the clock's reading and how
// long the clock has run. A negative step means that the clock was set back.
func (c *clock) stepped(wall time.Time, gone time.Duration) time.Duration {
	step := wall.Sub(c.began.Round(0)) - gone - c.ahead
	if step.Abs() < clockStep {
		return 0
	}
	c.ahead += step
	return step
}

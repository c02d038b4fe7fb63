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

// State is one compiled state with what it was made from.
type State struct {
	Snapshot store.Snapshot
	Inputs   balancer.Inputs
	Env      balancer.Env
	Desired  balancer.Desired
	// Checked is what has a health check, made here or by other nodes.
	Checked snap.Map[balancer.Target, health.Subject]
	// Local is what was said by hand on this node.
	Local  snap.Map[balancer.Target, *balancer.Override]
	Config config.Config
	// Problems are of the configuration, and of what is kept on disk.
	Problems []balancer.Problem
	// Complete: the first snapshot is in it. EverRead: the store could be read at least once.
	Complete, EverRead bool
	// Lacking are the problems of checks that this node can't run, which are as many as Unable.
	Lacking []balancer.Problem
	Unable  int
	// Fell is what went down from being up.
	Fell snap.Map[balancer.Target, bool]
}

// Reported returns the problems of the configuration, of the store and of what is kept on disk, each once: a file that can't be read is a
// problem of the configuration and of the store, which may add what follows from it.
func (s *State) Reported() []balancer.Problem {
	all := append([]balancer.Problem{}, s.Snapshot.Problems...) // JSON writes it as []
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

// Place is where what users name is searched: among all services, with what is said of them by hand on this node.
func (s *State) Place() lookup.Place {
	in := s.Inputs
	in.Overrides = s.Local
	return lookup.Place{Inputs: &in}
}

// fallen keeps, from those before, the targets that went down from being up. What was down from the first look on had no
// connections to be cut.
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

// Published is the last state that a Model has compiled, and how others ask it for the next one. It is made before the parts from
// which a Model compiles, some of which ask. All methods may be called by any goroutine.
type Published struct {
	wake    wake.Signal // holds one token: look again
	current atomic.Pointer[State]
	changed atomic.Pointer[chan struct{}] // closed when current is replaced
}

// NewPublished returns one with a state that has nothing but c.
func NewPublished(c config.Config) *Published {
	p := &Published{wake: wake.New()}
	changed := make(chan struct{})
	p.changed.Store(&changed)
	p.current.Store(&State{Config: c})
	return p
}

// Kick makes the model look again. It does not block.
func (p *Published) Kick() { p.wake.Send() }

// State returns what was last compiled; its zero but for Config and Local before anything was.
func (p *Published) State() *State { return p.current.Load() }

// Changed returns a channel that is closed when another state is published than State returns after this call.
func (p *Published) Changed() <-chan struct{} { return *p.changed.Load() }

// show publishes a state.
func (p *Published) show(s *State) {
	p.current.Store(s)
	changed := make(chan struct{})
	close(*p.changed.Swap(&changed))
}

// clock notices that the wall clock was set: drains and ramps are kept by it, to outlive a restart, and must not take hours
// longer, or end at once, because the clock was set. Time for which the host slept counts as a step too: nothing went on then.
type clock struct {
	began time.Time     // with both readings
	ahead time.Duration // by which the wall clock was set forward since
}

func newClock(now time.Time) clock { return clock{began: now} }

// clockStep is the least that counts: less is how far apart the two readings are taken.
const clockStep = 100 * time.Millisecond

// stepped returns by how much the wall clock was set forward since the last call (negative: back), when it says wall, and so
// much time has gone by since the beginning.
func (c *clock) stepped(wall time.Time, gone time.Duration) time.Duration {
	step := wall.Sub(c.began.Round(0)) - gone - c.ahead
	if step.Abs() < clockStep {
		return 0
	}
	c.ahead += step
	return step
}

package model

import (
	"sync/atomic"

	"vipd/balancer/wake"
	"vipd/cmd/internal/config"
)

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

// State returns what was last compiled; its zero but for Config before anything was.
func (p *Published) State() *State { return p.current.Load() }

// Changed returns a channel that is closed when another state is published than State returns after this call.
func (p *Published) Changed() <-chan struct{} { return *p.changed.Load() }

// show publishes a state.
func (p *Published) show(s *State) {
	p.current.Store(s)
	changed := make(chan struct{})
	close(*p.changed.Swap(&changed))
}

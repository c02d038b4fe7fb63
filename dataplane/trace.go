package dataplane

import (
	"time"

	"vipd/balancer"
)

// Round is one round of an engine: what it did, and what for.
type Round struct {
	// Want is what was wanted.
	Want         balancer.Desired
	Began, Ended time.Time
	// Full: all was compared before.
	Full bool
	// Changes counts the frontends that were changed.
	Changes int
	Steps   []Step
	// Err is what failed; nil means nothing did.
	Err error
}

// Step is one call of the host or the dataplane: observe, prepare host, apply, finish host.
type Step struct {
	Name         string
	Began, Ended time.Time
	// Frontends are how many it was about; 0 means all.
	Frontends int
	Err       error
}

// step does one step of a round, and records it for Trace.
func (e *Engine) step(name string, frontends int, do func() error) error {
	if e.Trace == nil {
		return do()
	}
	s := Step{Name: name, Frontends: frontends, Began: time.Now()}
	s.Err = do()
	s.Ended = time.Now()
	e.steps = append(e.steps, s)
	return s.Err
}

// traced tells of a round that had work.
func (e *Engine) traced(want balancer.Desired, full bool, began time.Time, changes int, failed error) {
	if e.Trace == nil {
		return
	}
	e.Trace(&Round{Want: want, Began: began, Ended: time.Now(), Full: full, Changes: changes, Steps: e.steps, Err: failed})
	e.steps = nil
}

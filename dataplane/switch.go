package dataplane

import (
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// succession is a dataplane that takes over from another.
type succession struct {
	dataplane Dataplane
	moved     func()
	// serving is the applied state of the previous dataplane when the switch started.
	serving snap.Map[balancer.Key, *balancer.Frontend]
}

// Switch makes next take over, with d as its wanted state. The current dataplane serves, unchanged,
// until next has applied everything that it can. Then Run's goroutine calls moved, once, and the
// caller may close the former dataplane. Moved must not block.
//
// A further Switch before that, possibly back to the current dataplane, replaces the one in
// progress. The caller may then close the replaced dataplane, and its moved is never called.
func (e *Engine) Switch(next Dataplane, d balancer.Desired, moved func()) {
	e.target.set(d, &succession{dataplane: next, moved: moved}, time.Time{})
	e.wake.Send()
}

// startSwitch makes the next dataplane the one that is written to.
func (e *Engine) startSwitch(next *succession) {
	next.serving = e.applied.frontends
	if e.moving != nil {
		next.serving = e.moving.serving
	}
	e.Dataplane, e.moving = next.dataplane, next
	e.applied.frontends = snap.Map[balancer.Key, *balancer.Frontend]{}
	clear(e.applied.retries)
	e.compare = comparison{due: true, addresses: true}
}

// withRemoved adds to found, which the next dataplane has, the frontends to be removed there: those
// that are removed with the former dataplane, or were shortly before. Their connections may outlive
// that dataplane, and the next one ends them.
func (e *Engine) withRemoved(found snap.Map[balancer.Key, *balancer.Frontend], want balancer.Desired) snap.Map[balancer.Key, *balancer.Frontend] {
	for key, f := range e.moving.serving.All() {
		if !want.Frontends.Has(key) {
			found = found.Set(key, f)
		}
	}
	for key, r := range e.applied.removed {
		if left := time.Until(r.until); left > 0 && !want.Frontends.Has(key) {
			f := *r.frontend
			f.DrainTimeout = left
			found = found.Set(key, &f)
		}
	}
	return found
}

// switchTries is the number of failures of the next dataplane at a served frontend until the switch
// continues without it.
const switchTries = 3

// hasMoved reports whether the next dataplane has applied everything that it can.
func (e *Engine) hasMoved(want balancer.Desired) bool {
	if e.moving == nil || !e.applied.isReady(want) {
		return false
	}
	for key, t := range e.applied.retries {
		if t.tries < switchTries && e.moving.serving.Has(key) {
			return false
		}
	}
	return true
}

// served returns the frontends that the host keeps open: during a switch, the former dataplane's.
func (e *Engine) served(moved bool) snap.Map[balancer.Key, *balancer.Frontend] {
	if e.moving != nil && !moved {
		return e.moving.serving
	}
	return e.applied.frontends
}

func (e *Engine) endSwitch() {
	end := e.moving.moved
	e.moving = nil
	end()
}

package dataplane

import (
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// succession is a switch to another dataplane.
type succession struct {
	dataplane Dataplane
	moved     func()
	// serving holds the frontends that were applied in the previous dataplane when the switch
	// started.
	serving snap.Map[balancer.Key, *balancer.Frontend]
}

// Switch makes next take over, with d as its wanted state. The current dataplane serves its
// frontends unchanged until next has applied everything that it can. Then Run's goroutine calls
// moved once, and the caller may close the previous dataplane. moved must not block.
//
// Another call to Switch before that replaces the switch in progress. It may also switch back to
// the current dataplane. The caller may then close the replaced dataplane, whose moved function is
// never called.
func (e *Engine) Switch(next Dataplane, d balancer.Desired, moved func()) {
	e.target.set(d, &succession{dataplane: next, moved: moved}, time.Time{})
	e.wake.Send()
}

// startSwitch makes next the engine's dataplane, and requests a full comparison.
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

// withRemoved returns found, which is the state of the next dataplane, and adds the frontends that
// must be removed there. These are the frontends that the previous dataplane still serves even
// though they are no longer wanted, or that it has removed recently. Their connections may outlive
// the previous dataplane, and the next dataplane must end them.
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

// switchTries is the number of failures after which a switch no longer waits for a frontend that
// the previous dataplane serves.
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

// served returns the frontends for which the host must stay open. During a switch, these are the
// previous dataplane's frontends.
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

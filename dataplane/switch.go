package dataplane

import (
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// succession is one dataplane taking over from another.
type succession struct {
	dataplane Dataplane
	moved     func()
}

// Switch has another dataplane take over, and makes d what is wanted of it. Traffic moves before anything goes: the
// dataplane in use is left as it is, and serves, until next has applied everything but what it fails at; then
// moved is called, and from there on the one before is the caller's to close. moved is called once, by the goroutine of
// Run, and must not block.
//
// A Switch before that, back to the dataplane in use for one, takes the place of the one that is going on, whose
// dataplane is then the caller's to close, and whose moved is never called.
func (e *Engine) Switch(next Dataplane, d balancer.Desired, moved func()) {
	e.mu.Lock()
	e.wantLocked(d)
	e.next = &succession{dataplane: next, moved: moved}
	e.mu.Unlock()
	e.wake.Send()
}

// begin returns what is wanted, and begins the switch that was asked for with it: what was wanted of one dataplane is
// never applied in another.
func (e *Engine) begin() (want balancer.Desired, isSet bool) {
	e.mu.Lock()
	next := e.next
	want, isSet, e.next, e.doing = e.wanted, e.isSet, nil, e.asks
	e.mu.Unlock()
	if next != nil {
		e.succeed(next)
	}
	return want, isSet
}

// succeed begins a switch.
func (e *Engine) succeed(next *succession) {
	if e.moving == nil {
		e.serving = e.done
	}
	e.Dataplane, e.moving = next.dataplane, next
	e.done = snap.Map[balancer.Key, *balancer.Frontend]{}
	clear(e.retries)
	e.resync, e.addresses, e.repair, e.damage = true, true, false, ""
}

// departure is a frontend that was removed, and until when its connections have time.
type departure struct {
	frontend *balancer.Frontend
	until    time.Time
}

// withGone adds to done, which the next dataplane of a switch has, what is to be removed there: frontends that go with the
// dataplane before, and those that went shortly before. Connections to them may outlive it, and the next one ends them.
func (e *Engine) withGone(done snap.Map[balancer.Key, *balancer.Frontend], want balancer.Desired) snap.Map[balancer.Key, *balancer.Frontend] {
	for key, f := range e.serving.All() {
		if !want.Frontends.Has(key) {
			done = done.Set(key, f)
		}
	}
	for key, d := range e.gone {
		if left := time.Until(d.until); left > 0 && !want.Frontends.Has(key) {
			f := *d.frontend
			f.DrainTimeout = left
			done = done.Set(key, &f)
		}
	}
	return done
}

// switchTries is how often the next dataplane has to fail at a frontend that is served before the switch goes on without
// it.
const switchTries = 3

// taken reports whether this round ends the switch that is going on.
func (e *Engine) taken(want balancer.Desired, prepared error, a *applying) bool {
	if e.moving == nil || prepared != nil || a.gaveUp != nil || a.ctx.Err() != nil || !e.some(want) {
		return false
	}
	for key, t := range e.retries {
		if t.tries < switchTries && e.serving.Has(key) {
			return false
		}
	}
	return true
}

// carried is what the host is to keep open: while a switch goes on, what the dataplane before serves.
func (e *Engine) carried(taken bool) snap.Map[balancer.Key, *balancer.Frontend] {
	if e.moving != nil && !taken {
		return e.serving
	}
	return e.done
}

// moved ends a switch.
func (e *Engine) moved() {
	end := e.moving.moved
	e.moving, e.serving = nil, snap.Map[balancer.Key, *balancer.Frontend]{}
	end()
}

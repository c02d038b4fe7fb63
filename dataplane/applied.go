package dataplane

import (
	"maps"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// applied is the engine's view of a dataplane's state. A key whose last change failed differs from
// the wanted state.
type applied struct {
	// frontends maps each key to the frontend that was applied, or to a mark if its state is
	// unknown (see markUnknown).
	frontends snap.Map[balancer.Key, *balancer.Frontend]
	retries   map[balancer.Key]*retry
	// removed holds frontends that were removed but whose connections may still be open.
	removed map[balancer.Key]removal
}

// retry is a change that failed, or that the host does not permit yet.
type retry struct {
	backoff
	wanted *balancer.Frontend // a change to the wanted frontend ends the backoff
	err    error
	// held reports whether the host does not permit the change yet. If so, the engine calls
	// Host.Ready again in every round.
	held bool
}

// removal is a removed frontend. Its connections may continue until the time in the field until.
type removal struct {
	frontend *balancer.Frontend
	until    time.Time
}

func newApplied() applied {
	return applied{retries: map[balancer.Key]*retry{}, removed: map[balancer.Key]removal{}}
}

// isApplied reports whether f is an applied frontend, not the mark of an unknown state.
func isApplied(f *balancer.Frontend) bool { return f.Service != "" }

// unknown returns the mark for a key whose state is unknown. The mark differs from every wanted
// frontend.
func unknown(k balancer.Key) *balancer.Frontend { return &balancer.Frontend{Key: k} }

// settle records that the key has reached its desired state. f is the applied frontend, or nil if
// the key was removed.
func (a *applied) settle(key balancer.Key, f *balancer.Frontend) {
	delete(a.retries, key)
	delete(a.removed, key)
	if f != nil {
		a.frontends = a.frontends.Set(key, f)
		return
	}
	if was := a.frontends.At(key); was != nil && isApplied(was) {
		a.removed[key] = removal{was, time.Now().Add(was.DrainTimeout)}
	}
	a.frontends = a.frontends.Delete(key)
}

// markUnknown records that the state of key is unknown. It adds the key even if it did not exist
// before, because a failed Apply may have created it.
func (a *applied) markUnknown(key balancer.Key) { a.frontends = a.frontends.Set(key, unknown(key)) }

// damaged returns the keys that had the wanted frontend in a, but whose frontend in found differs
// from it.
func (a *applied) damaged(found snap.Map[balancer.Key, *balancer.Frontend], want balancer.Desired) (keys []balancer.Key) {
	for key, change := range snap.Diff(a.frontends, found) {
		if change.HadOld && want.Frontends.At(key) == change.Old {
			keys = append(keys, key)
		}
	}
	return keys
}

// retryOf returns the retry of c, and adds it if missing.
func (a *applied) retryOf(c Change) *retry {
	t := a.retries[c.Key]
	if t == nil || t.wanted != c.New {
		t = &retry{wanted: c.New}
		a.retries[c.Key] = t
	}
	return t
}

// prune removes the retries of keys whose desired state is applied, and the removals whose drain
// time is over.
func (a *applied) prune(want balancer.Desired) {
	now := time.Now()
	maps.DeleteFunc(a.removed, func(_ balancer.Key, r removal) bool { return r.until.Before(now) })
	maps.DeleteFunc(a.retries, func(k balancer.Key, _ *retry) bool { return want.Frontends.At(k) == a.frontends.At(k) })
}

// nextRetry returns the time of the next retry, or zero if no key is in backoff.
func (a *applied) nextRetry() (next time.Time) {
	for _, t := range a.retries {
		if next.IsZero() || t.due.Before(next) {
			next = t.due
		}
	}
	return next
}

// isReady reports whether at least one wanted frontend is applied, or none is wanted.
func (a *applied) isReady(want balancer.Desired) bool {
	failing := 0
	for k := range a.retries {
		if want.Frontends.Has(k) { // otherwise the retry is a removal
			failing++
		}
	}
	return want.Frontends.Len() == 0 || failing < want.Frontends.Len()
}

// isWaiting reports whether a wanted frontend is not applied yet.
func (a *applied) isWaiting() bool {
	for _, t := range a.retries {
		if t.wanted != nil {
			return true
		}
	}
	return false
}

// errors returns the error of each key that has a retry.
func (a *applied) errors() map[balancer.Key]error {
	all := make(map[balancer.Key]error, len(a.retries))
	for k, t := range a.retries {
		all[k] = t.err
	}
	return all
}

package dataplane

import (
	"sync"
	"time"

	"vipd/balancer"
)

// target is the desired state of an engine. Its methods are safe for concurrent use.
type target struct {
	mu sync.Mutex // guards the fields below
	request
	behind time.Time // start of the period in which the desired state has not been applied, or zero
	newer  time.Time // time of the first change since the last call to take, or zero
}

// request is the part of a target that the loop receives.
type request struct {
	desired balancer.Desired
	isSet   bool
	compare bool        // a full comparison was requested since the last call to take
	next    *succession // the switch that was requested since the last call to take, or nil
}

// set stores d as the desired state. If next is not nil, d is the desired state of next. Both are
// stored together, because a state must be applied only in its own dataplane. If next is nil and an
// older change has not been applied yet, d gets that change's time. applied is the time of the last
// applied change.
func (t *target) set(d balancer.Desired, next *succession, applied time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if next != nil {
		t.next = next
	} else if seen := t.desired.Revision.Seen; t.isSet && !seen.IsZero() && seen != applied {
		d.Revision.Seen = seen
	}
	t.desired, t.isSet = d, true
	now := time.Now()
	if t.newer.IsZero() {
		t.newer = now
	}
	if t.behind.IsZero() {
		t.behind = now
	}
}

func (t *target) requestComparison() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.compare = true
}

func (t *target) get() (balancer.Desired, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.desired, t.isSet
}

// take returns the desired state, with the requests for a comparison and a switch. It clears these
// requests.
func (t *target) take() request {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.request
	t.compare = false
	t.next = nil
	t.newer = time.Time{}
	return r
}

// settle records whether a round has applied its desired state. started is the time when the round
// started.
func (t *target) settle(started time.Time, isApplied bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case isApplied:
		t.behind = t.newer
	case t.behind.IsZero():
		t.behind = started
	}
}

// since returns when the engine fell behind the desired state, or zero.
func (t *target) since() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.behind
}

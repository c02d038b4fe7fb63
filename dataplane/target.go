package dataplane

import (
	"sync"
	"time"

	"vipd/balancer"
)

// target is the wanted state of an engine. Its methods are safe for concurrent use.
type target struct {
	mu sync.Mutex // guards the fields below
	request
	behind time.Time // time since which the desired state is not applied, or zero
	newer  time.Time // time of the first change since the last take, or zero
}

// request is a target in the form in which the loop receives it.
type request struct {
	desired balancer.Desired
	isSet   bool
	compare bool        // a full comparison was requested since the last take
	next    *succession // a switch was requested since the last take; nil means none
}

// set sets d as the desired state. If next is not nil, d is the desired state of next, because a
// state must only be applied in its own dataplane. If older changes are still not applied, d keeps
// the time of the oldest change. applied is the time of the last change that is applied.
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

// take returns the request and resets the comparison and the switch in the target.
func (t *target) take() request {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.request
	t.compare = false
	t.next = nil
	t.newer = time.Time{}
	return r
}

// settle records whether the round that started at that time has applied the state that it
// received.
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

// since returns the time since which the desired state is not applied, or zero.
func (t *target) since() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.behind
}

package dataplane

import (
	"sync"
	"time"

	"vipd/balancer"
)

// target is the wanted state of an engine. Any goroutine may call its methods.
type target struct {
	mu sync.Mutex // guards the rest
	request
	behind time.Time // since when the desired state is not applied; zero means that it is
	newer  time.Time // of the first change since the loop's last take; zero means none
}

// request is a target as the loop takes it.
type request struct {
	desired balancer.Desired
	isSet   bool
	compare bool        // a full comparison was requested since the last take
	next    *succession // a switch was requested since the last take; nil means none
}

// set makes d the desired state, of the next dataplane unless that is nil: a state is never applied
// in another dataplane than its own. While older changes are not applied, d keeps the time of the
// oldest. Applied is the time of the last change that is.
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

// take returns the request. Its comparison and switch are then the loop's.
func (t *target) take() request {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.request
	t.compare, t.next, t.newer = false, nil, time.Time{}
	return r
}

// settle notes whether the round that started at that time has applied the state that it took.
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

// since returns since when the desired state is not applied; zero means that it is.
func (t *target) since() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.behind
}

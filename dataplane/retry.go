package dataplane

import (
	"math/rand/v2"
	"time"

	"vipd/balancer"
)

// retry is what is remembered of a key that could not be made what is wanted.
type retry struct {
	wanted *balancer.Frontend // a change of it ends the backoff
	tries  int
	due    time.Time
	err    error
	// held: the host has not let it be applied, so it is asked again in every round.
	held bool
}

// backoff returns how long to wait after the tries-th failure: doubling from RetryMin to RetryMax, with the last half
// of it random, so that what failed together does not come back together.
func (e *Engine) backoff(tries int) time.Duration {
	d := e.RetryMin
	for i := 1; i < tries && d < e.RetryMax; i++ {
		d *= 2
	}
	d = min(d, e.RetryMax)
	return d/2 + rand.N(d/2+1)
}

// nextRetry returns when the next thing that failed is due; zero means nothing is. While the whole fails, trying single keys
// one after the other would only keep the machine busy: they wait for its next try.
func (e *Engine) nextRetry() time.Time {
	if !e.wholeDue.IsZero() {
		return e.wholeDue
	}
	var next time.Time
	for _, t := range e.retries {
		if next.IsZero() || t.due.Before(next) {
			next = t.due
		}
	}
	return next
}

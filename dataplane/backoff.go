package dataplane

import (
	"math/rand/v2"
	"time"
)

// backoff schedules retries after failures. The zero value has no failures.
type backoff struct {
	tries int       // number of consecutive failures
	due   time.Time // time of the next attempt
}

// fail counts another failure.
func (b *backoff) fail(o *Options) {
	b.tries++
	b.due = time.Now().Add(o.pause(b.tries))
}

// pause returns how long to wait after tries consecutive failures. The pause doubles from RetryMin
// to RetryMax. Half of it is random, so changes that failed together are not retried together.
func (o *Options) pause(tries int) time.Duration {
	d := o.RetryMin
	for i := 1; i < tries && d < o.RetryMax; i++ {
		d *= 2
	}
	d = min(d, o.RetryMax)
	return d/2 + rand.N(d/2+1)
}

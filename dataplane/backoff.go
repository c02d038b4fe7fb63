package dataplane

import (
	"math/rand/v2"
	"time"
)

// backoff spaces the attempts at something that fails. Its zero value has no failure.
type backoff struct {
	tries int       // failures in a row
	due   time.Time // of the next attempt
}

// fail counts another failure.
func (b *backoff) fail(o *Options) {
	b.tries++
	b.due = time.Now().Add(o.pause(b.tries))
}

// pause returns the time to wait after so many failures. It doubles from RetryMin to RetryMax. Half
// of it is random, so objects that failed together do not return together.
func (o *Options) pause(tries int) time.Duration {
	d := o.RetryMin
	for i := 1; i < tries && d < o.RetryMax; i++ {
		d *= 2
	}
	d = min(d, o.RetryMax)
	return d/2 + rand.N(d/2+1)
}

package names

import (
	"context"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
)

type lookup struct {
	balancer.Lookup
	again wake.Signal // sent when the interval has changed

	// The caller of Resolved owns users and own. own is the number of users that this node's files
	// define.
	users map[balancer.Name]use
	own   int

	// Names.mu guards the fields below.
	interval time.Duration // the shortest interval of all users
	answer   *balancer.Resolution
	stop     context.CancelFunc // nil until the lookup starts
}

func (l *lookup) shortest() (shortest time.Duration) {
	for _, u := range l.users {
		if u.interval != 0 && (shortest == 0 || u.interval < shortest) {
			if shortest = u.interval; shortest == l.interval {
				break // no user can have a shorter interval
			}
		}
	}
	return shortest
}

// maxSimultaneous limits simultaneous lookups, because each may need several sockets.
const maxSimultaneous = 64

// These are the minimum and maximum pauses between two lookups. After failures, the pause doubles
// from the minimum up to failedPause.
const (
	minPause    = time.Second
	maxPause    = time.Hour
	failedPause = 30 * time.Second
)

// Run repeats the lookups until ctx is done.
func (n *Names) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
		n.mu.Lock()
		for l := range n.added {
			repeating, stop := context.WithCancel(ctx)
			l.stop = stop
			running.Go(func() { n.repeat(repeating, l) })
		}
		clear(n.added)
		n.mu.Unlock()
	}
}

// repeat repeats one lookup until ctx is done.
func (n *Names) repeat(ctx context.Context, l *lookup) {
	retry := minPause
	for {
		select {
		case <-ctx.Done():
			return
		case n.free <- struct{}{}:
		}
		n.mu.Lock()
		last := l.answer.Records
		n.mu.Unlock()
		a := n.o.Answer(ctx, l.Lookup, last)
		<-n.free
		if ctx.Err() != nil {
			return
		}
		pause := max(a.TTL, minPause)
		if a.Failure != "" {
			pause, retry = retry, min(2*retry, failedPause)
		} else {
			retry = minPause
		}
		pause = min(pause, n.answer(l, &a.Resolution))
		select {
		case <-ctx.Done():
			return
		case <-l.again:
		case <-time.After(pause):
		}
	}
}

// answer stores an answer, and returns the maximum time until the next lookup. An answer that
// equals the last answer changes nothing.
func (n *Names) answer(l *lookup, a *balancer.Resolution) time.Duration {
	n.mu.Lock()
	changed := !a.Equal(l.answer)
	if changed {
		l.answer, n.answered[l] = a, true
	}
	interval := l.interval
	n.mu.Unlock()
	if changed {
		n.o.Kick()
	}
	if interval == 0 {
		return maxPause
	}
	return interval
}

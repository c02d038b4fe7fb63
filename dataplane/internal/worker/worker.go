package worker

import (
	"context"
	"sync"
	"time"

	"vipd/balancer/lib/wake"
)

// Loop calls a function whenever something may be due, in a goroutine that begins with the first call of Look and ends
// with Close. It is safe for several goroutines.
type Loop struct {
	wake wake.Signal // holds one token: look again
	work func(ctx context.Context) time.Time

	mu      sync.Mutex // guards what follows
	stop    context.CancelFunc
	closed  bool
	running sync.WaitGroup
}

// New returns a Loop that has not begun. The function does what is due, and returns when something is due again; zero:
// nothing is, until the next call of Look. Its context ends with Close.
func New(work func(ctx context.Context) time.Time) *Loop {
	return &Loop{wake: wake.New(), work: work}
}

// Look has the function called soon.
func (l *Loop) Look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop == nil && !l.closed {
		ctx, cancel := context.WithCancel(context.Background())
		l.stop = cancel
		l.running.Go(func() { l.run(ctx) })
	}
	l.wake.Send()
}

func (l *Loop) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-timer.C:
		}
		if ctx.Err() != nil { // whatever else there was
			return
		}
		timer.Stop()
		if next := l.work(ctx); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// Close ends the goroutine, and waits for it. It does not begin again.
func (l *Loop) Close() {
	l.mu.Lock()
	l.closed = true
	if l.stop != nil {
		l.stop()
	}
	l.mu.Unlock()
	l.running.Wait()
}

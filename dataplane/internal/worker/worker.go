package worker

import (
	"context"
	"sync"
	"time"

	"vipd/balancer/lib/wake"
)

// Loop calls a function when work is due. Its goroutine starts with the first call to Look, and
// exits after Close. It is safe for concurrent use.
type Loop struct {
	wake wake.Signal // sent to request a call
	work func(ctx context.Context) time.Time

	mu      sync.Mutex // guards the fields below
	stop    context.CancelFunc
	closed  bool
	running sync.WaitGroup
}

// New returns a Loop that has not started. The function work must do all due work and return the
// time of its next call, or zero to wait for Look. Close cancels the context that work receives.
func New(work func(ctx context.Context) time.Time) *Loop {
	return &Loop{wake: wake.New(), work: work}
}

// Look requests a call to the function.
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
		if ctx.Err() != nil { // takes precedence over Look
			return
		}
		timer.Stop()
		if next := l.work(ctx); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// Close stops the goroutine and waits until it has exited. The Loop can't be started again.
func (l *Loop) Close() {
	l.mu.Lock()
	l.closed = true
	if l.stop != nil {
		l.stop()
	}
	l.mu.Unlock()
	l.running.Wait()
}

package ipvs

import (
	"context"
	"sync"
	"time"
)

// loop calls a function whenever something may be due, in a goroutine that begins with the first call of look and ends
// with close.
type loop struct {
	wake chan struct{} // holds one token: look again
	// sweep does what is due, and returns when something is due again; zero: nothing is, until the next look.
	sweep func(ctx context.Context) time.Time

	mu      sync.Mutex // guards what follows
	stop    context.CancelFunc
	closed  bool
	running sync.WaitGroup
}

func (l *loop) begin(sweep func(ctx context.Context) time.Time) {
	l.wake, l.sweep = make(chan struct{}, 1), sweep
}

// look has the function called soon.
func (l *loop) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop == nil && !l.closed {
		ctx, cancel := context.WithCancel(context.Background())
		l.stop = cancel
		l.running.Go(func() { l.run(ctx) })
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
		}
		timer.Stop()
		if next := l.sweep(ctx); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// close ends the goroutine, and waits for it. It does not begin again.
func (l *loop) close() {
	l.mu.Lock()
	l.closed = true
	if l.stop != nil {
		l.stop()
	}
	l.mu.Unlock()
	l.running.Wait()
}

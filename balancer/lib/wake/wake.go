package wake

import (
	"context"
	"time"
)

// Signal holds one token at most: however often it is sent to, the one who receives looks once. Receive from it as from any channel.
type Signal chan struct{}

// New returns a Signal without a token.
func New() Signal { return make(Signal, 1) }

// Send leaves a token, unless one is there already. It does not block, and may be called by any goroutine.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Sleep waits for d. It reports whether that time is over; false means that ctx ended before.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

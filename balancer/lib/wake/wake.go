package wake

import (
	"context"
	"time"
)

// Signal holds at most one token, so several sends before a receive wake the loop once. Receive
// from it like from any channel.
type Signal chan struct{}

// New returns a Signal without a token.
func New() Signal { return make(Signal, 1) }

// Send adds a token unless a token is already pending. It does not block. It is safe for concurrent
// use.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Sleep waits for d. It returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrSilent is what a daemon that takes a question and does not answer comes to.
var ErrSilent = errors.New("no answer in time")

// silence ends a question when nothing of its answer comes for a while. A nil one never does.
type silence struct {
	patience time.Duration
	timer    *time.Timer
	cancel   context.CancelCauseFunc
	body     io.Reader
}

// bound returns a context that ends when the daemon is silent for as long as patience says. Its silence is to be ended.
func (c *Client) bound(ctx context.Context, patience time.Duration) (context.Context, *silence) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("%w: vipd at %s has said nothing for %s; it hangs, or this host has no time for it", ErrSilent, c.socket, patience))
	})
	return ctx, &silence{patience: patience, timer: timer, cancel: cancel}
}

// heard returns the answer; each part of it that comes ends the silence so far.
func (s *silence) heard(body io.Reader) io.Reader {
	if s == nil {
		return body
	}
	s.body = body
	return s
}

// Read reads what comes of the answer.
func (s *silence) Read(p []byte) (n int, err error) {
	n, err = s.body.Read(p)
	if n > 0 {
		s.timer.Reset(s.patience)
	}
	return n, err
}

// end lets go.
func (s *silence) end() {
	s.timer.Stop()
	s.cancel(nil)
}

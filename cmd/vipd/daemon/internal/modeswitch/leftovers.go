package modeswitch

import (
	"context"
	"slices"
	"time"

	"vipd/cmd/internal/modes"
)

// The pauses between two attempts at removing leftovers, of which each is twice the one before.
const (
	firstLeftoversPause   = 5 * time.Second
	longestLeftoversPause = 5 * time.Minute
)

// RemoveLeftovers removes what other modes left, when a vipd that served by one of them was stopped or killed: kernel
// modes leave their rules on purpose. It waits until the mode in use has applied the first complete state, so that
// the traffic has moved before, and tries again until nothing is left. So it does whenever a mode that was left could not
// remove everything: its rules may stand before those of the mode in use, and lead to endpoints of the past.
func (c *Switch) RemoveLeftovers(ctx context.Context) error {
	for {
		changed := c.o.Engine.Changed()
		if c.o.Engine.Status().Ready {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
	pause := firstLeftoversPause
	for all := c.o.Modes; ; {
		again := time.After(pause)
		all = slices.DeleteFunc(slices.Clone(all), func(m modes.Mode) bool { return c.removeOther(ctx, m) })
		if len(all) == 0 {
			again = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again:
			pause = min(2*pause, longestLeftoversPause)
		case <-c.left:
			all, pause = c.o.Modes, firstLeftoversPause
		}
	}
}

// removeOther removes what a mode left that is not in use, and reports whether nothing of it is left.
func (c *Switch) removeOther(ctx context.Context, m modes.Mode) (ok bool) {
	c.changing.Lock() // no mode is tried meanwhile
	defer c.changing.Unlock()
	if m.Name == c.Serving().Name || c.isRetiring(m.Name) {
		return true
	}
	found, lookErr := m.Cleanup(ctx, c.o.Config, true)
	if lookErr != nil { // without privilege nothing can be seen, nor have been left
		c.o.Log.Debug("looking for what another mode left", "dataplane", m.Name, "err", lookErr)
	}
	if len(found) == 0 {
		return lookErr == nil
	}
	removed, err := m.Cleanup(ctx, c.o.Config, false)
	if err != nil {
		c.o.Log.Error("removing what another mode left; it is tried again, and vipctl cleanup removes it while vipd is stopped", "dataplane", m.Name, "err", err)
		return false
	}
	c.o.Engine.Resync() // as after a mode that has ended
	for _, what := range removed {
		c.o.Log.Info("removed what another mode left", "dataplane", m.Name, "what", what)
	}
	return true
}

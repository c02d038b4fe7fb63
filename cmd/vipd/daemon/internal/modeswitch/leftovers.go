package modeswitch

import (
	"context"
	"slices"
	"time"

	"vipd/cmd/internal/modes"
)

// The pause between two attempts to remove leftovers doubles each time, within these limits.
const (
	firstLeftoversPause   = 5 * time.Second
	longestLeftoversPause = 5 * time.Minute
)

// RemoveLeftovers removes the kernel state of unused modes. A vipd in a kernel mode intentionally
// leaves its rules when it stops or is killed. RemoveLeftovers waits until the mode in use has
// applied the first complete state, so the traffic has moved, and retries until everything is
// removed. It also runs if a retired mode could not remove everything, because old rules may come
// before the rules of the mode in use, and may lead to old endpoints.
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

// removeOther removes the kernel state of an unused mode, and reports whether nothing remains.
func (c *Switch) removeOther(ctx context.Context, m modes.Mode) (ok bool) {
	c.changing.Lock() // blocks trials of modes
	defer c.changing.Unlock()
	if m.Name == c.Serving().Name || c.isRetiring(m.Name) {
		return true
	}
	found, lookErr := m.Cleanup(ctx, c.o.Config, true)
	if lookErr != nil { // without privileges, leftovers can neither be seen nor created
		c.o.Log.Debug("can't search for another mode's objects", "dataplane", m.Name, "err", lookErr)
	}
	if len(found) == 0 {
		return lookErr == nil
	}
	removed, err := m.Cleanup(ctx, c.o.Config, false)
	if err != nil {
		c.o.Log.Error("another mode's objects can't be removed; vipd retries. While vipd is stopped, vipctl cleanup removes them", "dataplane", m.Name, "err", err)
		return false
	}
	c.o.Engine.Resync() // the mode in use examines the connections that conntrack keeps
	for _, what := range removed {
		c.o.Log.Info("removed another mode's objects", "dataplane", m.Name, "what", what)
	}
	return true
}

package daemon

import "context"

// removeLeftovers removes what other modes left, when a vipd that served by one of them was stopped or killed: kernel
// modes leave their rules on purpose. It waits until the mode in use has tried the first complete state, so that the
// traffic has moved before.
func (d *Daemon) removeLeftovers(ctx context.Context) error {
	for {
		changed := d.engine.Changed()
		if d.engine.Status().Tried {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
	for _, m := range d.Modes {
		if m.Name == d.mode.Name {
			continue
		}
		found, err := m.Cleanup(ctx, d.config, true)
		if err != nil { // without privilege nothing can be seen, nor have been left
			d.Log.Debug("looking for what another mode left", "dataplane", m.Name, "err", err)
		}
		if len(found) == 0 {
			continue
		}
		removed, err := m.Cleanup(ctx, d.config, false)
		if err != nil {
			d.Log.Error("removing what another mode left; vipctl cleanup removes it while vipd is stopped", "dataplane", m.Name, "err", err)
		}
		for _, what := range removed {
			d.Log.Info("removed what another mode left", "dataplane", m.Name, "what", what)
		}
	}
	return nil
}

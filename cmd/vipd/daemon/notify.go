package daemon

import (
	"context"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// notifier tells systemd how the daemon is. Without systemd (no NOTIFY_SOCKET) every call does nothing.
type notifier struct{}

func (notifier) tell(state string) {
	_, _ = systemd.SdNotify(false, state) // nobody can be told that systemd can't be told
}

func (n notifier) ready()     { n.tell(systemd.SdNotifyReady) }
func (n notifier) stopping()  { n.tell(systemd.SdNotifyStopping) }
func (n notifier) reloading() { n.tell(systemd.SdNotifyReloading) }

// stuckAfter is how long the engine or the model may not come round before the watchdog is no longer fed. It leaves
// room for a full load of a kernel.
const stuckAfter = 90 * time.Second

// notifyLoop tells systemd when the first complete state is carried out, and feeds its watchdog while the engine comes
// round.
func (d *Daemon) notifyLoop(ctx context.Context) error {
	interval, err := systemd.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		interval = time.Minute
	}
	feed := time.NewTicker(interval / 3)
	defer feed.Stop()
	ready := false
	for {
		changed := d.engine.Changed()
		if !ready && d.ready() {
			ready = true
			d.notify.ready()
			d.Log.Info("ready: the first complete state is carried out", "took", time.Since(d.started).Round(time.Millisecond))
		}
		if ready {
			changed = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-feed.C:
			if time.Since(d.engine.Progress()) < stuckAfter {
				d.notify.tell(systemd.SdNotifyWatchdog)
			}
		}
	}
}

// ready reports whether the first complete state is carried out.
func (d *Daemon) ready() bool { return d.engine.Status().Ready && d.model.state().complete }

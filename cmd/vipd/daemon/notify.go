package daemon

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// notifier tells systemd how the daemon is. Without systemd (no NOTIFY_SOCKET) every call does nothing.
type notifier struct {
	up atomic.Bool

	mu   sync.Mutex // guards said
	said string     // the status that systemd knows
}

func (n *notifier) tell(state string) {
	_, _ = systemd.SdNotify(false, state) // there is no one to report the error to
}

// TellStatus gives systemd, where there is one, the line that systemctl status shows.
func TellStatus(text string) {
	_, _ = systemd.SdNotify(false, "STATUS="+strings.Join(strings.Fields(text), " ")) // a line break would end it
}

// started says once that the daemon is up.
func (n *notifier) started() {
	if !n.up.Swap(true) {
		n.tell(systemd.SdNotifyReady)
	}
}

// reloading and reloaded frame a reload; before the start has been told they say nothing.
func (n *notifier) reloading() {
	if n.up.Load() {
		n.tell(systemd.SdNotifyReloading)
	}
}

func (n *notifier) reloaded() {
	if n.up.Load() {
		n.tell(systemd.SdNotifyReady)
	}
}

// status gives systemd the line that systemctl status shows, if it is another one than before. It is asked for only where
// there is a systemd.
func (n *notifier) status(line func() string) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := line(); now != n.said {
		n.said = now
		TellStatus(now)
	}
}

func (n *notifier) stopping() { n.tell(systemd.SdNotifyStopping) }

// extend asks for time to start or stop in, from now.
func (n *notifier) extend(by time.Duration) {
	n.tell(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", by.Microseconds()))
}

// stuckAfter is how long the engine or the model may not come round before the watchdog is no longer fed. It leaves
// room for a full load of a kernel.
const stuckAfter = 90 * time.Second

// notifyLoop tells systemd when the first complete state was tried, and feeds its watchdog while the engine and the model
// come round. A state that can't be applied whole must not keep systemd waiting, which would kill and restart what
// serves the rest: /readyz and status say what is wrong.
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
		if d.engine.Status().Tried {
			d.notify.started()
		}
		if !ready && d.views.Look().Ready() {
			ready = true
			d.Log.Info("ready: the first complete state is applied", "took", time.Since(d.started).Round(time.Millisecond))
			d.notify.status(d.summary)
		}
		if ready {
			changed = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-feed.C:
			if d.engine.Working() < stuckAfter && d.model.Waiting() < stuckAfter {
				d.notify.tell(systemd.SdNotifyWatchdog)
				if !d.notify.up.Load() { // a store may be waited for without end, while the kernel serves on
					d.notify.extend(interval)
				}
			}
			d.notify.status(d.summary)
		}
	}
}

// summary says in a line how the daemon is.
func (d *Daemon) summary() string {
	v := d.views.Look()
	services, frontends := v.State.Snapshot.Services.Len(), v.State.Desired.Frontends.Len()
	line := fmt.Sprintf("%s mode, services: %d, frontends: %d", v.Mode.Name, services, frontends)
	if n := v.Pending() + len(v.Sync.Failing); n > 0 {
		line += fmt.Sprintf(" (not as wanted: %d)", n)
	}
	if n := len(v.Problems()); n > 0 {
		line += fmt.Sprintf(", problems: %d (vipctl status)", n)
	}
	if reasons := v.Unready(); len(reasons) > 0 {
		return line + ", not ready: " + strings.Join(reasons, "; ")
	}
	if err := v.State.Snapshot.Err; err != nil {
		line += fmt.Sprintf(", the store is not readable: %v", err)
	}
	if v.Sync.LastError != "" {
		line += ", not everything could be applied: " + v.Sync.LastError
	}
	return line
}

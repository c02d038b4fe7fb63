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

// notifier reports the daemon's state to systemd. Without systemd (no NOTIFY_SOCKET) every call
// does nothing.
type notifier struct {
	up atomic.Bool

	mu         sync.Mutex // guards lastStatus
	lastStatus string     // the last status sent to systemd
}

func (n *notifier) tell(state string) {
	_, _ = systemd.SdNotify(false, state) // an error can't be reported anywhere
}

// TellStatus sets the status line that systemctl shows, if vipd runs under systemd.
func TellStatus(text string) {
	_, _ = systemd.SdNotify(false, "STATUS="+strings.Join(strings.Fields(text), " ")) // a line break would end the status
}

// started reports to systemd once that the daemon is ready.
func (n *notifier) started() {
	if !n.up.Swap(true) {
		n.tell(systemd.SdNotifyReady)
	}
}

// reloading reports the start of a reload, and reloaded its end. Before started they do nothing.
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

// status sends line's text to systemd if it has changed. Without systemd it doesn't call line.
func (n *notifier) status(line func() string) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := line(); now != n.lastStatus {
		n.lastStatus = now
		TellStatus(now)
	}
}

func (n *notifier) stopping() { n.tell(systemd.SdNotifyStopping) }

// extend requests more time from systemd to start or stop, counted from now.
func (n *notifier) extend(by time.Duration) {
	n.tell(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", by.Microseconds()))
}

// stuckAfter is the maximum time between two rounds of the engine or the model. After it vipd no
// longer feeds the watchdog. It leaves room for loading a kernel with all services.
const stuckAfter = 90 * time.Second

// notifyLoop reports to systemd when the first complete state was tried, and feeds the watchdog as
// long as the engine and the model make rounds. A state that can't be applied completely is still
// ready, or systemd would kill the vipd that serves the rest. /readyz and status report the
// problem.
func (d *Daemon) notifyLoop(ctx context.Context) error {
	interval, err := systemd.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		interval = time.Minute
	}
	feed := time.NewTicker(interval / 3)
	defer feed.Stop()
	ready := false
	for {
		changed, compiled := d.engine.Changed(), d.model.Changed()
		if d.engine.Status().Tried {
			d.notify.started()
		}
		if !ready && d.views.Look().Ready() {
			ready = true
			d.Log.Info("ready: the first complete state is applied", "took", time.Since(d.started).Round(time.Millisecond))
			d.notify.status(d.summary)
		}
		if ready {
			changed, compiled = nil, nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-compiled:
		case <-feed.C:
			if d.engine.Working() < stuckAfter && d.model.Waiting() < stuckAfter {
				d.notify.tell(systemd.SdNotifyWatchdog)
				if !d.notify.up.Load() { // the wait for a store has no limit, and the kernel serves during that time
					d.notify.extend(interval)
				}
			}
			d.notify.status(d.summary)
		}
	}
}

// summary describes the daemon's state in a line.
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

package daemon

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// notifier reports the daemon's state to systemd. Without systemd (no NOTIFY_SOCKET), its methods
// do nothing.
type notifier struct {
	up atomic.Bool

	mu         sync.Mutex // guards lastStatus
	lastStatus string
}

func (n *notifier) notify(state string) {
	_, _ = systemd.SdNotify(false, state) // there is nowhere to report an error
}

// SetStatus sets the status line in systemctl, if vipd runs under systemd.
func SetStatus(text string) {
	_, _ = systemd.SdNotify(false, "STATUS="+strings.Join(strings.Fields(text), " ")) // a line break would end the status
}

// started reports to systemd that the daemon is ready. Only the first call has an effect.
func (n *notifier) started() {
	if !n.up.Swap(true) {
		n.notify(systemd.SdNotifyReady)
	}
}

// reloading reports that a reload has started. Before started is called, it does nothing.
func (n *notifier) reloading() {
	if n.up.Load() {
		n.notify(systemd.SdNotifyReloading)
	}
}

func (n *notifier) reloaded() {
	if n.up.Load() {
		n.notify(systemd.SdNotifyReady)
	}
}

// status calls the function line, and sends the returned text to systemd if it has changed. Without
// systemd, it does not call the function.
func (n *notifier) status(line func() string) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := line(); now != n.lastStatus {
		n.lastStatus = now
		SetStatus(now)
	}
}

func (n *notifier) stopping() { n.notify(systemd.SdNotifyStopping) }

// extend asks systemd for more time to start or stop. The argument by is counted from now.
func (n *notifier) extend(by time.Duration) {
	n.notify(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", by.Microseconds()))
}

// stuckAfter is how long the engine or the model may make no progress before vipd stops feeding the
// watchdog. It is long enough to load all services into the kernel.
const stuckAfter = 90 * time.Second

// notifyLoop reports readiness to systemd after the first attempt to apply a complete state. It
// feeds the watchdog while the engine and the model make progress. vipd is ready even if some
// services can't be applied. Otherwise, systemd would kill it, and all other services would stop.
// /readyz and status report the failure.
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
			debug.FreeOSMemory() // the start needed much more memory than vipd needs from now on
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
				d.notify.notify(systemd.SdNotifyWatchdog)
				if !d.notify.up.Load() { // there is no limit on waiting for a store, because the kernel continues to serve
					d.notify.extend(interval)
				}
			}
			d.notify.status(d.summary)
		}
	}
}

// summary describes the daemon's state in one line.
func (d *Daemon) summary() string {
	v := d.views.Look()
	services, frontends := v.State.Snapshot.Services.Len(), v.State.Desired.Frontends.Len()
	line := fmt.Sprintf("%s mode, services: %d, frontends: %d", v.Mode.Name, services, frontends)
	if n := v.Pending() + len(v.Sync.Failing); n > 0 {
		line += fmt.Sprintf(" (not applied: %d)", n)
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

package owner

import (
	"bytes"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"vipd/balancer/lib/wake"
	"vipd/cmd/internal/api"
)

// daemon is vipd's state according to its reports.
type daemon struct {
	// changed is sent when a report's content has changed.
	changed wake.Signal

	mu         sync.Mutex // guards the fields below
	report     *api.OwnerReport
	text       []byte   // the undecoded report
	from       net.Conn // the connection over which the report arrived
	pid        int      // process that sent the report, or 0 if unknown
	reportedAt time.Time
}

// minPatience is how long a running vipd must at least be silent before it counts as failed. It is
// long, because VIPs should not move when a host is busy.
const minPatience = 2 * time.Second

// patience returns how long vipd may be silent before it counts as failed.
func patience(report *api.OwnerReport) time.Duration {
	if report == nil {
		return minPatience
	}
	return max(report.Grace, minPatience)
}

// receive handles a report. vipd usually sends the same report each second, with up to 10,000 VIPs,
// so receive decodes only changed reports.
func (d *daemon) receive(text []byte, from net.Conn) error {
	d.mu.Lock()
	report := d.report
	same := report != nil && bytes.Equal(text, d.text)
	silent := time.Since(d.reportedAt) >= patience(report)
	d.mu.Unlock()
	if !same {
		report = &api.OwnerReport{}
		if err := json.Unmarshal(text, report); err != nil {
			return err
		}
	}
	d.mu.Lock()
	if d.from != from {
		d.from, d.pid = from, peer(from)
	}
	d.report = report
	d.text = text
	d.reportedAt = time.Now()
	d.mu.Unlock()
	if !same || silent {
		d.changed.Send()
	}
	return nil
}

// keepsServing reports whether VIPs are served for some time without vipd.
func keepsServing(report *api.OwnerReport) bool { return report.Grace >= minPatience }

// closed handles a closed connection. If it was vipd's connection, and VIPs are not served without
// vipd, this host can no longer serve the VIPs.
func (d *daemon) closed(c net.Conn, state http.ConnState) {
	if state != http.StateClosed {
		return
	}
	d.mu.Lock()
	gone := d.from == c && !keepsServing(d.report)
	if gone {
		d.reportedAt = time.Time{}
	}
	d.mu.Unlock()
	if gone {
		d.changed.Send()
	}
}

// hangs reports whether VIPs are not served although vipd has not exited: a signal has stopped it
// for longer than its grace period, and VIPs are not served without it. It returns true only once
// each time vipd is stopped.
func (d *daemon) hangs() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.report == nil || keepsServing(d.report) || d.reportedAt.IsZero() || time.Since(d.reportedAt) < d.report.Grace || !frozen(d.pid) {
		return false
	}
	d.reportedAt = time.Time{}
	return true
}

func (d *daemon) last() *api.OwnerReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.report
}

// current returns the last report. If vipd has been silent for too long, it returns a report in
// which no VIP can be served.
func (d *daemon) current() *api.OwnerReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.report == nil || time.Since(d.reportedAt) < patience(d.report) {
		return d.report
	}
	silent := *d.report
	silent.VIPs = maps.Clone(d.report.VIPs)
	for a, v := range silent.VIPs {
		v.Cannot = "vipd has stopped reporting"
		silent.VIPs[a] = v
	}
	return &silent
}

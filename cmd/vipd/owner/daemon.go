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

// daemon is the state of vipd according to its reports.
type daemon struct {
	// changed is sent when a report differs from the last report in its content.
	changed wake.Signal

	mu         sync.Mutex // guards the fields below
	report     *api.OwnerReport
	text       []byte   // text of the report
	from       net.Conn // connection of the report
	pid        int      // process that sent the report, or 0 if unknown
	reportedAt time.Time
}

// minPatience is the minimum time without a report after which a running vipd counts as failed. It
// is long because VIPs should not move when a host is busy.
const minPatience = 2 * time.Second

// patience is the maximum time without a report from vipd.
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

// closed handles the end of a connection. If the connection was vipd's, and VIPs are not served
// without vipd, its VIPs can no longer be served.
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

// hangs reports whether a signal has stopped vipd, vipd has not reported for its grace period, and
// VIPs are not served without it. It returns true only once for each stop.
func (d *daemon) hangs() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.report == nil || keepsServing(d.report) || d.reportedAt.IsZero() || time.Since(d.reportedAt) < d.report.Grace || !frozen(d.pid) {
		return false
	}
	d.reportedAt = time.Time{}
	return true
}

// last returns the last report, or nil.
func (d *daemon) last() *api.OwnerReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.report
}

// current returns the last report. If vipd has not reported for too long, it returns a report in
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

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

// daemon is vipd, as its reports describe it.
type daemon struct {
	// changed is sent when a report differs in substance from the last.
	changed wake.Signal

	mu     sync.Mutex // guards the rest
	report *api.OwnerReport
	text   []byte   // of the report
	from   net.Conn // connection of the report
	pid    int      // process of the reporter; 0 means unknown
	heard  time.Time
}

// minPatience is the minimum of the permitted silence of a running vipd: a busy host is not a
// reason to move VIPs.
const minPatience = 2 * time.Second

// patience is the maximum silence of vipd after a report.
func patience(report *api.OwnerReport) time.Duration {
	if report == nil {
		return minPatience
	}
	return max(report.Grace, minPatience)
}

// receive processes a report. vipd usually repeats it each second, with up to 10,000 VIPs, so a
// repetition is not decoded again.
func (d *daemon) receive(text []byte, from net.Conn) error {
	d.mu.Lock()
	report := d.report
	same := report != nil && bytes.Equal(text, d.text)
	silent := time.Since(d.heard) >= patience(report)
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
	d.report, d.text, d.heard = report, text, time.Now()
	d.mu.Unlock()
	if !same || silent {
		d.changed.Send()
	}
	return nil
}

// keepsServing reports whether VIPs are served without vipd for a while.
func keepsServing(report *api.OwnerReport) bool { return report.Grace >= minPatience }

// closed processes the end of a connection. If it was vipd's and nothing is served without vipd,
// its VIPs can no longer be served.
func (d *daemon) closed(c net.Conn, state http.ConnState) {
	if state != http.StateClosed {
		return
	}
	d.mu.Lock()
	gone := d.from == c && !keepsServing(d.report)
	if gone {
		d.heard = time.Time{}
	}
	d.mu.Unlock()
	if gone {
		d.changed.Send()
	}
}

// hangs reports once that vipd was stopped by a signal and has been silent for its grace, if
// nothing is served without it.
func (d *daemon) hangs() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.report == nil || keepsServing(d.report) || d.heard.IsZero() || time.Since(d.heard) < d.report.Grace || !frozen(d.pid) {
		return false
	}
	d.heard = time.Time{}
	return true
}

// last is the last report; nil means there is none.
func (d *daemon) last() *api.OwnerReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.report
}

// current is the last report. If vipd has been silent for too long, no VIP can be served.
func (d *daemon) current() *api.OwnerReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.report == nil || time.Since(d.heard) < patience(d.report) {
		return d.report
	}
	silent := *d.report
	silent.VIPs = maps.Clone(d.report.VIPs)
	for a, v := range silent.VIPs {
		v.Cannot = "vipd is silent"
		silent.VIPs[a] = v
	}
	return &silent
}

package failover

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/test/wait"
)

// TestFirstReport runs the reporter of a vipd that has just started. If the kernel still serves the
// VIPs, the reporter must not report on them until vipd has applied the model or grace has passed.
// If nothing is served without vipd, the first report must state that vipd can't serve the VIPs. In
// all cases, the reporter must receive the owner's state.
func TestFirstReport(t *testing.T) {
	for _, c := range []struct {
		name    string
		keeps   bool
		grace   time.Duration
		reports bool
	}{
		{"a kernel mode", true, time.Hour, false},
		{"a kernel mode that takes long", true, 0, true},
		{"userspace", false, time.Hour, true},
	} {
		var asked, reports, cannot, ready atomic.Int64
		mux := http.NewServeMux()
		answer := func(w http.ResponseWriter) {
			_ = json.NewEncoder(w).Encode(api.OwnerStatus{Node: "gw1"})
		}
		mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); answer(w) })
		mux.HandleFunc("POST /vips", func(w http.ResponseWriter, r *http.Request) {
			var m api.OwnerReport
			if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
				t.Error(err)
			}
			for _, v := range m.VIPs {
				if v.Cannot != "" {
					cannot.Add(1)
				}
			}
			reports.Add(1)
			answer(w)
		})
		socket := filepath.Join(t.TempDir(), "owner.sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: mux}
		var running sync.WaitGroup
		running.Go(func() { _ = s.Serve(l) })
		ctx, cancel := context.WithCancel(t.Context())
		reporter := New(Options{Socket: socket, Changed: func() <-chan struct{} { return nil }, Grace: c.grace, Events: &events.History{}})
		state := &model.State{}
		state.Complete = true
		state.Inputs.VIPs = state.Inputs.VIPs.Set(netip.MustParseAddr("192.168.1.100"), &balancer.VIP{VIPPolicy: balancer.VIPPolicy{Hold: balancer.HoldOne}, Given: []string{"hold"}})
		running.Go(func() {
			_ = reporter.Run(ctx, func() Serving {
				v := Serving{State: state, Keeps: c.keeps}
				if ready.Load() == 0 {
					v.Unready = []string{"the first complete state is not applied yet"}
				}
				return v
			})
		})
		wait.For(t, wait.Patience, "two requests to the owner", func() bool { return asked.Load()+reports.Load() > 1 })
		if reporter.Status() == nil || (cannot.Load() > 0) != c.reports {
			t.Errorf("%s: reports that vipd can't serve the VIP = %d, status = %+v; want a status, and reports only if expected", c.name, cannot.Load(), reporter.Status())
		}
		ready.Store(1)
		before := reports.Load()
		wait.For(t, wait.Patience, "a report", func() bool { return reports.Load() > before })
		cancel()
		_ = s.Close()
		running.Wait()
	}
}

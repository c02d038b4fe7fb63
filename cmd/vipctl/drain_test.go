package main

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
)

// TestDrainWaitWithStoppedDaemon stops the daemon during a drain, and advances the clock by
// firstPatience. The wait must fail, and its message must say that the endpoint is still draining.
func TestDrainWaitWithStoppedDaemon(t *testing.T) {
	s := newSession(t)
	s.ErrTerminal = true
	var away atomic.Bool
	start := time.Now()
	s.Now = func() time.Time {
		if away.Load() {
			return start.Add(firstPatience + time.Second)
		}
		return start
	}
	s.err.written = func(all string) {
		if strings.HasSuffix(all, "7 connections left") && !away.Load() {
			_ = s.server.Close() // no request is in progress
			away.Store(true)
		}
	}
	if code := s.run(t.Context(), "drain", "--wait", "web", "192.168.1.11"); code != cli.ExitFailed {
		t.Errorf("exit code = %d, want %d", code, cli.ExitFailed)
	}
	if got := s.err.String(); !strings.Contains(got, "vipctl: waiting for the drain, which stays in place: no vipd answers at ") {
		t.Errorf("stderr = %q, want the reason for the failure", got)
	}
}

// TestOpenConnections counts connections in several states. Closed connections and idle flows,
// which the kernel remembers, must not count as open.
func TestOpenConnections(t *testing.T) {
	targets := []api.OverrideTarget{{Service: "web", Address: "192.168.1.11"}}
	for state, want := range map[string]uint64{
		"established": 1, "fin-wait": 1, "close-wait": 1, "last-ack": 1, "syn-sent": 1, "flow": 1, "": 1, "time-wait": 0, "close": 0, "idle": 0,
	} {
		conns := []api.Connection{
			{Service: "web", Backend: netip.MustParseAddrPort("192.168.1.11:8080"), State: state},
			{Service: "web", Backend: netip.MustParseAddrPort("192.168.1.12:8080"), State: state},
		}
		if got := countOpen(conns, targets); got != want {
			t.Errorf("state %q: open connections = %d, want %d", state, got, want)
		}
	}
}

func TestOverrideText(t *testing.T) {
	now := time.Now()
	c := &cli.Printer{World: cli.World{Now: func() time.Time { return now }}}
	yes, no, five := true, false, 5
	for want, o := range map[string]*balancer.Override{
		"":                                  nil,
		"weight 5":                          {Weight: &five},
		"weight 5, not draining, by ana":    {Weight: &five, Draining: &no, By: "ana"},
		"draining, deadline in 1m30s: disk": {Draining: &yes, Until: now.Add(90 * time.Second), Reason: "disk"},
		"draining, deadline 1s ago":         {Draining: &yes, Until: now.Add(-time.Second)},
		"weight 5, lapses in 2h":            {Weight: &five, Expires: now.Add(2 * time.Hour)},

		"weight 5 (lapses in 2h), draining":               {Weight: &five, WeightExpires: now.Add(2 * time.Hour), Draining: &yes},
		"weight 5, draining (lapses in 2h), lapses in 2d": {Weight: &five, DrainingExpires: now.Add(2 * time.Hour), Draining: &yes, Expires: now.Add(48 * time.Hour)},
	} {
		if got := override(c, o); got != want {
			t.Errorf("override text = %q, want %q", got, want)
		}
	}
}

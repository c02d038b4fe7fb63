package unanswered

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/dataplane"
)

// node has a service with an endpoint whose counts the test sets.
type node struct {
	*Watch
	mu       sync.Mutex
	service  balancer.Service
	counts   map[traffic.Port]dataplane.FrontendCount
	readings int
}

func target() balancer.Target {
	return balancer.Target{Service: "web", Addr: netip.MustParseAddr("10.2.0.2"), Port: 8080}
}

// start runs a Watch in a synctest bubble.
func start(t *testing.T) *node {
	n := &node{
		service: balancer.Service{Name: "web", Ports: []balancer.Port{{Name: "http", Port: 80, Protocol: balancer.TCP}, {Name: "log", Port: 514, Protocol: balancer.UDP}}},
		counts:  map[traffic.Port]dataplane.FrontendCount{},
	}
	n.Watch = New(Options{
		Counts: func() map[traffic.Port]dataplane.FrontendCount {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.readings++
			all := map[traffic.Port]dataplane.FrontendCount{}
			for k, f := range n.counts {
				all[k] = f
			}
			return all
		},
		Service: func(balancer.Name) *balancer.Service { return &n.service },
		Health:  func(balancer.Target) balancer.Verdict { return balancer.HealthUp },
		Source:  func(netip.Addr) netip.Addr { return netip.MustParseAddr("10.2.0.1") },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = n.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return n
}

// count sets the counts of a port.
func (n *node) count(port string, connections, failures uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := netip.AddrPortFrom(target().Addr, target().Port)
	n.counts[traffic.Port{Service: "web", Name: port}] = dataplane.FrontendCount{
		Backends: []dataplane.BackendCount{{Backend: at, Connections: connections, Failures: failures}},
	}
}

// TestProblemThresholds makes some of a minute's connections fail. There must be a problem only if
// there are at least ten new connections and at least 3 % of them fail.
func TestProblemThresholds(t *testing.T) {
	for _, c := range []struct {
		name                  string
		port                  string
		connections, failures uint64
		dial                  error
		want                  string
	}{
		{name: "3 percent", port: "http", connections: 100, failures: 3, want: "10.2.0.2:8080 did not answer 3 of 100 new connections in the last minute: its replies to clients such as 10.1.0.2 probably " +
			"bypass this host: run `ip route replace 10.1.0.2 via 10.2.0.1` on the endpoint, or set snat = \"always\" for service web"},
		{name: "below 3 percent", port: "http", connections: 101, failures: 3},
		{name: "ten", port: "http", connections: 10, failures: 1, want: "1 of 10 "},
		{name: "few connections", port: "http", connections: 9, failures: 9},
		{name: "UDP", port: "log", connections: 100, failures: 100},
		{name: "dials", port: "http", connections: 6, failures: 4, dial: errors.New("no answer in time"), want: "4 of 10 new connections in the last minute: connections from this host fail (no answer in time)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := start(t)
				n.count(c.port, 1000, 500) // these failures happened more than a minute ago
				n.Record(target(), netip.MustParseAddr("10.1.0.2"), c.dial)
				time.Sleep(pause / 2)
				n.count(c.port, 1000+c.connections, 500+c.failures)
				time.Sleep(pause)
				text := ""
				for _, p := range n.Problems() {
					text += p.Text
				}
				if (c.want == "") != (text == "") || !strings.Contains(text, c.want) {
					t.Errorf("problems = %q, want %q", text, c.want)
				}
				if _, found := n.StatsOf(target()); found != (c.want != "") {
					t.Errorf("StatsOf(target): found = %t, want the opposite", found)
				}
			})
		})
	}
}

// TestProblemEnds lets an endpoint answer again. The problem must disappear after a minute, and
// counters must no longer be read.
func TestProblemEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t)
		time.Sleep(time.Hour)
		if n.readings > 0 {
			t.Errorf("without a suspect: readings of counters = %d, want 0", n.readings)
		}
		n.Record(target(), netip.MustParseAddr("10.1.0.2"), nil)
		time.Sleep(pause / 2)
		n.count("http", 20, 10)
		time.Sleep(pause)
		if len(n.Problems()) != 1 {
			t.Fatalf("problems = %v, want one problem", n.Problems())
		}
		n.count("http", 1000, 10)
		time.Sleep(window + 2*pause)
		if len(n.Problems()) != 0 {
			t.Errorf("problems = %v, want none", n.Problems())
		}
		time.Sleep(window)
		before := n.readings
		time.Sleep(time.Hour)
		if n.readings != before {
			t.Errorf("readings of counters afterwards = %d, want 0", n.readings-before)
		}
	})
}

package daemon_test

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/test/wait"
)

// turning is a service of two endpoints that take three seconds to be found down.
const turning = `
[services.web]
vips = ["127.43.0.1"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.43.1.1", port = 9001 }, { address = "127.43.1.1", port = 9002 }]
health = { type = "http", interval = "1s", fast_interval = "500ms", timeout = "400ms", rise = 2, fall = 6 }
`

// other is a service that has nothing to do with that.
const other = `
[services.other]
vips = ["127.43.0.2"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.43.1.1", port = 9002 }]
health = { type = "tcp" }
`

// TestTurnGoesOn: five failures of six count on over a reload, and over a restart, whoever else comes meanwhile.
func TestTurnGoesOn(t *testing.T) {
	var failing atomic.Bool
	var failures moments
	for _, at := range []string{"127.43.1.1:9001", "127.43.1.1:9002"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if at == "127.43.1.1:9001" && failing.Load() {
				failures.add()
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})}
		ended := make(chan struct{})
		go func() { _ = s.Serve(l); close(ended) }()
		t.Cleanup(func() { _ = s.Close(); <-ended })
	}
	n := startNode(t, turning)
	for name, disturb := range map[string]func(){
		"a reload": func() {
			n.write(turning + other)
			if r, err := n.client.Reload(t.Context(), ""); err != nil || len(r.Problems) > 0 {
				t.Errorf("reload: %+v, %v", r, err)
			}
		},
		"a restart": func() { n.stop(); n.start() },
	} {
		n.found(t, balancer.HealthUp)
		failures.until(time.Time{})
		failing.Store(true)
		wait.For(t, 20*time.Second, "five failures", func() bool { return failures.count() >= 5 })
		disturb()
		if got := n.first(t).Health; got != balancer.HealthUp && got != balancer.HealthDown {
			t.Errorf("after %s the endpoint is %q, want what it was", name, got)
		}
		n.found(t, balancer.HealthDown)
		failures.until(n.first(t).Check.Since) // what came later was not needed
		if n := failures.count(); n > 8 {      // one that was on its way is lost
			t.Errorf("with %s meanwhile, it took %d failures until the endpoint was down, want 6", name, n)
		}
		failing.Store(false)
	}
}

// moments are when something happened.
type moments struct {
	mu  sync.Mutex
	all []time.Time
}

func (m *moments) add() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, time.Now())
}

// until forgets what came later.
func (m *moments) until(end time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = slices.DeleteFunc(m.all, func(at time.Time) bool { return at.After(end) })
}

func (m *moments) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.all)
}

// first is how the first endpoint of the service web is.
func (n *node) first(t *testing.T) (found api.Endpoint) {
	t.Helper()
	for _, e := range n.list() {
		if e.Address == "127.43.1.1:9001" {
			found = e
		}
	}
	return found
}

// found waits until the first endpoint is found up or down.
func (n *node) found(t *testing.T, want balancer.Verdict) {
	t.Helper()
	wait.For(t, 20*time.Second, "the endpoint to be found "+string(want), func() bool { return n.first(t).Health == want })
}

package daemon_test

import (
	"bytes"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/test/wait"
)

// pair defines a service with two endpoints and no checks. Its timeouts are long, so an endpoint
// does not seem to fail when a busy machine pauses for a second. An endpoint that refuses
// connections still fails immediately.
const pair = `
[services.web]
vips = ["127.58.0.1"]
ports = [{ port = 8080 }]
connect_timeout = "1m"
endpoints = [{ address = "127.58.1.1", port = 9001 }, { address = "127.58.1.1", port = 9002 }]
`

type journaled struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journaled) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(b)
}

// lines returns the log lines that contain the text words.
func (j *journaled) lines(words string) (all []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range strings.Lines(j.buf.String()) {
		if strings.Contains(line, words) {
			all = append(all, line)
		}
	}
	return all
}

// startPassive starts a node that ejects an endpoint after two consecutive failures.
func startPassive(t *testing.T, services string, base time.Duration) (*node, *journaled) {
	n, log := &node{t: t, dir: t.TempDir()}, &journaled{}
	n.log = slog.NewTextHandler(log, nil)
	n.ejection = health.EjectionRules{Failures: 2, Base: base, Max: 10 * base, Forgive: time.Minute}
	n.write(services)
	n.start()
	t.Cleanup(func() { n.stop() })
	return n, log
}

// askUntil connects to vip until the endpoints have the states in want. Each connection must be
// served.
func (n *node) askUntil(vip, want string) {
	n.t.Helper()
	wait.For(n.t, 20*time.Second, want, func() bool {
		if got := ask(vip); len(got) > 3 { // servers answer with at most three bytes
			n.t.Errorf("answer to a client = %q, want a server's name", got)
		}
		return n.endpoints() == want
	})
}

// TestRefusingEndpointIsEjected makes one of two endpoints refuse connections. This endpoint must
// be ejected, then be tried again, and be ejected for longer each time. After the endpoint accepts
// connections again, it must stay in use. Connections to the other endpoint must survive. On a busy
// machine, the test may miss the first ejections.
func TestRefusingEndpointIsEjected(t *testing.T) {
	const base = 2 * time.Second
	server(t, "127.58.1.1:9001", "one")
	n, log := startPassive(t, pair, base)
	const ejected = "127.58.1.1:9001:active/1 127.58.1.1:9002:ejected/0"
	n.askUntil("127.58.0.1:8080", ejected)
	all := n.list()
	x := all[1].Ejection
	if all[0].Ejection != nil || x == nil || x.Count < 1 || x.Cause != "connection refused" || x.Until.Sub(x.Since) != min(time.Duration(x.Count)*base, 10*base) {
		t.Fatalf("ejection = %+v, want a count, the cause \"connection refused\", and an end that depends on the count", x)
	}

	var asked moments // from here on, the endpoint listens again and counts connections
	l, err := net.Listen("tcp", "127.58.1.1:9002")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			asked.add()
			_ = c.Close()
		}
	}()
	for time.Until(x.Until) > base/3 {
		if got := ask("127.58.0.1:8080"); got != "one" && time.Until(x.Until) > 0 {
			t.Fatalf("while the other endpoint is ejected: answer = %q, want \"one\"", got)
		}
	}
	_ = l.Close()
	<-accepting
	if asked.until(x.Until); asked.count() > 0 {
		t.Errorf("connections to the ejected endpoint = %d, want 0", asked.count())
	}

	wait.For(t, 20*time.Second, "the end of the ejection", func() bool { return n.endpoints() != ejected })
	if early := time.Until(x.Until); early > 0 {
		t.Errorf("the ejection ended %s early, want it to last until its end time", early)
	}
	n.askUntil("127.58.0.1:8080", ejected) // for another ejection, a single failure is enough
	server(t, "127.58.1.1:9002", "two")
	wait.For(t, 30*time.Second, "the end of the second ejection", func() bool { return ask("127.58.0.1:8080") == "two" })
	if got := n.endpoints(); strings.Contains(got, "ejected") {
		t.Errorf("endpoints at the end = %s, want no ejected endpoint", got)
	}
	n.stop()
	begun, ended := log.lines("is ejected for"), log.lines("no longer ejected")
	if len(begun) < 2 || !strings.Contains(begun[0], `"endpoint is ejected for 2s" kind=health service=web backend=127.58.1.1:9002 cause="connection refused"`) ||
		!strings.Contains(begun[1], "for 4s") {
		t.Errorf("logged starts of ejections = %q, want a second start with 4s", begun)
	}
	if len(ended) != len(begun) || !regexp.MustCompile(`cause="the ejection time has passed" was=ejected lasted=([2-9]|\d\d)[.\d]*s`).MatchString(ended[0]) {
		t.Errorf("logged ends of ejections = %q, want one end for each start", ended)
	}
}

// TestEjectionIsNoOutage makes the last endpoint refuse connections while the other endpoint is
// still ejected but works again. The other endpoint must serve.
func TestEjectionIsNoOutage(t *testing.T) {
	one := serverUntil(t, "127.58.1.1:9001", "one")
	n, log := startPassive(t, pair, time.Hour)
	n.askUntil("127.58.0.1:8080", "127.58.1.1:9001:active/1 127.58.1.1:9002:ejected/0")
	server(t, "127.58.1.1:9002", "two")
	one()
	for range 5 {
		if got := ask("127.58.0.1:8080"); got != "two" {
			t.Fatalf("while both endpoints fail: answer = %q, want \"two\"", got)
		}
	}
	n.askUntil("127.58.0.1:8080", "127.58.1.1:9001:ejected/0 127.58.1.1:9002:active/1")
	if ended := log.lines("it accepted a connection"); len(ended) != 1 || !strings.Contains(ended[0], "127.58.1.1:9002") {
		t.Errorf("logged ends of ejections = %q, want one end, with an accepted connection as its cause", ended)
	}
	n.write("") // a removed endpoint is no longer ejected
	wait.For(t, 20*time.Second, "the ejection to end with the endpoint", func() bool { return len(log.lines("it is no longer an endpoint")) == 1 })
}

// TestFailedDialHintsTheCheck makes an endpoint refuse connections long before its next check.
// Failed dials must trigger the check immediately.
func TestFailedDialHintsTheCheck(t *testing.T) {
	server(t, "127.58.1.1:9001", "one")
	two := serverUntil(t, "127.58.1.1:9002", "two")
	n, log := startPassive(t, pair+`health = { type = "tcp", interval = "10m", fast_interval = "100ms", timeout = "10s", rise = 2, fall = 2 }`, time.Hour)
	wait.For(t, 20*time.Second, "the first checks", func() bool {
		all, err := n.client.Endpoints(t.Context())
		return err == nil && all[0].Health == balancer.HealthUp && all[1].Health == balancer.HealthUp
	})
	two()
	n.askUntil("127.58.0.1:8080", "127.58.1.1:9001:active/1 127.58.1.1:9002:down/0")
	if down := log.lines("endpoint is down"); len(down) != 1 {
		t.Errorf("logged failures = %q, want one failure", down)
	}
}

// TestChecksEndTheEjection makes an endpoint fail briefly. Passing checks must end its ejection
// early.
func TestChecksEndTheEjection(t *testing.T) {
	server(t, "127.58.1.1:9001", "one")
	two := serverUntil(t, "127.58.1.1:9002", "two")
	// fall is so high that only the ejection removes the endpoint.
	n, log := startPassive(t, pair+`health = { type = "tcp", interval = "1s", timeout = "900ms", rise = 2, fall = 1000 }`, time.Hour)
	n.askUntil("127.58.0.1:8080", "127.58.1.1:9001:active/1 127.58.1.1:9002:active/1")
	wait.For(t, 20*time.Second, "both to be found up, as the first result of a check counts at once", func() bool {
		h := n.status().Health
		return h.Checked == 2 && h.Unknown+h.Down == 0
	})
	two()
	n.askUntil("127.58.0.1:8080", "127.58.1.1:9001:active/1 127.58.1.1:9002:ejected/0")
	server(t, "127.58.1.1:9002", "two")
	n.askUntil("127.58.0.1:8080", "127.58.1.1:9001:active/1 127.58.1.1:9002:active/1")
	wait.For(t, 10*time.Second, "the recovered endpoint", func() bool { return ask("127.58.0.1:8080") == "two" })
	if ended := log.lines("it passes its checks"); len(ended) != 1 {
		t.Errorf("logged ends of ejections = %q, want one end, with passing checks as its cause", ended)
	}
}

// moments is a list of times that several goroutines may use.
type moments struct {
	mu  sync.Mutex
	all []time.Time
}

func (m *moments) add() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, time.Now())
}

// until removes all times that are later than end.
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

package daemon_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/events"
	"vipd/test/program"
	"vipd/test/wait"
)

const checked = `
[services.web]
vips = ["127.42.0.1"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.42.1.1", port = 9001 }, { address = "127.42.1.1", port = 9002 }]
health = { type = "tcp", interval = "500ms", timeout = "400ms", rise = 2, fall = 2 }
`

// TestChecksSteer stops an endpoint's server. The endpoint must get no connections until it answers
// again, even after vipd restarts.
func TestChecksSteer(t *testing.T) {
	server(t, "127.42.1.1:9001", "one")
	two := serverUntil(t, "127.42.1.1:9002", "two")
	n := startNode(t, checked)
	states := func(want string) {
		t.Helper()
		wait.For(t, 20*time.Second, want, func() bool { return n.endpoints() == want })
	}
	states("127.42.1.1:9001:active/1 127.42.1.1:9002:active/1")
	two()
	states("127.42.1.1:9001:active/1 127.42.1.1:9002:down/0")
	for range 6 {
		if got := ask("127.42.0.1:8080"); got != "one" {
			t.Errorf("while one endpoint is down: answer = %q, want \"one\"", got)
		}
	}
	n.stop()
	if text, err := os.ReadFile(filepath.Join(n.dir, "state", "health.json")); err != nil || !strings.Contains(string(text), "127.42.1.1:9002") {
		t.Errorf("saved checks = %s, error = %v, want the checks of both endpoints", text, err)
	}
	n.start()
	if got := n.endpoints(); got != "127.42.1.1:9001:active/1 127.42.1.1:9002:down/0" {
		t.Errorf("after a restart: endpoints = %s, want the second endpoint down", got)
	}
	if got := n.eventsOf(events.Health); got != "web 127.42.1.1:9002 is still down: connection refused: nothing listens there" {
		t.Errorf("after a restart: events =\n%s\nwant only the event that the second endpoint is still down", got)
	}
	file, long := filepath.Join(n.dir, "state", "health.json"), time.Now().Add(-time.Hour)
	if err := os.Chtimes(file, long, long); err != nil {
		t.Fatal(err)
	}
	wait.For(t, 10*time.Second, "the saved results to be confirmed, in case vipd is killed", func() bool {
		info, err := os.Stat(file)
		return err == nil && time.Since(info.ModTime()) < time.Minute
	})
	server(t, "127.42.1.1:9002", "two")
	states("127.42.1.1:9001:active/1 127.42.1.1:9002:active/1")
	wait.For(t, 10*time.Second, "the recovered endpoint to get connections", func() bool { return ask("127.42.0.1:8080") == "two" })
}

// serverUntil is like the function server, but also returns a function that stops the server.
func serverUntil(t *testing.T, address, name string) (stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(name))
			_ = c.Close()
		}
	}()
	stop = func() { program.Unshared(func() { _ = l.Close() }); <-done }
	t.Cleanup(stop)
	return stop
}

// TestUnsavedChecks makes the saved check results unreadable, and then makes it impossible to save
// them. Each failure must be reported as a problem and an event. The problem must disappear when
// vipd can save the results again.
func TestUnsavedChecks(t *testing.T) {
	server(t, "127.42.1.1:9001", "one")
	two := serverUntil(t, "127.42.1.1:9002", "two")
	n := &node{t: t, dir: t.TempDir()}
	n.write(checked)
	state := filepath.Join(n.dir, "state")
	file := filepath.Join(state, "health.json")
	if err := os.Mkdir(state, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	t.Cleanup(func() { n.stop() })
	if p := n.problems(); !strings.Contains(p, "health.json.broken") {
		t.Errorf("with a broken health.json: problems = %q, want a problem that reports the renamed file", p)
	}
	wait.For(t, 20*time.Second, "the results to be saved", func() bool { return n.problems() == "" })
	if err := os.Rename(state, state+".away"); err != nil {
		t.Fatal(err)
	}
	two()
	const lost = "a restart will lose health check results: "
	wait.For(t, 20*time.Second, "the problem", func() bool { return strings.Contains(n.problems(), lost) })
	if err := os.Rename(state+".away", state); err != nil {
		t.Fatal(err)
	}
	server(t, "127.42.1.1:9002", "two")
	wait.For(t, 20*time.Second, "the end of the problem", func() bool { return n.problems() == "" })
	story := n.eventsOf(events.Problem)
	if strings.Count(story, "there is a problem: ") != 2 || strings.Count(story, "problem resolved") != 2 || strings.Count(story, lost) != 2 {
		t.Errorf("problem events =\n%s\nwant the starts and the ends of two problems", story)
	}
}

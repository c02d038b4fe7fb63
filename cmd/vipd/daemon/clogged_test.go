package daemon_test

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"vipd/cmd/internal/events"
	"vipd/store/tomlfile"
	"vipd/test/wait"
)

// clogged is a log that blocks while its lock is held.
type clogged struct{ sync.Mutex }

func (c *clogged) Write(line []byte) (int, error) {
	c.Lock()
	defer c.Unlock()
	return len(line), nil
}

// TestCloggedLog blocks the log, like a pipe without a reader. Endpoints must be checked and
// steered as before, files must be read, and the API must show all of it.
func TestCloggedLog(t *testing.T) {
	server(t, "127.59.1.1:9001", "one")
	two := serverUntil(t, "127.59.1.1:9002", "two")
	log := &clogged{}
	n := &node{t: t, dir: t.TempDir(), log: slog.NewTextHandler(log, nil)}
	n.write(`
[services.web]
vips = ["127.59.0.1"]
ports = [{ port = 8080 }]
endpoints = [{ address = "127.59.1.1", port = 9001 }, { address = "127.59.1.1", port = 9002 }]
health = { type = "tcp", interval = "100ms", timeout = "90ms", rise = 2, fall = 2 }
`)
	n.start()
	t.Cleanup(func() { n.stop() })
	states := func(want string) {
		t.Helper()
		wait.For(t, 20*time.Second, want, func() bool { return n.endpoints() == want })
	}
	states("127.59.1.1:9001:active/1 127.59.1.1:9002:active/1")
	log.Lock()
	defer log.Unlock() // before the node is stopped
	two()
	states("127.59.1.1:9001:active/1 127.59.1.1:9002:down/0")
	server(t, "127.59.1.1:9002", "two")
	states("127.59.1.1:9001:active/1 127.59.1.1:9002:active/1")
	if _, err := n.daemon.Reload(t.Context(), "the test", tomlfile.Reload{}); err != nil {
		t.Error(err)
	}
	if n.story(events.Health) == "" || n.story(events.Reload) == "" {
		t.Errorf("journal =\n%s\n%s", n.story(events.Health), n.story(events.Reload))
	}
}

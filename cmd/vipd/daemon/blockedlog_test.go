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

type blockedLog struct{ sync.Mutex }

func (c *blockedLog) Write(line []byte) (int, error) {
	c.Lock()
	defer c.Unlock()
	return len(line), nil
}

// TestBlockedLog blocks the log, as a pipe without a reader does. vipd must still check endpoints,
// steer traffic and read files, and the API must show the results.
func TestBlockedLog(t *testing.T) {
	server(t, "127.59.1.1:9001", "one")
	two := serverUntil(t, "127.59.1.1:9002", "two")
	log := &blockedLog{}
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
	defer log.Unlock() // the log is unlocked before the node is stopped
	two()
	states("127.59.1.1:9001:active/1 127.59.1.1:9002:down/0")
	server(t, "127.59.1.1:9002", "two")
	states("127.59.1.1:9001:active/1 127.59.1.1:9002:active/1")
	if _, err := n.daemon.Reload(t.Context(), "the test", tomlfile.Reload{}); err != nil {
		t.Error(err)
	}
	if n.eventsOf(events.Health) == "" || n.eventsOf(events.Reload) == "" {
		t.Errorf("health events =\n%s\nreload events =\n%s\nwant events of both kinds", n.eventsOf(events.Health), n.eventsOf(events.Reload))
	}
}

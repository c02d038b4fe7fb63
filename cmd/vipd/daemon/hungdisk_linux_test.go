package daemon_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vipd/cmd/internal/api"
	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// logFunc is a log handler that calls a function with each message.
type logFunc func(text string)

func (logFunc) Enabled(context.Context, slog.Level) bool        { return true }
func (h logFunc) Handle(_ context.Context, r slog.Record) error { h(r.Message); return nil }
func (logFunc) WithAttrs([]slog.Attr) slog.Handler              { return slog.DiscardHandler }
func (logFunc) WithGroup(string) slog.Handler                   { return slog.DiscardHandler }

// TestStateDirHangs makes the disk of state_dir hang. Changes must be applied, /healthz must be ok,
// and status must report unsaved state. A manual drain must be refused until the disk answers. When
// vipd is told to stop, it must keep serving while it waits for the disk.
func TestStateDirHangs(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "two")
	server(t, "127.40.1.1:9003", "three")
	web := web + "drain_timeout = \"1s\"\n"
	n := startNode(t, web)
	accepts := make(chan error, 1)
	const both, one = "127.40.1.1:9001:active/1 127.40.1.1:9002:active/1", "127.40.1.1:9001:active/1"
	serves := func(want string) {
		t.Helper()
		wait.For(t, wait.Patience, want, func() bool { return n.endpoints() == want })
	}
	serves(both)
	state := filepath.Join(n.dir, "state")
	release := lab.HangFolder(t, state)
	n.write(strings.Replace(web, `, { address = "127.40.1.1", port = 9002, node = "b" }`, "", 1)) // the removed endpoint drains, and vipd saves the drain
	serves(one)
	yes := true
	drain := func() error {
		_, err := n.client.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.40.1.1:9001", Draining: &yes, Force: true})
		return err
	}
	const silent = "the disk has not answered for 5s"
	if err := drain(); err == nil || !strings.HasPrefix(err.Error(), "nothing was changed, ") || !strings.HasSuffix(err.Error(), silent) {
		t.Errorf("drain on a hung disk: error = %v, want \"nothing was changed, ... %s\"", err, silent)
	}
	n.write(web)
	serves(both)
	wait.For(t, wait.Patience, "the problems", func() bool { return strings.Count(n.problems(), silent) >= 2 })
	if code, text := n.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: answer = %d %s, want 200", code, text)
	}
	release()
	wait.For(t, wait.Patience, "the end of the problems", func() bool { return n.problems() == "" })
	n.stop()
	n.log = logFunc(func(text string) {
		if text == "state_dir was not closed properly; stopping anyway" {
			c, err := net.Dial("tcp", "127.40.0.1:8080")
			if err == nil {
				err = c.Close()
			}
			accepts <- err
		}
	})
	n.start()
	serves(both) // the refused change has no effect
	if err := drain(); err != nil {
		t.Error(err)
	}
	serves("127.40.1.1:9001:draining/0 127.40.1.1:9002:active/1")
	release = lab.HangFolder(t, state)
	n.write(strings.Replace(web, "9002", "9003", 1))
	serves("127.40.1.1:9001:draining/0 127.40.1.1:9003:active/1")
	n.stop()
	select {
	case err := <-accepts:
		if err != nil {
			t.Error("error of a request while the stopped vipd waited for the disk = ", err)
		}
	default:
		t.Error("vipd exited before the disk answered = true, want false")
	}
	release()
	wait.For(t, wait.Patience, "the writers to end", func() bool { return os.RemoveAll(state) == nil }) // the writers create no directory
}

// TestStateDirHangsAtTheStart starts vipd while the disk of state_dir hangs. vipd must start
// without saved state, and must report that.
func TestStateDirHangsAtTheStart(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	n := startNode(t, web)
	yes := true
	if _, err := n.client.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.40.1.1:9002", Draining: &yes}); err != nil {
		t.Fatal(err)
	}
	n.stop()
	lab.HangFolder(t, filepath.Join(n.dir, "state"))
	n.start()
	const problem = "state_dir: reading the state of an earlier run: open state/overrides.json: the disk has not answered for 10s; the file is left unchanged"
	if got := n.problems(); !strings.Contains(got, problem) {
		t.Errorf("problems = %q, want %q", got, problem)
	}
}

// TestBothDisksHangAtTheStart makes the disks of state_dir and of the store hang when vipd starts.
// Waiting for the first disk must not shorten the wait for the second. Otherwise, the services
// would seem to be removed.
func TestBothDisksHangAtTheStart(t *testing.T) {
	n := &node{t: t, dir: t.TempDir()}
	n.write("[store]\npath = \"services\"\n")
	state := filepath.Join(n.dir, "state")
	if err := os.Mkdir(state, 0o755); err != nil {
		t.Fatal(err)
	}
	program.Save(t, filepath.Join(state, "overrides.json"), `{"version": 1}`)
	lab.HangFolder(t, state)
	n.launch()
	t.Cleanup(func() { n.stop() })
	wait.For(t, wait.Patience, "the report that nothing of the store is served yet", func() bool {
		_, text := n.get("/readyz")
		return strings.Contains(text, "no services from it are served yet: ")
	})
}

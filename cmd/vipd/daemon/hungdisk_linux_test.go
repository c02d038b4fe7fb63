package daemon_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vipd/cmd/internal/api"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestStateDirHangs: while the disk of state_dir does not answer, changes are applied, /healthz says that all is well, and status what is
// not kept. A drain by hand is refused then, and made when the disk answers. vipd ends, whether it does or not.
func TestStateDirHangs(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "two")
	web := web + "drain_timeout = \"1s\"\n"
	n := startNode(t, web)
	const both, one = "127.40.1.1:9001:active/1 127.40.1.1:9002:active/1", "127.40.1.1:9001:active/1"
	serves := func(want string) {
		t.Helper()
		wait.For(t, wait.Patience, want, func() bool { return n.endpoints() == want })
	}
	serves(both)
	state := filepath.Join(n.dir, "state")
	release := lab.HangFolder(t, state)
	n.write(strings.Replace(web, `, { address = "127.40.1.1", port = 9002, node = "b" }`, "", 1)) // what is removed drains, which is kept
	serves(one)
	yes := true
	drain := func() error {
		_, err := n.client.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.40.1.1:9001", Draining: &yes, Force: true})
		return err
	}
	const silent = "the disk has not answered for 5s"
	if err := drain(); err == nil || !strings.HasPrefix(err.Error(), "nothing was changed, ") || !strings.HasSuffix(err.Error(), silent) {
		t.Errorf("a drain that can't be kept: %v", err)
	}
	n.write(web)
	serves(both)
	wait.For(t, wait.Patience, "the problems", func() bool { return strings.Count(n.problems(), silent) >= 2 })
	if code, text := n.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, text)
	}
	release()
	wait.For(t, wait.Patience, "the end of the problems", func() bool { return n.problems() == "" })
	n.stop()
	n.start()
	serves(both) // what was refused has not been kept
	if err := drain(); err != nil {
		t.Error(err)
	}
	serves("127.40.1.1:9001:draining/0 127.40.1.1:9002:active/1")
	release = lab.HangFolder(t, state)
	n.write(strings.Replace(web, "9002", "9003", 1))
	serves("127.40.1.1:9001:draining/0 127.40.1.1:9003:active/1")
	n.stop()
	release()
	wait.For(t, wait.Patience, "the writers to end", func() bool { return os.RemoveAll(state) == nil }) // they make no folder
}

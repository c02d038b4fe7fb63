package main

import (
	"bufio"
	"context"
	"net"
	"strings"
	"syscall"
	"testing"

	"vipd/test/program"
	"vipd/test/wait"
)

// TestStop: vipd that is told to end waits for connections and says so, also by vipctl, which can't reach it any more. Told again it ends
// them, and takes its addresses back.
func TestStop(t *testing.T) {
	tree := program.New(t)
	tree.Echo(t, "s1", "--tcp", "127.0.0.1:17001")
	vipd := tree.Daemon(t, "quickstart")
	c, err := net.Dial("tcp", "127.10.0.1:7000")
	if err != nil {
		t.Fatal(err)
	}
	if name, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(name, "s1") {
		t.Fatalf("the server says %q, %v", name, err)
	}
	defer func() { _ = c.Close() }()
	status := func() string {
		out, _ := tree.Shell(t, "bin/vipctl --config examples/quickstart.toml status 2>&1; true", wait.Patience)
		return out
	}
	if err := vipd.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	said := ""
	wait.For(t, wait.Patience, "vipctl to say that vipd is stopping", func() bool {
		said = status()
		return strings.Contains(said, "is stopping: its connections may go on until ")
	})
	if strings.Contains(said, "restart") {
		t.Errorf("vipctl advises to restart it: %s", said)
	}
	if out := vipd.Output(); !strings.Contains(out, "stopping: open connections may end by themselves") {
		t.Errorf("it does not log that it waits:\n%s", out)
	}
	if err := vipd.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	select {
	case <-vipd.Done():
	case <-ctx.Done():
		t.Fatal("it goes on after the second signal")
	}
	if err := vipd.Err(); err != nil || !strings.Contains(vipd.Output(), "vipd has stopped") {
		t.Errorf("it ends with %v:\n%s", err, vipd.Output())
	}
	tree.Daemon(t, "quickstart")
	if said := status(); strings.Contains(said, "stopping") {
		t.Errorf("the next vipd is said to be stopping: %s", said)
	}
}

package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/cmd/internal/api"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestStop sends signals to a vipd that has open connections. vipd must wait for the connections
// and report that, and vipctl must explain why it can't reach vipd. A second signal must make vipd
// close the connections and remove the addresses.
func TestStop(t *testing.T) {
	tree := program.New(t)
	tree.Echo(t, "s1", "--tcp", "127.0.0.1:17001")
	vipd := tree.Daemon(t, "quickstart")
	c, err := net.Dial("tcp", "127.10.0.1:7000")
	if err != nil {
		t.Fatal(err)
	}
	if name, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(name, "s1") {
		t.Fatalf("server: answer = %q, error = %v, want its name", name, err)
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
		return strings.Contains(said, "is stopping: its connections can continue until ")
	})
	if strings.Contains(said, "restart") {
		t.Errorf("vipctl: output = %s, want no advice to restart", said)
	}
	if out := vipd.Output(); !strings.Contains(out, "stopping: waiting for open connections to end") {
		t.Errorf("log =\n%s\nwant a message about waiting for connections", out)
	}
	if err := vipd.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	select {
	case <-vipd.Done():
	case <-ctx.Done():
		t.Fatal("after the second signal: vipd is running = true, want false")
	}
	if err := vipd.Err(); err != nil || !strings.Contains(vipd.Output(), "vipd has stopped") {
		t.Errorf("vipd: error = %v, want none:\n%s", err, vipd.Output())
	}
	tree.Daemon(t, "quickstart")
	if said := status(); strings.Contains(said, "stopping") {
		t.Errorf("status = %s, want the status of a vipd that is not stopping", said)
	}
}

// TestStopWithoutDescriptors stops a vipd that has no free file descriptor. vipd must remove its
// rules and addresses, even if it needs other programs for that.
func TestStopWithoutDescriptors(t *testing.T) {
	g := newGateway(t)
	g.Host().Exec("iptables-legacy", "-P", "FORWARD", "ACCEPT") // creates filter chains, to which vipd adds rules
	g.write(settings("userspace", "legacy"), 0, 1)
	vipd := exec.Command(filepath.Join(filepath.Dir(g.vipctl), "vipd"), "--config", g.file)
	vipd.Stderr = t.Output()
	if err := vipd.Start(); err != nil {
		t.Fatal(err)
	}
	client := api.NewClient(filepath.Join(filepath.Dir(g.file), "run", "d.sock"))
	wait.For(t, wait.Patience, "vipd to be ready", func() bool { s, err := client.Status(t.Context()); return err == nil && s.Ready })
	client.Close()
	_, c := g.ask(g.client)
	_ = c.Close()
	free := uint64(0)
	for ; ; free++ {
		if _, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", vipd.Process.Pid, free)); err != nil {
			break
		}
	}
	if err := unix.Prlimit(vipd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: free, Max: free}, nil); err != nil {
		t.Fatal(err)
	}
	_ = vipd.Process.Signal(syscall.SIGTERM)
	if err := vipd.Wait(); err != nil {
		t.Errorf("vipd: error = %v, want none", err)
	}
	if left := g.rules(); strings.Contains(strings.ToUpper(left), "VIPD-") {
		t.Errorf("after the stop: rules =\n%s\nwant none", left)
	}
	if left := g.Host().Exec("ip", "addr", "show", "to", "10.96.0.10"); left != "" {
		t.Errorf("after the stop: addresses = %s, want none", left)
	}
	g.Host().Exec(g.vipctl, "cleanup", "--config", g.file)
}

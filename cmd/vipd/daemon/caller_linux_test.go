package daemon_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/events"
	"vipd/test/program"
)

const (
	nobody = 65534 // Debian's user nobody and group nogroup
	games  = 60    // a group that exists on every Debian host
)

// dialAs connects to a socket with the credentials of a user and its groups. It changes the
// credentials of one thread, which is locked to the goroutine and exits with it.
func dialAs(path string, uid int, groups []uint32) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	dialed := make(chan result)
	go func() {
		runtime.LockOSThread()
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			dialed <- result{err: err}
			return
		}
		first := unsafe.Pointer(nil)
		if len(groups) > 0 {
			first = unsafe.Pointer(&groups[0])
		}
		for _, call := range [][4]uintptr{
			{unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0},
			{unix.SYS_SETRESGID, uintptr(uid), uintptr(uid), uintptr(uid)},
			{unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)},
		} {
			if _, _, errno := syscall.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				dialed <- result{err: errno}
				return
			}
		}
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		f := os.NewFile(uintptr(fd), path)
		defer func() { _ = f.Close() }()
		if err != nil {
			dialed <- result{err: err}
			return
		}
		c, err := net.FileConn(f)
		dialed <- result{c, err}
	}()
	r := <-dialed
	return r.c, r.err
}

func clientAs(t *testing.T, socket string, uid int, groups ...uint32) *api.Client {
	t.Helper()
	relay := filepath.Join(t.TempDir(), "relay.sock")
	l, err := net.Listen("unix", relay)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := dialAs(socket, uid, groups)
			if err != nil {
				t.Error(err)
				_ = from.Close()
				continue
			}
			go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
			go func() { _, _ = io.Copy(from, to); _ = from.Close() }()
		}
	}()
	c := api.NewClient(relay)
	t.Cleanup(c.Close)
	return c
}

// TestCallersThatMayChange opens the socket to all users, and sends requests as several users. All
// users may read, but only root and the operators' group may make changes. Events must name the
// user that the kernel reports.
func TestCallersThatMayChange(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to call as other users")
	}
	dir, err := os.MkdirTemp("", "vipd") // other users can't enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir}
	program.Save(t, n.file(), strings.Replace(header, "[api]\n", "[api]\nchange_group = \"games\"\n", 1)+`
[services.redis]
vips = ["127.40.0.3"]
ports = [{ port = 6379 }]
health = { type = "tcp", steps = [{ send = "AUTH sesame\r\n" }] }
`)
	n.start()
	t.Cleanup(func() { n.stop() })
	info, err := os.Stat(n.socket())
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o660 {
		t.Errorf("mode of the socket = %o, want 660", mode)
	}
	if err := os.Chmod(n.socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	reader := clientAs(t, n.socket(), nobody)
	if _, err := reader.Status(t.Context()); err != nil {
		t.Errorf("reading as nobody: error = %v, want none", err)
	}
	for who, c := range map[string]*api.Client{"nobody": reader, "operator": clientAs(t, n.socket(), nobody, games)} {
		all, err := c.Services(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("services as %s = %v, %v, want one service", who, all, err)
		}
		if got, hides := fmt.Sprint(all[0].Definition["health"]), who == "nobody"; strings.Contains(got, "sesame") == hides || strings.Contains(got, "(hidden)") != hides {
			t.Errorf("health check as %s = %s, want its secret hidden only from nobody", who, got)
		}
	}
	if _, err := reader.Reload(t.Context(), "root"); err == nil || !strings.Contains(err.Error(), "nobody may not change this vipd; only root and the group games (api.change_group) may: ") {
		t.Errorf("reload as nobody: error = %v, want a refusal", err)
	}
	draining := true
	if _, err := reader.Override(t.Context(), api.OverrideRequest{Service: "web", Address: "127.0.0.1", Draining: &draining}); err == nil || !strings.Contains(err.Error(), "only root") {
		t.Errorf("drain as nobody: error = %v, want a refusal", err)
	}
	operator := clientAs(t, n.socket(), nobody, games)
	pending := func(c *api.Client) (errs []error) {
		_, tried := c.Try(t.Context(), api.PendingRequest{Name: "new.toml", Text: header, Within: time.Hour})
		_, read := c.Pending(t.Context())
		_, aborted := c.Abort(t.Context(), "")
		return []error{tried, read, aborted}
	}
	const rootOnly, nothing = "only root may make or confirm a change to vipd's configuration file", "no change to "
	for who, c := range map[*api.Client][]string{reader: {rootOnly, rootOnly, "only root and the group games"}, operator: {rootOnly, rootOnly, nothing}} {
		for i, err := range pending(who) {
			if err == nil || !strings.Contains(err.Error(), c[i]) {
				t.Errorf("request %d of a pending change = %v, want %q", i, err, c[i])
			}
		}
	}
	if _, err := operator.Reload(t.Context(), "alice\x1b[31m (root)"); err != nil {
		t.Errorf("reload as an operator: error = %v, want none", err)
	}
	if _, err := clientAs(t, n.socket(), 0).Reload(t.Context(), "alice"); err != nil {
		t.Errorf("reload as root: error = %v, want none", err)
	}
	story := n.eventsOf(events.Reload)
	for _, want := range []string{"vipctl reload by nobody (alice[31m root)", "vipctl reload by root (alice)"} {
		if !strings.Contains(story, want) {
			t.Errorf("reload events = %s, want %q once", story, want)
		}
	}
}

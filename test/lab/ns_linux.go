package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NS is a network namespace: the host, a client, a server, a router.
type NS struct {
	// Name is the name that the test chose.
	Name string

	lab     *Lab
	fd      netns.NsHandle
	netlink *netlink.Handle
}

// openNS returns the calling thread's network namespace.
func openNS() (netns.NsHandle, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening the thread's network namespace: %w", err)
	}
	return netns.NsHandle(fd), nil
}

// newNS creates a network namespace, which exists while fd is open or a process uses it.
func newNS() (fd netns.NsHandle, err error) {
	err = onOtherThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() error {
		fd, err = openNS()
		return err
	})
	return fd, err
}

// onOtherThread calls enter and then f on a thread that no other goroutine uses. Then it returns
// the thread to its namespace.
func onOtherThread(enter, f func() error) (err error) {
	runtime.LockOSThread()
	home, err := openNS()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() { // deferred, so that t.Fatal in f also restores the thread
		if back := unix.Setns(int(home), unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, fmt.Errorf("returning to the namespace before: %w", back))
		} else {
			runtime.UnlockOSThread() // a thread that can't be restored stays locked, so it exits with its goroutine
		}
		_ = home.Close()
	}()
	if err := enter(); err != nil {
		return fmt.Errorf("entering a namespace: %w", err)
	}
	return f()
}

// For returns the namespace for a subtest. Errors of its methods fail the subtest, and objects that
// they add are removed when the subtest ends.
func (n *NS) For(t testing.TB) *NS {
	ctx, cancel := context.WithCancel(n.lab.ctx)
	t.Cleanup(cancel)
	m := *n
	m.lab = &Lab{t: t, ctx: ctx, host: n.lab.host}
	if n == n.lab.host {
		m.lab.host = &m
	}
	return &m
}

// Do calls f in the calling goroutine while its thread is in the namespace, and returns f's error.
// Sockets that f opens and processes that it starts belong to the namespace; goroutines that it
// starts do not.
func (n *NS) Do(f func() error) error {
	return onOtherThread(func() error { return unix.Setns(int(n.fd), unix.CLONE_NEWNET) }, f)
}

// Sysctl sets a sysctl such as net.ipv4.ip_forward in the namespace until the test ends. '.' is the
// separator, so device names with a '.' don't work.
func (n *NS) Sysctl(name, value string) {
	n.lab.t.Helper()
	old, err := n.sysctl(name, value)
	if err != nil {
		n.lab.t.Fatalf("setting %s=%s in %s: %v", name, value, n.Name, err)
	}
	n.lab.t.Cleanup(func() {
		if _, err := n.sysctl(name, old); err != nil && !errors.Is(err, os.ErrNotExist) {
			n.lab.t.Errorf("setting %s back to %s in %s: %v", name, old, n.Name, err)
		}
	})
}

func (n *NS) sysctl(name, value string) (old string, err error) {
	err = n.Do(func() error {
		text, err := os.ReadFile(sysctlPath(name))
		if err != nil {
			return err
		}
		old = strings.TrimSpace(string(text))
		return os.WriteFile(sysctlPath(name), []byte(value), 0)
	})
	return old, err
}

// ReadSysctl returns the value of a sysctl in the namespace.
func (n *NS) ReadSysctl(name string) string {
	n.lab.t.Helper()
	var value string
	err := n.Do(func() error {
		text, err := os.ReadFile(sysctlPath(name))
		value = strings.TrimSpace(string(text))
		return err
	})
	if err != nil {
		n.lab.t.Fatalf("reading %s in %s: %v", name, n.Name, err)
	}
	return value
}

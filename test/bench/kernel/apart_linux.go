package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// roleVar is an environment variable with the role of a process of this program. It is unset in the
// process that a user starts.
const roleVar = "VIPD_BENCH_ROLE"

// These are the roles of processes in their own namespaces.
const (
	senderRole = "sender" // the benchmark itself, which starts all boxes
	boxRole    = "box"
)

// apart prepares this program to run again in its own network, mount and process namespaces. The
// process is killed when ctx is done, or when the thread that started it ends.
func apart(ctx context.Context, role string, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: unix.SIGKILL,
	}
	return cmd, nil
}

// setUp makes new namespaces usable. /proc and /sys show them, /run (which has the lock of
// iptables-legacy) is empty, lo is up, and router settings do not depend on the machine.
func setUp() error {
	mounts := []struct {
		kind, at string
		flags    uintptr
		options  string
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE, ""}, // first: mounts below must not be visible outside
		{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	}
	for _, m := range mounts {
		if err := unix.Mount(m.kind, m.at, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mounting %s in a fresh mount namespace: %w", m.at, err)
		}
	}
	for name, value := range map[string]string{
		"net.ipv4.ip_forward":         "1",
		"net.ipv4.conf.all.rp_filter": "0", "net.ipv4.conf.default.rp_filter": "0",
		"net.ipv6.conf.default.disable_ipv6": "1", // without IPv6, the links carry only the measured packets and no neighbour discovery
	} {
		path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding lo in a fresh network namespace: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

package owner

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"vipd/balancer/failover/local"
	"vipd/cmd/internal/netlock"
)

// now reads CLOCK_BOOTTIME. This clock continues while the host is suspended, and nobody can set
// it.
func now() local.Time {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // available since Linux 2.6.39
	return local.Time(t.Nano())
}

// Priority is the real-time priority of the process (SCHED_RR).
const Priority = 5

// SetRealtime gives the process real-time priority and locks its memory, if permitted. It then
// executes the program again, because only threads that are created later inherit these settings.
// It returns an error for each setting that was refused.
func SetRealtime() (problems []error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		problems = append(problems, fmt.Errorf("locking memory (LimitMEMLOCK=infinity, CAP_IPC_LOCK): %w", err))
	}
	attr, err := unix.SchedGetAttr(0, 0)
	if err == nil && attr.Policy == unix.SCHED_RR || os.Getenv("VIPD_OWNER_PLAIN") != "" {
		return problems
	}
	rr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: Priority}
	if err := unix.SchedSetAttr(0, &rr, 0); err != nil {
		return append(problems, fmt.Errorf("acquiring real-time priority (LimitRTPRIO=%d, CAP_SYS_NICE, RestrictRealtime=no): %w", Priority, err))
	}
	self, err := os.Executable()
	if err == nil {
		err = syscall.Exec(self, os.Args, os.Environ())
	}
	return append(problems, fmt.Errorf("starting with real-time priority: %w", err))
}

// machine returns a name that identifies the current boot of this host and the network namespace.
// If an earlier session has the same name, this process has already closed that session's gate.
func machine() (string, error) {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		id = nil // containers and old systems have no machine ID
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the kernel's boot ID: %w", err)
	}
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &namespace); err != nil {
		return "", fmt.Errorf("reading the network namespace: %w", err)
	}
	return fmt.Sprintf("%s/%s/%d", bytes.TrimSpace(id), bytes.TrimSpace(boot), namespace.Ino), nil
}

// peer returns the process ID at the other end of a connection, or 0 if it is unknown.
func peer(c net.Conn) int {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0
	}
	pid, _ := netlock.Peer(u)
	return pid
}

// frozen reports whether a signal has stopped a process.
func frozen(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, behind, _ := strings.Cut(string(text), ") ")
	return err == nil && strings.HasPrefix(behind, "T")
}

package lockfile

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// exiting is the process flag PF_EXITING, which the kernel sets when a process starts to exit.
const exiting = 0x4

// IsDying reports whether a process no longer exists, or will soon be gone because it is exiting,
// was killed or is a zombie. It returns false for process ID 0, which stands for a process that
// this process can't see.
func IsDying(pid int) bool {
	if pid <= 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil { // the process has ended, or /proc hides other users' processes
		return errors.Is(unix.Kill(pid, 0), unix.ESRCH)
	}
	// The process's name is in parentheses and may contain any character. After it, the first field
	// is the state, and the seventh contains the flags.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 7 || fields[0] == "Z" || fields[0] == "X" {
		return true
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&exiting != 0 || isKilled(pid)
}

// isKilled reports whether a SIGKILL is pending for a process that has not started to exit.
func isKilled(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return errors.Is(unix.Kill(pid, 0), unix.ESRCH)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64); err == nil && set&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

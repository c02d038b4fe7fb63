package lockfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Holder returns the process ID of the vipd that holds the lock at path. It returns 0 if the lock
// is free, if the holder is not visible, or if vipctl holds the lock for a cleanup. It does not
// open the file.
func Holder(path string) (pid int) {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	return holderIn(string(locks), fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino), program)
}

// holderIn implements Holder. locks is the content of /proc/locks, and file is MAJOR:MINOR:INODE. A
// line looks like "1: FLOCK ADVISORY WRITE 1234 00:19:5678 0 EOF". If the process only waits for
// the lock, the line has an arrow after the first field, and holderIn ignores it.
func holderIn(locks, file string, program func(pid int) string) int {
	for line := range strings.Lines(locks) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil && pid > 0 && program(pid) != "vipctl" {
			return pid
		}
	}
	return 0
}

// program returns the name of a process's program, or "" if the process has ended.
func program(pid int) string {
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

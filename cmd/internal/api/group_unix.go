//go:build unix

package api

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// groupOf returns the name of a file's group. It returns "" if the group is root, has no name, or
// can't be read.
func groupOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Gid == 0 {
		return ""
	}
	group, err := user.LookupGroupId(strconv.FormatUint(uint64(stat.Gid), 10))
	if err != nil {
		return ""
	}
	return group.Name
}

package execpath

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// folders returns the directories of iptables, ipset, modprobe and similar tools. On Debian, su
// without "-" sets a PATH without these directories. The PATH of users and of some supervisors also
// lacks them.
func folders() []string { return []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} }

// AddFolders appends the missing directories of administrators' programs to this process's PATH.
// Programs call it first. On Windows, it does nothing.
func AddFolders() {
	if runtime.GOOS == "windows" {
		return
	}
	_ = os.Setenv("PATH", with(os.Getenv("PATH"))) // fails only for names with "=" or a zero byte
}

// with returns path with the missing directories appended.
func with(path string) string {
	have := filepath.SplitList(path)
	for _, folder := range folders() {
		if !slices.ContainsFunc(have, func(h string) bool { return h != "" && filepath.Clean(h) == folder }) {
			have = append(have, folder)
		}
	}
	return strings.Join(have, string(filepath.ListSeparator))
}

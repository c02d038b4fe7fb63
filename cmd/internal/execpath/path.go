package execpath

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// folders returns the directories of iptables, ipset, modprobe and similar tools. They are missing
// in the PATH that su without "-" sets on Debian, and in the PATH of users and some supervisors.
func folders() []string { return []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} }

// AddFolders appends the missing directories of administrators' programs to this process's PATH.
// Programs call it first. On Windows it does nothing.
func AddFolders() {
	if runtime.GOOS == "windows" {
		return
	}
	_ = os.Setenv("PATH", with(os.Getenv("PATH"))) // fails only for names with "=" or a zero byte
}

// with returns path with the missing directories.
func with(path string) string {
	have := filepath.SplitList(path)
	for _, folder := range folders() {
		if !slices.ContainsFunc(have, func(h string) bool { return h != "" && filepath.Clean(h) == folder }) {
			have = append(have, folder)
		}
	}
	return strings.Join(have, string(filepath.ListSeparator))
}

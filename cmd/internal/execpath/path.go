package execpath

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// folders has iptables, ipset, modprobe and their like. They are missing in the PATH that su without "-" leaves on
// Debian, and in those of users and of some supervisors.
func folders() []string { return []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} }

// AddFolders adds to this process's PATH, behind what is there, the folders of administrators' programs that it lacks.
// Programs call it first. On Windows it does nothing.
func AddFolders() {
	if runtime.GOOS == "windows" {
		return
	}
	_ = os.Setenv("PATH", with(os.Getenv("PATH"))) // it fails for names with "=" or a zero byte only
}

// with returns path with the folders that it lacks.
func with(path string) string {
	have := filepath.SplitList(path)
	for _, folder := range folders() {
		if !slices.ContainsFunc(have, func(h string) bool { return h != "" && filepath.Clean(h) == folder }) {
			have = append(have, folder)
		}
	}
	return strings.Join(have, string(filepath.ListSeparator))
}

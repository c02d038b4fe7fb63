package execpath

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// folders returns the directories that contain iptables, ipset, modprobe and similar tools. They
// are missing from PATH for ordinary users, for some supervisors and, on Debian, after su without
// "-".
func folders() []string { return []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} }

// AddFolders appends the directories of system administration programs to this process's PATH,
// unless they are already in it. Call it before other code looks up programs. On Windows, it does
// nothing.
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

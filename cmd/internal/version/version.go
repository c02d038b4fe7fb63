package version

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// Version is the release. The linker sets it (-X), which asks for a variable; nothing else writes to it.
var Version = "dev"

// Info is what is known of this build.
type Info struct {
	Version string `json:"version"`
	// Commit is the revision of the source, with "-dirty" where that was changed; "" where it is not known.
	Commit string `json:"commit,omitempty"`
	// Go is the toolchain's version, Platform OS/ARCH.
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Current returns what is known of the running program.
func Current() Info {
	info := Info{Version: Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	dirty := false
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Commit = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty && info.Commit != "" {
		info.Commit += "-dirty"
	}
	return info
}

// String writes the build in one line.
func (i Info) String() string {
	commit := cmp.Or(i.Commit, "unknown")
	return i.Version + ", commit " + commit + ", " + i.Go + ", " + i.Platform
}

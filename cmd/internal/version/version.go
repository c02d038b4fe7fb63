package version

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// Version is the release version. It is a variable only because the linker sets it (-X).
var Version = "dev"

// Info identifies a build.
type Info struct {
	Version string `json:"version"`
	// Commit is the commit that was built, or "" if it is unknown. It ends with "-dirty" if the
	// source had uncommitted changes.
	Commit string `json:"commit,omitempty"`
	// Go is the Go version. Platform has the form OS/ARCH.
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Current returns the build of the running program.
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

// String returns the build's details on one line.
func (i Info) String() string {
	commit := cmp.Or(i.Commit, "unknown")
	return i.Version + ", commit " + commit + ", " + i.Go + ", " + i.Platform
}

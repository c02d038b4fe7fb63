package netlock

import (
	"cmp"
	"fmt"
)

// Holder is the process that holds the lock.
type Holder struct {
	// PID is the holder's process ID, or 0 if the holder is in a PID namespace that this process
	// can't see.
	PID int `json:"-"`
	// Program is the holder's program name, or "" if it is unknown.
	Program string `json:"-"`
	// Config is the holder's configuration file, and RunDir is its run_dir, as absolute paths. They
	// are "" if the holder does not report them.
	Config string `json:"config"`
	RunDir string `json:"run_dir"`
}

// IsDaemon reports whether the holder is a vipd. Otherwise it is a vipctl cleanup, which holds the
// lock only briefly.
func (h Holder) IsDaemon() bool { return h.Program != "vipctl" }

// String returns text like "vipd (pid 12, config /etc/vipd/vipd.toml, run_dir /run/vipd)".
func (h Holder) String() string {
	s := cmp.Or(h.Program, "vipd")
	if h.PID == 0 {
		s += " (its pid is not visible here"
	} else {
		s += fmt.Sprintf(" (pid %d", h.PID)
	}
	if h.Config != "" {
		s += fmt.Sprintf(", config %s, run_dir %s", h.Config, h.RunDir)
	}
	return s + ")"
}

// HeldError means that another process holds the lock.
type HeldError struct{ Holder Holder }

func (e *HeldError) Error() string {
	return fmt.Sprintf("%s already manages the services in this network namespace", e.Holder)
}

// ForeignError means that an unprivileged user's process occupies the lock's name. Any user can do
// that. It must not prevent vipd from serving, so vipd then relies only on the lock file in
// run_dir.
type ForeignError struct{ PID, UID int }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("the lock of this network namespace (the abstract socket @vipd) is held by process %d, which belongs to another user (%d). Stop that process "+
		"and restart vipd", e.PID, e.UID)
}

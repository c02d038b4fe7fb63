package folder

import (
	"path/filepath"
	"slices"
)

// Uses reports whether vipd may use a file with this name in run_dir or state_dir, as a record, a
// socket or a lock.
func Uses(name string) bool {
	return slices.Contains([]string{".json", ".state", ".sock", ".lock"}, filepath.Ext(name))
}

// Refusal returns the reason why vipd does not start with a directory, and the field that
// configures it.
type Refusal struct {
	// Field is run_dir, state_dir or api.socket.
	Field string
	// Err is the reason, with the command that fixes it.
	Err error
}

// Refused returns the directories that prevent vipd's start, among run_dir, state_dir and the
// directory of api.socket. An empty stateDir is not checked.
func Refused(runDir, stateDir, socket string) (all []Refusal) {
	for _, f := range []struct {
		field, path string
		check       func(string) error
	}{
		{"run_dir", runDir, CheckFiles}, {"state_dir", stateDir, CheckFiles}, {"api.socket", filepath.Dir(socket), Check},
	} {
		if f.path == "" {
			continue
		}
		if err := f.check(f.path); err != nil {
			all = append(all, Refusal{f.field, err})
		}
	}
	return all
}

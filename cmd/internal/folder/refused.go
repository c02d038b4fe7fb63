package folder

import (
	"path/filepath"
	"slices"
)

// Uses reports whether vipd may use a file with this name in run_dir or state_dir. vipd's records,
// sockets and locks have the extensions .json, .state, .sock and .lock.
func Uses(name string) bool {
	return slices.Contains([]string{".json", ".state", ".sock", ".lock"}, filepath.Ext(name))
}

// Refusal is a directory that vipd refuses to use, so it does not start.
type Refusal struct {
	// Field is the setting that names the directory: run_dir, state_dir or api.socket.
	Field string
	// Err is the reason, with the command that fixes it.
	Err error
}

// Refused checks run_dir, state_dir and the directory that contains api.socket, and returns the
// directories that vipd refuses to use. It skips stateDir if it is empty.
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

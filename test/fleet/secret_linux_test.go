package fleet

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
)

// keepsSecret searches for the daemons' password in everything that other users can read: logs,
// vipctl's output, metrics, the arguments and environments of processes, and vipd's files.
func (w *world) keepsSecret() {
	w.t.Helper()
	look := func(where string, text []byte) {
		if bytes.Contains(text, []byte(w.secret)) {
			w.t.Errorf("password is readable in %s, want it nowhere", where)
		}
	}
	w.each(func(n *node) {
		for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, {"get", "services", "-o", "json"}, {"describe", "service", "web"}, {"doctor", "--config", n.config()}} {
			out, err := n.ctl(args...)
			if out == "" {
				w.t.Errorf("vipctl %q: no output, error = %v; want some output", args, err)
			}
			look("what vipctl says: "+args[0], []byte(out))
		}
		looked := 0
		err := filepath.WalkDir(n.dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || d.Name() == "password" {
				return err
			}
			text, err := os.ReadFile(path)
			look(path, text)
			looked++
			return err
		})
		if err != nil || looked < 3 { // at least the log, vipd.toml and the state
			w.t.Errorf("checked files = %d of %s, error = %v, want at least 3", looked, n.name, err)
		}
	})
	found := 0
	for _, what := range []string{"cmdline", "environ"} {
		files, err := filepath.Glob("/proc/[0-9]*/" + what)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				continue // the process has exited
			}
			if what == "cmdline" && bytes.Contains(text, []byte("/vipd\x00")) {
				found++
			}
			look(file, text)
		}
	}
	if found < len(w.nodes) {
		w.t.Errorf("vipd processes = %d, want %d", found, len(w.nodes))
	}
}

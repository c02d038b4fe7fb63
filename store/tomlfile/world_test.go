package tomlfile_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/store"
	"vipd/store/tomlfile"
	"vipd/test/wait"
)

const within = 20 * time.Second

// world is a directory with files and a source that follows these files.
type world struct {
	*testing.T
	dir    string
	source *tomlfile.Source

	mu   sync.Mutex
	last store.Snapshot
	seen int
}

// newWorld creates a directory with files. The map files contains the text of each file by its
// path.
func newWorld(t *testing.T, files map[string]string) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir()}
	for path, text := range files {
		w.write(path, text)
	}
	return w
}

func (w *world) path(path string) string { return filepath.Join(w.dir, path) }

func (w *world) write(path, text string) {
	w.Helper()
	if err := os.MkdirAll(filepath.Dir(w.path(path)), 0o755); err != nil {
		w.Fatal(err)
	}
	writeFile(w, w.path(path), text)
}

func (w *world) do(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// link atomically replaces path with a symbolic link to target.
func (w *world) link(path, target string) {
	w.Helper()
	w.do(os.Symlink(target, w.path(path)+".new"))
	w.do(os.Rename(w.path(path)+".new", w.path(path)))
}

// follow starts a source that follows vipd.toml, and waits for the first snapshot.
func (w *world) follow() { w.Helper(); w.followWith(tomlfile.Options{Main: w.path("vipd.toml")}, nil) }

func (w *world) followWith(o tomlfile.Options, change func(*tomlfile.Source)) {
	w.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(w.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	w.source = tomlfile.New(o)
	if change != nil {
		change(w.source)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		err := w.source.Watch(ctx, func(s store.Snapshot) {
			w.mu.Lock()
			w.last = s
			w.seen++
			w.mu.Unlock()
		})
		if err != nil {
			w.Errorf("Watch: %v", err)
		}
	})
	w.Cleanup(func() { cancel(); running.Wait() })
	w.until("the first snapshot", func(store.Snapshot) bool { return true })
}

func (w *world) now() (store.Snapshot, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last, w.seen
}

func (w *world) until(what string, is func(store.Snapshot) bool) store.Snapshot {
	w.Helper()
	defer func() {
		if w.Failed() {
			s, n := w.now()
			w.Logf("snapshot %d: %s", n, describe(s))
		}
	}()
	wait.For(w, within, what, func() bool {
		s, n := w.now()
		return n > 0 && is(s)
	})
	s, _ := w.now()
	return s
}

// waitFor waits until describe returns want for the last snapshot, and returns this snapshot.
func (w *world) waitFor(what, want string) store.Snapshot {
	w.Helper()
	want = strings.ReplaceAll(want, "DIR", w.dir)
	w.Log("waiting for ", what, ": ", want)
	return w.until(what, func(s store.Snapshot) bool { return describe(s) == want })
}

// wantUnchanged fails the test if another snapshot is published within the given time.
func (w *world) wantUnchanged(what string, while time.Duration) {
	w.Helper()
	before, n := w.now()
	end := time.Now().Add(while)
	wait.For(w, within, "the end of a quiet time", func() bool { return time.Now().After(end) })
	if after, m := w.now(); m != n {
		w.Fatalf("%s: new snapshot = %s, want none; last snapshot = %s", what, describe(after), describe(before))
	}
}

func (w *world) reload() []balancer.Problem { w.Helper(); return w.reloadAs(tomlfile.Reload{}) }

func (w *world) reloadAs(r tomlfile.Reload) []balancer.Problem {
	w.Helper()
	problems, err := w.source.ReloadAs(w.Context(), r)
	w.do(err)
	return problems
}

// describe lists each service as NAME=N, where N is the last number of its first VIP, and then each
// problem.
func describe(s store.Snapshot) string {
	var b strings.Builder
	for name, service := range s.Services.All() {
		fmt.Fprintf(&b, "%s=%d ", name, service.VIPs[0].As4()[3])
	}
	if !s.Connected {
		b.WriteString("disconnected ")
	}
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "| %s ", p)
	}
	return strings.TrimSpace(b.String())
}

// service returns the TOML table of a service. The last number of its VIP is n.
func service(name string, n int) string {
	return fmt.Sprintf("[services.%s]\nvips = [\"10.96.0.%d\"]\nports = [{ port = 80 }]\n", name, n)
}

func sortedNames(s store.Snapshot) []balancer.Name { return slices.Collect(s.Services.Keys()) }

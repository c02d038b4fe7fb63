package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestMistakeOutsideService hides a service behind a misspelled heading, and restarts vipd. The
// service must be served, and each reload must report it, until a reload with --prune removes it.
func TestMistakeOutsideService(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "one")
	n := startNode(t, web)
	reload := func(want api.ReloadChanges, flags ...api.ReloadFlag) {
		t.Helper()
		r, err := n.client.Reload(t.Context(), "", flags...)
		if err != nil || !reflect.DeepEqual(r.ReloadChanges, want) {
			t.Errorf("reload = %+v, %v; want %+v", r.ReloadChanges, err, want)
		}
	}
	served := func(when string) {
		t.Helper()
		if got := ask("127.40.0.1:8080"); got != "one" {
			t.Errorf("after %s: answer = %q, want \"one\"", when, got)
		}
	}
	hidden := strings.ReplaceAll(web, "[services.web", "[service.web")
	kept := api.ReloadChanges{Kept: []balancer.Name{"web"}, Vanished: []balancer.Name{"web"}}
	n.write(hidden)
	reload(kept)
	served("with a misspelled heading")
	for range 2 {
		n.stop()
		n.start()
		served("after a restart")
		reload(kept)
	}
	n.write(hidden + "[services.other]\nvips = [\"127.40.0.2\"]\nports = [{ port = 8080 }]\n")
	wait.For(t, 10*time.Second, "the other service", func() bool { return n.status().Services == 2 })
	added := kept
	added.Added = []balancer.Name{"other"}
	reload(added) // vipd has read the change before the reload
	reload(kept)
	reload(api.ReloadChanges{Removed: []balancer.Name{"web"}}, api.ReloadPrune)
	n.write("")
	reload(api.ReloadChanges{Removed: []balancer.Name{"other"}})
}

// TestStartWithMistake starts vipd with an unusable or empty file. vipd must use the last valid
// configuration, and must refuse to start if there is none.
func TestStartWithMistake(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "one")
	n := startNode(t, web)
	n.stop()
	for _, text := range []string{
		header + "[sync]\nmin_intervall = \"1s\"\n" + web, strings.Replace(header, "userspace", "none", 1) + web, header + "[services.", header + web + "\xff",
	} {
		program.Save(t, n.file(), text)
		n.start()
		if s := n.status(); s.Mode.Wanted != "userspace" || len(s.Problems) == 0 {
			t.Errorf("file %q: wanted mode = %s, problems = %v; want userspace and a problem", text, s.Mode.Wanted, s.Problems)
		}
		if got := ask("127.40.0.1:8080"); got != "one" {
			t.Errorf("with the file %q: answer = %q, want \"one\"", text, got)
		}
		n.stop()
	}
	if err := os.RemoveAll(filepath.Join(n.dir, "state")); err != nil {
		t.Fatal(err)
	}
	if _, err := n.make(false); err == nil || !errors.Is(err, daemon.ErrConfig) {
		t.Errorf("without a last valid configuration: error = %v, want ErrConfig", err)
	}
}

// TestSavingInPlace empties the configuration file, as happens if a program rewrites it or the disk
// is full. Services and settings must stay. Only an explicit reload may remove all services.
func TestSavingInPlace(t *testing.T) {
	n := startNode(t, web)
	unchanged := func(problem string) {
		t.Helper()
		r, err := n.client.Reload(t.Context(), "")
		if err != nil || r.Services != 1 || len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Text, problem) {
			t.Errorf("reload = %+v, %v; want one service and the problem that the file %s", r, err, problem)
		}
		if s := n.status(); s.Mode.Wanted != "userspace" {
			t.Errorf("wanted mode = %s, want userspace", s.Mode.Wanted)
		}
	}
	file, err := os.Create(n.file())
	if err != nil {
		t.Fatal(err)
	}
	unchanged("is being written")
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	n.written()
	unchanged("is empty")
	r, err := n.client.Reload(t.Context(), "", api.ReloadAllowEmpty)
	if err != nil || r.Services != 0 {
		t.Errorf("reload that allows an empty file = %+v, error = %v; want the service removed", r, err)
	}
	if s := n.status(); s.Mode.Wanted != "auto" {
		t.Errorf("wanted mode = %s, want the default", s.Mode.Wanted)
	}
}

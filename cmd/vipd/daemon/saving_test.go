package daemon_test

import (
	"os"
	"strings"
	"testing"
)

// TestRestartWithMistake: a service whose file has a mistake is served after a restart as it was before.
func TestRestartWithMistake(t *testing.T) {
	server(t, "127.40.1.1:9001", "one")
	server(t, "127.40.1.1:9002", "two")
	n := startNode(t, web)
	n.stop()
	n.write(strings.Replace(web, "vips = [", "vips = [\"nowhere\", ", 1))
	n.start()
	if s := n.status(); len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Text, "nowhere") {
		t.Errorf("the problems are %v", s.Problems)
	}
	if got := ask("127.40.0.1:8080"); got != "one" && got != "two" {
		t.Errorf("%q answers", got)
	}
}

// TestSavingInPlace: a configuration that is emptied, by a program that writes it just now or by a full disk, changes neither the
// services nor the settings. To serve nothing on purpose takes a word.
func TestSavingInPlace(t *testing.T) {
	n := startNode(t, web)
	unchanged := func(problem string) {
		t.Helper()
		r, err := n.client.Reload(t.Context(), "")
		if err != nil || r.Services != 1 || len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Text, problem) {
			t.Errorf("reload: %+v, %v; want one service and the problem that the file %s", r, err, problem)
		}
		if s := n.status(); s.Mode.Wanted != "userspace" {
			t.Errorf("the wanted mode is %s", s.Mode.Wanted)
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
	r, err := n.client.ReloadEmpty(t.Context(), "")
	if err != nil || r.Services != 0 {
		t.Errorf("reload that allows an empty file: %+v, %v", r, err)
	}
	if s := n.status(); s.Mode.Wanted != "auto" {
		t.Errorf("the wanted mode is %s, want the default", s.Mode.Wanted)
	}
}

package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/balancer/lib/atomicfile"
	"vipd/cmd/internal/api"
	"vipd/test/program"
	"vipd/test/wait"
)

// TestPendingChange starts pending changes to the configuration file, and kills vipd while some are
// pending. vipd must use the pending text until an abort or the deadline, even after it was killed,
// and then use the file again. A confirmed change must stay.
func TestPendingChange(t *testing.T) {
	n := &node{t: t, dir: t.TempDir()}
	bin := program.Bin(t)
	service := func(name string) string {
		return header + "[services." + name + "]\nvips = [\"127.40.7.1\"]\nports = [{ port = 8080 }]\n"
	}
	program.Save(t, n.file(), service("old"))
	restart := func(kill bool) {
		n.end(kill)
		n.spawn(bin)
	}
	n.spawn(bin)
	serves := func(when, want string, pending int) {
		t.Helper()
		wait.For(t, 0, when+": "+want, func() bool {
			services, err := n.client.Services(t.Context())
			return err == nil && len(services) == 1 && string(services[0].Name) == want && len(n.status().Pending) == pending
		})
	}
	try := func(name string, within time.Duration) api.Reload {
		t.Helper()
		r, err := n.client.Try(t.Context(), api.PendingRequest{Name: "new.toml", Text: service(name), Within: within, By: "ana"})
		if err != nil || r.Refused {
			t.Fatalf("change %s = %+v, error = %v, want a pending change", name, r, err)
		}
		return r
	}
	if r := try("new", time.Hour); len(r.Pending) != 1 || len(r.Added) != 1 || len(r.Removed) != 1 {
		t.Errorf("first change = %+v, want one added and one removed service", r)
	}
	serves("pending", "new", 1)
	restart(true)
	serves("after a kill", "new", 1)
	if _, err := n.client.Try(t.Context(), api.PendingRequest{Name: "b", Text: service("b"), Within: time.Hour}); err == nil || !strings.Contains(err.Error(), " is already pending, until ") {
		t.Errorf("another change: error = %v, want a refusal", err)
	}
	if _, err := n.client.Abort(t.Context(), "ana"); err != nil {
		t.Error(err)
	}
	serves("aborted", "old", 0)
	restart(true)
	serves("aborted, after a kill", "old", 0)

	const short = 3 * time.Second
	try("new", short)
	serves("until the deadline", "old", 0)
	try("new", short)
	n.end(true)
	time.Sleep(short)
	n.spawn(bin)
	serves("after a deadline while vipd was down", "old", 0)
	if text := eventTexts(t, n, "pending"); !strings.Contains(text, "the pending change to "+n.file()+" is reverted: it was not confirmed by ") {
		t.Errorf("vipd started after the deadline: events =\n%s\nwant the reverted change", text)
	}

	try("new", time.Hour)
	p, err := n.client.Pending(t.Context())
	if err == nil {
		err = atomicfile.Replace(p.Place, []byte(p.Text))
	}
	if err != nil {
		t.Fatal(err)
	}
	restart(true)
	serves("confirmed, after a kill", "new", 0)
	text := eventTexts(t, n, "pending")
	for _, want := range []string{" is confirmed: the file contains it now", "a change to " + n.file() + " is pending: it will be reverted at "} {
		if !strings.Contains(text, want) {
			t.Errorf("no event has the text %q; events =\n%s", want, text)
		}
	}
}

// TestPendingMistake requests changes with mistakes. Each must be refused with a message that names
// the new file, and must change nothing.
func TestPendingMistake(t *testing.T) {
	n := startNode(t, "")
	for _, text := range []string{header + "[services.a]\nvips = [\"300.0.0.1\"]\n", header + "[sync]\nmin_intervall = \"1s\"\n", "[broken", ""} {
		r, err := n.client.Try(t.Context(), api.PendingRequest{Name: "new.toml", Text: text, Within: time.Hour})
		if err != nil || !r.Refused || len(r.Problems) == 0 || r.Problems[0].Origin.File != "new.toml" {
			t.Errorf("with %q: change = %+v, error = %v, want a refusal with the new file's name", text, r, err)
		}
	}
	if s := n.status(); len(s.Pending) > 0 || s.Services > 0 {
		t.Errorf("pending = %v, services = %d, want no pending change and no services", s.Pending, s.Services)
	}
	if _, err := n.client.Pending(t.Context()); err == nil || err.Error() != "no change is pending" {
		t.Errorf("Pending without a change: error = %v, want an error that no change is pending", err)
	}
	if _, err := n.client.Abort(t.Context(), ""); err == nil || err.Error() != "no change to "+n.file()+" is pending" {
		t.Errorf("Abort without a change: error = %v, want an error that no change is pending", err)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "state", "pending.json")); err == nil {
		t.Error("refused change: file exists = true, want false")
	}
}

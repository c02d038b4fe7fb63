package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/store/tomlfile"
	"vipd/test/etcdkit"
)

// TestPendingPlace confirms and aborts pending changes to this host's file and to etcd. The change
// to the file must be aborted first. If the daemon refuses or does not answer, the change in etcd
// must remain.
func TestPendingPlace(t *testing.T) {
	f := newFleet(t, etcdkit.Options{})
	f.do(cli.ExitDone, "apply", "-f", f.file(serviceText("web", "10.96.0.10", 80)))
	f.do(cli.ExitDone, "apply", "-f", f.file(serviceText("web", "10.96.0.10", 81)), "--confirm", "10m")
	w := f.writer(t)
	d, socket := fakeHere(t)
	own := filepath.Join(t.TempDir(), "vipd.toml")
	config := func(socket string) []string {
		text := fmt.Sprintf("[store]\nkind = \"etcd\"\n[etcd]\nendpoints = [%q]\n[api]\nsocket = %q\n", f.cluster.Endpoints()[0], socket)
		return []string{"--config", f.file(text)}
	}
	expect := func(verb string, want int, text string) {
		t.Helper()
		code, stdout, stderr := f.run(t.Context(), "ana", verb)
		if code != want || !strings.Contains(stdout+stderr, text) {
			t.Errorf("%s: exit code = %d, output = %s%s; want %d, %q", verb, code, stdout, stderr, want, text)
		}
		if _, _, err := w.Pending(t.Context(), time.Now()); err != nil && text != "web: updated" {
			t.Fatalf("%s: reading the pending change in etcd: error = %v, want none", verb, err)
		}
	}
	f.flags = config(filepath.Join(t.TempDir(), "none.sock"))
	expect("confirm", cli.ExitFailed, "with --etcd URL,... ends the change in etcd")
	expect("abort", cli.ExitFailed, "with --etcd URL,... ends the change in etcd")

	ofFile, inEtcd := api.Pending{Place: own}, api.Pending{Place: "/vipd/pending", InEtcd: true}
	d.status.Pending = []api.Pending{ofFile, inEtcd}
	f.flags = config(socket)
	expect("confirm", cli.ExitFailed, "403 Forbidden")
	expect("abort", cli.ExitDone, "reloaded")
	if d.aborts != 1 {
		t.Errorf("aborted changes to the file = %d, want 1", d.aborts)
	}
	if err := os.WriteFile(own, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.pending, d.reload.Pending = &api.PendingText{Pending: ofFile, Text: "new", Former: tomlfile.Sum([]byte("old"))}, []api.Pending{inEtcd}
	expect("confirm", cli.ExitDone, "confirmed: "+own)

	d.status.Pending = []api.Pending{inEtcd}
	expect("confirm", cli.ExitDone, "web: updated")
}

package failover

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
	"vipd/store/statedir"
)

// TestUnreadableMemory starts with a file that is damaged or from a newer version, and with a
// folder instead of a file. This host must be on standby until an operator resumes it, even after
// another restart.
func TestUnreadableMemory(t *testing.T) {
	for name, write := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"newer":   func(path string) error { return os.WriteFile(path, []byte(`{"version": 99}`), 0o600) },
		"folder":  func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := t.TempDir()
		if err := write(filepath.Join(path, "ownership.json")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			var m memory
			dir := statedir.New(path, func() {})
			m.load(dir)
			if m.standby() == nil || !strings.Contains(m.problem(), "ownership.json can't be read: ") {
				t.Errorf("%s: standby = %+v, problem = %q, want a standby, and a problem with the reason", name, m.standby(), m.problem())
			}
			_ = dir.Close() // a folder can't be replaced
		}
		if err := os.RemoveAll(filepath.Join(path, "ownership.json")); err != nil {
			t.Fatal(err)
		}
		var m memory
		dir := statedir.New(path, func() {})
		m.load(dir)
		if m.standby() != nil || m.problem() != "" {
			t.Errorf("%s: without the file, standby = %+v, want nil", name, m.standby())
		}
		if err := dir.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMemoryOutlivesRestart saves a standby setting and more changes than the file may hold. Some
// changes are reported twice. The next process must read the standby setting and the last changes,
// with their original times.
func TestMemoryOutlivesRestart(t *testing.T) {
	path := t.TempDir()
	dir := statedir.New(path, func() {})
	var m memory
	m.load(dir)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	s := &vrrp.Status{At: local.Time(time.Hour)}
	for i := range maxChanges + 2 {
		age := time.Duration(maxChanges+2-i) * time.Minute
		change := vrrp.Change{At: s.At.Add(-age), From: vrrp.Backup, To: vrrp.Active, Why: "silence", Text: fmt.Sprint("change ", i)}
		s.Groups = []vrrp.GroupStatus{{Name: "main", Changes: []vrrp.Change{change}}}
		m.note(s, now)
		m.note(s, now.Add(time.Second)) // the same change again
	}
	if err := m.setStandby(&api.Standby{By: "ana", Since: now}); err != nil {
		t.Fatal(err)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}

	var next memory
	again := statedir.New(path, func() {})
	next.load(again)
	if got := next.standby(); got == nil || got.By != "ana" {
		t.Errorf("standby() = %+v, want ana's standby", got)
	}
	all := next.changes("main")
	if len(all) != maxChanges || all[0].Text != "change 2" || !all[maxChanges-1].At.Equal(now.Add(-time.Minute)) {
		t.Errorf("changes() = %+v, want the last %d changes", all, maxChanges)
	}
	if err := next.setStandby(nil); err != nil {
		t.Fatal(err)
	}
	if got := next.standby(); got != nil {
		t.Errorf("after the standby: standby() = %+v, want nil", got)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

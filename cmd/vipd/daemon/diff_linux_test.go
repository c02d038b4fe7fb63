package daemon_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/modes"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestDiffReadsTheKernel changes rules while iptables-restore reports success without doing
// anything. The API must show the difference, and no event may report a repair until iptables works
// again.
func TestDiffReadsTheKernel(t *testing.T) {
	lab.New(t)
	lab.Need(t, "iptables-nft")
	mode, _ := modes.Find(config.IPTablesMode)
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
	n.configure(`mode = "userspace"`, `mode = "iptables"`, `
[iptables]
backend = "nft"
[services.web]
vips = ["10.96.0.10"]
ports = [{ port = 80 }]
endpoints = [{ address = "10.2.1.2", port = 8080 }]
`)
	// If iptables has filter rules, the guard also adds its own chains to iptables.
	if out, err := exec.Command("iptables-nft", "-A", "FORWARD", "-i", "other0", "-j", "ACCEPT").CombinedOutput(); err != nil {
		t.Fatalf("iptables: %v: %s", err, out)
	}
	n.start()
	t.Cleanup(func() { n.stop() })
	if got := n.diff(); got != "" {
		t.Fatal("after the start: diff =", got)
	}
	path, idle := os.Getenv("PATH"), t.TempDir()
	for _, name := range []string{"iptables-nft-restore", "ip6tables-nft-restore"} {
		if err := os.WriteFile(filepath.Join(idle, name), []byte("#!/bin/sh\nexec cat >/dev/null\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for what, edit := range map[string]string{
		"a frontend's chain": "-t nat -F VIPD-10.96.0.10:80/t", "the guard": "-t filter -R VIPD-FORWARD 1 -j DROP",
	} {
		drifts := strings.Count(n.eventsOf(events.Drift), "repaired")
		t.Setenv("PATH", idle+":"+path)
		shown := func() bool {
			got := n.diff()
			if what == "the guard" { // services may work without the guard, so a missing guard is a problem and not a difference
				got = n.problems()
			}
			return strings.Contains(got, "differ from vipd's")
		}
		wait.For(t, wait.Patience, "the failed repair of "+what, func() bool {
			// An earlier repair may still be in progress, and may undo the edit.
			if out, err := exec.Command("iptables-nft", strings.Fields(edit)...).CombinedOutput(); err != nil {
				t.Fatalf("iptables %s: %v: %s", edit, err, out)
			}
			return shown()
		})
		if !shown() {
			t.Errorf("%s: second difference = %q, problems = %q, want the failed repair again in either of them", what, n.diff(), n.problems())
		}
		if got := strings.Count(n.eventsOf(events.Drift), "repaired"); got != drifts {
			t.Errorf("%s: repair events = %s, want no event yet", what, n.eventsOf(events.Drift))
		}
		t.Setenv("PATH", path)
		wait.For(t, wait.Patience, what+" to be repaired", func() bool { return n.diff() == "" })
	}
	if got := n.eventsOf(events.Drift); !strings.Contains(got, "repaired") || strings.Contains(got, "now has filter rules") {
		t.Errorf("drift events = %q, want an event that names the repaired object", got)
	}
}

// diff returns the differences, one on each line.
func (n *node) diff() string {
	n.t.Helper()
	all, err := n.client.Diff(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	var lines []string
	for _, d := range all {
		lines = append(lines, d.Key.String()+" "+d.What+" "+d.Why)
	}
	return strings.Join(lines, "\n")
}

package daemon_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/modes"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestTellsWhatDrops checks that vipd finds by itself what "vipctl doctor" finds of firewalls, and when it is gone.
func TestTellsWhatDrops(t *testing.T) {
	lab.New(t)
	lab.Need(t, "iptables", "nft")
	nft := func(words string) {
		t.Helper()
		if out, err := exec.Command("nft", strings.Fields(words)...).CombinedOutput(); err != nil {
			t.Fatalf("nft %s: %v: %s", words, err, out)
		}
	}
	mode, _ := modes.Find(config.NFTablesMode) // which forwards
	n := &node{t: t, dir: t.TempDir(), firewall: 20 * time.Millisecond, modes: []modes.Mode{mode}}
	n.cleansUp()
	n.configure(`mode = "userspace"`, `mode = "nftables"`, `
[services.web]
vips = ["10.60.0.1"]
ports = [{ port = 8080 }]
endpoints = [{ address = "10.60.1.1", port = 9001 }]
`)
	n.start()
	t.Cleanup(func() { n.stop() })
	if got := n.problems(); got != "" {
		t.Fatalf("there are problems from the start: %s", got)
	}
	nft("add table inet strict")
	nft("add chain inet strict forward { type filter hook forward priority 0 ; policy drop ; }")
	const what = "the nft chain inet strict forward (hook forward) has the policy drop"
	wait.For(t, 30*time.Second, "the problem", func() bool {
		_, metrics := n.get("/metrics")
		return strings.Contains(n.problems(), what) && strings.Contains(n.story(events.Problem), what) &&
			strings.Contains(metrics, `vipd_problems{field="",service=""} 1`)
	})
	if code, text := n.get("/readyz"); code != 200 || !strings.Contains(text, what) {
		t.Errorf("/readyz says %d, %s", code, text)
	}
	nft("delete table inet strict")
	wait.For(t, 30*time.Second, "the end of the problem", func() bool {
		return n.problems() == "" && strings.Contains(n.story(events.Problem), "problem resolved")
	})
}

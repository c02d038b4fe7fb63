package daemon_test

import (
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/modes"
	"vipd/dataplane/explain"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestReportsDrops adds and removes firewall rules that drop connections. vipd must report the same
// findings as "vipctl doctor", and must also report when they disappear.
func TestReportsDrops(t *testing.T) {
	lab.New(t)
	lab.Need(t, "iptables", "nft")
	nft := func(words string) {
		t.Helper()
		if out, err := exec.Command("nft", strings.Fields(words)...).CombinedOutput(); err != nil {
			t.Fatalf("nft %s: %v: %s", words, err, out)
		}
	}
	mode, _ := modes.Find(config.NFTablesMode) // this mode forwards in the kernel
	n := &node{t: t, dir: t.TempDir(), watch: 20 * time.Millisecond, modes: []modes.Mode{mode}}
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
		t.Fatalf("after the start: problems = %s, want none", got)
	}
	nft("add table inet strict")
	nft("add chain inet strict forward { type filter hook forward priority 0 ; policy drop ; }")
	const what = "the nft chain inet strict forward (hook forward) has the policy drop"
	wait.For(t, 30*time.Second, "the problem", func() bool {
		_, metrics := n.get("/metrics")
		return strings.Contains(n.problems(), what) && strings.Contains(n.eventsOf(events.Problem), what) &&
			strings.Contains(metrics, `vipd_problems{field="",service=""} 1`)
	})
	if code, text := n.get("/readyz"); code != 200 || !strings.Contains(text, what) {
		t.Errorf("/readyz: answer = %d, %s, want 200 and the problem", code, text)
	}
	nft("delete table inet strict")
	wait.For(t, 30*time.Second, "the end of the problem", func() bool {
		return n.problems() == "" && strings.Contains(n.eventsOf(events.Problem), "problem resolved")
	})
}

// TestExplainOtherRules explains a connection that another program's rule drops, and whose packets
// bypass that rule with fast_path. The explanation must have a step for each of these effects.
func TestExplainOtherRules(t *testing.T) {
	lab.New(t)
	lab.Need(t, "nft")
	rules := exec.Command("nft", "-f", "-")
	rules.Stdin = strings.NewReader(`table inet strict {
	chain forward { type filter hook forward priority 0; ip daddr 10.60.1.1 tcp dport 9001 drop; }
}`)
	if out, err := rules.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	mode, _ := modes.Find(config.NFTablesMode)
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
	n.cleansUp()
	n.configure(`mode = "userspace"`, "mode = \"nftables\"\nfast_path = [\"auto\"]", `
[services.web]
vips = ["10.60.0.1"]
ports = [{ port = 8080 }]
endpoints = [{ address = "10.60.1.1", port = 9001 }]
`)
	n.start()
	t.Cleanup(func() { n.stop() })
	to := balancer.Key{Addr: netip.MustParseAddr("10.60.0.1"), Port: 8080, Proto: balancer.TCP}
	e, err := n.client.Explain(t.Context(), netip.MustParseAddrPort("10.74.0.11:0"), to, false)
	if err != nil {
		t.Fatal(err)
	}
	var got []explain.Step
	for _, s := range e.Steps {
		if s.What == "foreign" {
			got = append(got, s)
		}
	}
	const drop = "a rule of the nft chain inet strict forward (hook forward) drops or rejects packets to the endpoint 10.60.1.1:9001 of web"
	const bypass, chain = "other programs' rules see only the first packets of connections in fast_path: ", "the nft chain inet strict forward"
	if len(got) != 2 || got[0] != (explain.Step{What: "foreign", Wrong: true, Text: drop}) ||
		got[1].Wrong || !strings.HasPrefix(got[1].Text, bypass) || !strings.Contains(got[1].Text, chain) { // it may also name iptables chains of the host
		t.Errorf("steps about other programs = %+v, want %q and %q with %q", got, drop, bypass, chain)
	}
}

// TestReportsUsedPorts serves on a port at which a program of the host listens. vipd must report
// that it now receives that program's clients.
func TestReportsUsedPorts(t *testing.T) {
	lab.New(t)
	lab.Need(t, "ip", "nc")
	if out, err := exec.Command("ip", "address", "add", "10.1.0.1/24", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("ip address add = %v: %s", err, out)
	}
	program := exec.Command("nc", "-l", "-k", "0.0.0.0", "8022")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = program.Process.Kill(), program.Wait() })
	mode, _ := modes.Find(config.NFTablesMode)
	n := &node{t: t, dir: t.TempDir(), watch: 20 * time.Millisecond, modes: []modes.Mode{mode}}
	n.cleansUp()
	n.configure(`mode = "userspace"`, `mode = "nftables"`, `
[services.shell]
vips = ["10.1.0.1"]
ports = [{ port = 8022 }]
endpoints = [{ address = "10.60.1.1", port = 9001 }]
`)
	n.start()
	t.Cleanup(func() { n.stop() })
	wait.For(t, 30*time.Second, "the problem", func() bool {
		return strings.Contains(n.problems(), "nc listens on 0.0.0.0:8022/tcp, which service shell uses (10.1.0.1:8022/tcp)")
	})
}

// TestUnownedWithoutOwnership serves a VIP with hold = "one" on a host without [ownership]. The
// note about the VIP must name the missing setting.
func TestUnownedWithoutOwnership(t *testing.T) {
	lab.New(t)
	mode, _ := modes.Find(config.NFTablesMode)
	n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{mode}}
	n.cleansUp()
	n.configure(`mode = "userspace"`, `mode = "nftables"`, strings.ReplaceAll(web, "127.40.0.1", "10.96.0.10")+"[vips.\"10.96.0.10\"]\nhold = \"one\"\n")
	n.start()
	t.Cleanup(func() { n.stop() })
	const want = "no host owns it: this host owns no VIPs: set ownership.enabled = true"
	if all := n.status().Addresses; len(all) != 1 || !all[0].Owned || !strings.HasPrefix(all[0].Note, want) {
		t.Errorf("VIP = %+v, want %q", all, want)
	}
}

// TestReportsLostFiles removes a running daemon's run_dir. vipctl then can't reach the daemon, so
// /readyz, a metric and the log must report the missing files. The recommended command must fix the
// problem.
func TestReportsLostFiles(t *testing.T) {
	log := &journaled{}
	n := &node{t: t, dir: t.TempDir(), watch: 20 * time.Millisecond, log: slog.NewTextHandler(log, nil)}
	n.write(web)
	n.start()
	t.Cleanup(func() { n.stop() })
	if err := os.RemoveAll(filepath.Join(n.dir, "run")); err != nil {
		t.Fatal(err)
	}
	const what = "so vipctl can't reach it: restart vipd (systemctl restart vipd)"
	wait.For(t, 30*time.Second, "the problem", func() bool {
		_, problems := n.get("/readyz")
		_, metrics := n.get("/metrics")
		return strings.Contains(problems, what) && strings.Contains(metrics, `vipd_problems{field="run_dir",service=""} 1`) && len(log.lines(what)) == 1
	})
	n.stop()
	n.start()
	if got := n.problems(); got != "" {
		t.Errorf("after the restart: problems = %s, want none", got)
	}
}

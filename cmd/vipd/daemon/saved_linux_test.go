package daemon_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestSavedRulesetLoads saves the rules of a running vipd with "nft list ruleset". The saved rules
// must load at boot, when no rules or interfaces exist. Loading them while vipd is running must
// change nothing.
func TestSavedRulesetLoads(t *testing.T) {
	for name, mode := range map[string]struct {
		mode            config.ModeName
		old, with, part string
	}{
		"nftables": {config.NFTablesMode, `mode = "userspace"`, `mode = "nftables"`, "typeof iifname . oifname\n\t\telements"},
		"redirect": {config.UserspaceMode, `intercept = "bind"`, `intercept = "redirect"`, "redirect"},
	} {
		t.Run(name, func(t *testing.T) {
			l := lab.New(t)
			lab.Need(t, "nft")
			s := l.Add("s")
			l.Link(l.Host(), s, "10.2.1.1/24", "10.2.1.2/24")
			used, _ := modes.Find(mode.mode)
			n := &node{t: t, dir: t.TempDir(), modes: []modes.Mode{used}}
			n.configure(mode.old, mode.with, featureRichServices)
			n.start()
			t.Cleanup(func() { n.stop() })
			var saved, remove string
			wait.For(t, 30*time.Second, fmt.Sprintf("%q in the rules", mode.part), func() bool {
				saved, remove = savedTables(t)
				return strings.Contains(saved, mode.part)
			})
			boot := exec.Command("unshare", "--net", "nft", "-f", "-")
			boot.Stdin = strings.NewReader(saved)
			if out, err := boot.CombinedOutput(); err != nil {
				t.Errorf("nft -f in a namespace without interfaces: error = %v, want none\n%s\nfile =\n%s", err, out, saved)
			}
			nft(t, remove+saved, "-f", "-")
			wait.For(t, 30*time.Second, "no difference after the rules were loaded", func() bool { return n.diff() == "" })
		})
	}
}

// featureRichServices defines services that together use every kind of set, map and chain.
const featureRichServices = `
[services.web]
vips = ["10.96.0.10", "fd00:96::10"]
ports = [
  { name = "http", port = 80, target_port = 8080, node_port = 30080 },
  { name = "dns", port = 53, protocol = "udp" },
]
affinity = "client_ip"
mss = 1300
source_ranges = ["10.0.0.0/8", "fd00::/8"]
endpoints = [{ address = "10.2.1.2", weight = 3 }, { address = "10.2.1.3" }, { address = "fd00:1::2" }]
[services.turns]
vips = ["10.96.0.11"]
ports = [{ port = 80 }]
scheduler = "rr"
snat = "never"
endpoints = [{ address = "10.2.1.2" }, { address = "10.2.1.3" }]
[services.hashed]
vips = ["10.96.0.12"]
ports = [{ port = 80 }]
scheduler = "sh"
snat = "always"
endpoints = [{ address = "10.2.1.2" }]
[services.refused]
vips = ["10.96.0.13"]
ports = [{ port = 80 }]
endpoints = []
[services.silent]
vips = ["10.96.0.14"]
ports = [{ port = 80 }]
no_endpoints = "drop"
endpoints = []
`

// savedTables returns vipd's tables as text, and the commands that delete them. It excludes
// iptables' tables, which nft -f could not restore.
func savedTables(t *testing.T) (saved, remove string) {
	t.Helper()
	for table := range strings.Lines(nft(t, "", "list", "tables")) {
		if fields := strings.Fields(table); strings.HasPrefix(fields[2], "vipd") {
			saved += nft(t, "", append([]string{"list"}, fields...)...)
			remove += "delete " + table
		}
	}
	return saved, remove
}

// nft runs nft in the test's namespace with input, and returns its output.
func nft(t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command("nft", args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

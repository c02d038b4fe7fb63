package systemd

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"vipd/test/wait"
)

// unit is a unit that does something at boot.
func unit(ordering, do string) string {
	return fmt.Sprintf("[Unit]\n%s\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c %q\n", ordering, do)
}

// TestBoot: a unit that is enabled starts at boot, once the network is there and the firewall has loaded its rules. What
// goes wrong at a start is seen where an operator looks first, and is not tried for ever.
func TestBoot(t *testing.T) {
	g := newGateway(t, map[string]string{
		"etc/systemd/system/network-slow.service":                             unit("Before=network-online.target", "sleep 0.3"),
		"etc/systemd/system/nftables.service":                                 unit("", "sleep 0.3; nft flush ruleset"),
		"etc/systemd/system/network-online.target.wants/network-slow.service": "-> ../network-slow.service",
		"etc/systemd/system/multi-user.target.wants/nftables.service":         "-> ../nftables.service",
		"etc/systemd/system/multi-user.target.wants/vipd.service":             "-> /usr/local/lib/systemd/system/vipd.service",
	})
	if got := g.property("ActiveState"); got != "active" {
		t.Fatalf("after the boot the unit is %s\n%s", got, g.journal(""))
	}
	start := g.when("vipd", "ExecMainStartTimestampMonotonic")
	for _, before := range []string{"network-slow", "nftables"} {
		if ended := g.when(before, "ExecMainExitTimestampMonotonic"); ended == 0 || ended > start {
			t.Errorf("vipd was started at %d µs, and %s ended at %d", start, before, ended)
		}
	}
	t.Run("broken", g.broken)
	t.Run("strict", g.strict)
}

// when is a time that systemd knows of a unit, in microseconds.
func (g *gateway) when(unit, property string) int {
	g.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(g.run("systemctl show --value -p " + property + " " + unit)))
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

// broken: a configuration that can't be used is not tried again; the status says what is wrong, and a mended one starts.
func (g *gateway) broken(t *testing.T) {
	g.run("systemctl stop vipd")
	g.configure("mode = \"userspace\"\n[api]\nsocket = 7\n")
	if out, err := g.try("systemctl start vipd"); err == nil {
		t.Errorf("a start with a broken configuration: no error\n%s", out)
	}
	for name, want := range map[string]string{"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"} {
		if got := g.property(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	status, _ := g.try("systemctl status vipd")
	for where, out := range map[string]string{"status": status, "journalctl -p err": g.journal("-p err")} {
		if !strings.Contains(out, "/etc/vipd/vipd.toml:3: ") {
			t.Errorf("%s does not say what is wrong:\n%s", where, out)
		}
	}
	g.configure("mode = \"userspace\"\n")
	g.run("systemctl start vipd; systemctl stop vipd")
}

// strict: a mode that can't be had is tried some times, and then the unit has failed. The time between is shortened here.
func (g *gateway) strict(t *testing.T) {
	g.configure("mode = \"iptables\"\nstrict_mode = true\n")
	g.run(`mkdir -p /run/systemd/system/vipd.service.d
printf '[Service]\nRestartSec=10ms\nEnvironment=PATH=/nowhere\nInaccessiblePaths=/usr/sbin\n' >/run/systemd/system/vipd.service.d/test.conf
systemctl daemon-reload`)
	began := time.Now()
	if out, err := g.try("systemctl start vipd"); err == nil {
		t.Errorf("a start in a mode that can't be had: no error\n%s", out)
	}
	wait.For(t, time.Minute, "systemd to give up", func() bool { return g.property("ActiveState") == "failed" })
	t.Logf("%s restarts in %s", g.property("NRestarts"), time.Since(began))
	if got := g.property("NRestarts"); got != "40" {
		t.Errorf("restarts: %s, want 40", got)
	}
	status, _ := g.try("systemctl status vipd")
	if !strings.Contains(status, "strict_mode forbids another") {
		t.Errorf("status does not say why:\n%s", status)
	}
	g.run("rm -r /run/systemd/system/vipd.service.d; systemctl daemon-reload; systemctl reset-failed vipd; systemctl start vipd")
}

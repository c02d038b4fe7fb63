package systemd

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"vipd/test/lab"
	"vipd/test/wait"
)

// unit returns a unit that runs a command at boot.
func unit(ordering, do string) string {
	return fmt.Sprintf("[Unit]\n%s\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c %q\n", ordering, do)
}

// booted checks that the enabled unit was started at boot after the network was up and the firewall
// had loaded its rules.
func (g *gateway) booted() {
	t := g.t
	t.Helper()
	if got := g.property("ActiveState"); got != "active" {
		t.Fatalf("after the boot: unit = %s, want active\n%s", got, g.journal(""))
	}
	start := g.when("vipd", "ExecMainStartTimestampMonotonic")
	for _, before := range []string{"network-slow", "nftables"} {
		if ended := g.when(before, "ExecMainExitTimestampMonotonic"); ended == 0 || ended > start {
			t.Errorf("vipd started at %d µs, and %s exited at %d µs; want vipd to start later", start, before, ended)
		}
	}
}

// when returns a unit's timestamp from systemd, in microseconds.
func (g *gateway) when(unit, property string) int {
	g.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(g.run("systemctl show --value -p " + property + " " + unit)))
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

// broken starts the unit with an unusable configuration. systemd must not retry the start. The
// status must name the mistake. With a fixed file, the unit must start.
func (g *gateway) broken() {
	t := g.t
	g.run("systemctl stop vipd")
	g.configure("mode = \"userspace\"\n[api]\nsocket = 7\n")
	if out, err := g.try("systemctl start vipd"); err == nil {
		t.Errorf("with a broken configuration: start = nil, want an error\n%s", out)
	}
	for name, want := range map[string]string{"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"} {
		if got := g.property(name); got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
	status, _ := g.try("systemctl status vipd")
	for where, out := range map[string]string{"status": status, "journalctl -p err": g.journal("-p err")} {
		if !strings.Contains(out, "/etc/vipd/vipd.toml:3: ") {
			t.Errorf("%s lacks the mistake:\n%s", where, out)
		}
	}
	g.configure("mode = \"userspace\"\n")
	g.run("systemctl start vipd; systemctl stop vipd")
}

// strict starts the unit in a mode that is not usable. systemd must retry the start a few times,
// and then the unit must fail. The installed unit has more retries and longer pauses.
func (g *gateway) strict() {
	t := g.t
	g.configure("mode = \"iptables\"\nstrict_mode = true\n")
	back := g.dropIn("[Unit]\nStartLimitIntervalSec=1h\nStartLimitBurst=7\n[Service]\nRestartSec=10ms\nInaccessiblePaths=/usr/sbin\n")
	if out, err := g.try("systemctl start vipd"); err == nil {
		t.Errorf("start in an unavailable mode = nil, want an error\n%s", out)
	}
	wait.For(t, time.Minute, "systemd to give up", func() bool { return g.property("ActiveState") == "failed" })
	if got := g.property("NRestarts"); got != "7" {
		t.Errorf("restarts = %s, want 7", got)
	}
	status, _ := g.try("systemctl status vipd")
	if !strings.Contains(status, "strict_mode forbids another") {
		t.Errorf("status lacks the reason:\n%s", status)
	}
	back()
	g.run("systemctl start vipd")
}

// dropIn changes the stopped unit until back is called.
func (g *gateway) dropIn(text string) (back func()) {
	g.t.Helper()
	folder := "/run/systemd/system/vipd.service.d"
	writeFile(g.t, g.path(folder+"/test.conf"), text)
	g.run("systemctl daemon-reload; systemctl reset-failed vipd")
	return func() { g.run("rm -r " + folder + "; systemctl daemon-reload; systemctl reset-failed vipd") }
}

// watchdog checks that vipd feeds systemd's watchdog, and that systemd kills and restarts a vipd
// that hangs. The test shortens the watchdog's timeout.
func (g *gateway) watchdog() {
	t := g.t
	g.run("systemctl stop vipd")
	defer g.dropIn(fmt.Sprintf("[Service]\nWatchdogSec=%d\nTimeoutAbortSec=1s\n", wait.Scaled(3*time.Second)/time.Second))()
	g.configure("mode = \"userspace\"\n")
	g.run("systemctl start vipd")
	wait.For(t, 20*time.Second, "one process of vipd to feed the watchdog twice", func() bool { // on a busy machine, a process may feed the watchdog too late and be killed
		pid := g.property("MainPID")
		for range 2 {
			last := g.property("WatchdogTimestampMonotonic")
			wait.For(t, 20*time.Second, "vipd to feed the watchdog", func() bool { return g.property("WatchdogTimestampMonotonic") != last })
		}
		return pid != "0" && g.property("MainPID") == pid
	})
	before := g.property("NRestarts")
	g.run("kill -STOP " + g.property("MainPID"))
	wait.For(t, 30*time.Second, "systemd to start vipd again", func() bool {
		return g.property("NRestarts") != before && g.property("ActiveState") == "active"
	})
}

// etcd checks that the etcd client works in the unit, and that vipd's state survives a restart
// without etcd.
func (g *gateway) etcd() {
	t := g.t
	lab.Need(t, "etcd")
	g.configure("mode = \"userspace\"\n[store]\nkind = \"etcd\"\n[etcd]\nendpoints = [\"http://127.0.0.1:2379\"]\n")
	g.run("systemctl stop vipd; systemd-run --quiet --unit=members --service-type=notify -p StateDirectory=etcd -- etcd --data-dir /var/lib/etcd/data")
	writeFile(t, g.path("/root/services.toml"), "[services.far]\nvips = [\"10.96.0.20\"]\nports = [{ port = 80, target_port = 8080 }]\n"+
		"endpoints = [{ address = \"10.2.0.2\" }]\n")
	g.run("vipctl apply -f /root/services.toml; systemctl start vipd")
	g.serves("10.96.0.20")
	g.owns()
	g.run("systemctl stop members; systemctl restart vipd")
	g.serves("10.96.0.20")
	wait.For(t, 20*time.Second, "the status to say that etcd is away", func() bool { return strings.Contains(g.property("StatusText"), "etcd") })
}

// owns makes the machine own a VIP on its link to the client, with the installed
// vipd-owner.service. The machine is the only host of its fleet, so etcd confirms its ownership.
func (g *gateway) owns() {
	t := g.t
	lab.Need(t, "nft")
	const vip = "10.1.0.100"
	g.configure("mode = \"userspace\"\n[store]\nkind = \"etcd\"\n[ownership]\nenabled = true\n[vips.\"" + vip + "\"]\nhold = \"one\"\n")
	writeFile(t, g.path("/root/owned.toml"), "[services.owned]\nvips = [\""+vip+"\"]\nports = [{ port = 80, target_port = 8080 }]\n"+
		"endpoints = [{ address = \"10.2.0.2\" }]\n")
	g.run("vipctl apply -f /root/owned.toml; systemctl restart vipd; systemctl start vipd-owner")
	g.serves(vip)
	// The 41st field is the scheduling policy: 2 is SCHED_RR (proc(5)).
	if policy := g.run("cut -d ' ' -f 41 /proc/$(systemctl show vipd-owner --value -p MainPID)/stat"); strings.TrimSpace(policy) != "2" {
		t.Errorf("scheduling policy of the owner = %s, want 2 (SCHED_RR)\n%s", policy, g.run("journalctl --no-pager -u vipd-owner"))
	}
	g.run("systemctl stop vipd-owner")
	if c, err := g.dialWithin(vip, wait.Scaled(300*time.Millisecond)); err == nil {
		_ = c.Close()
		t.Error("VIP still answers after the owner has exited")
	}
	for line := range strings.Lines(g.run("journalctl --no-pager -p warning -u vipd-owner")) {
		if strings.Contains(line, "vipd[") && !strings.Contains(line, "etcd is unreachable: no VIP") { // a busy machine may lose etcd for seconds
			t.Errorf("warning in the journal = %s, want none", line)
		}
	}
}

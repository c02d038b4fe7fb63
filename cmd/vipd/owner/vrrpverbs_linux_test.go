package owner

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vipd/test/wait"
)

// refuses runs vipctl. It must fail with the exit code code and print the text words.
func (g *gateway) refuses(code int, words string, args ...string) {
	g.t.Helper()
	out, err := g.ns.Command(g.t.Context(), filepath.Join(g.bin, "vipctl"), append(args, "--config", g.config())...).CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != code || !strings.Contains(string(out), words) {
		g.t.Errorf("vipctl %v: error = %v, want exit code %d\n%swant %q", args, err, code, out, words)
	}
}

// wantOutput runs vipctl. Its output must contain the text words.
func (g *gateway) wantOutput(words string, args ...string) {
	g.t.Helper()
	if out := g.vipctl(args...); !strings.Contains(out, words) {
		g.t.Errorf("vipctl %v:\n%swant %q", args, out, words)
	}
}

// restart stops vipd and vipd owner on a host, and starts both again.
func (r *vrrpRouter) restart() {
	r.t.Helper()
	_ = r.daemon.Process.Signal(syscall.SIGTERM)
	r.signal(syscall.SIGTERM)
	<-r.gone.Done()
	<-r.ended.Done()
	r.start()
	r.serve()
}

// TestVRRPVerbs uses vipctl to move a pair's VIP without etcd. A host on standby must stay on
// standby across restarts, and a host that no other host can replace must keep the VIP.
func TestVRRPVerbs(t *testing.T) {
	const services = `
[services.probe]
vips = ["10.9.0.100"]
ports = [{ port = 9000, target_port = 9001, protocol = "udp" }]
endpoints = [{ address = "10.9.0.50" }]
`
	const interval = 200 * time.Millisecond
	p := newPair(t, vrrpPair{interval: interval, preempt: "never", first: 150, second: 100, services: services})
	p.a.serve()
	p.owns(t, p.a)
	p.b.serve()
	wait.For(t, wait.Patience, "gw2 to follow gw1", p.b.follows)

	p.a.refuses(2, "--to gw2 is not an address", "vip", "move", "10.9.0.100", "--to", "gw2")
	p.a.wantOutput("10.9.0.100: this host is already its owner", "vip", "move", "10.9.0.100", "--to", "10.9.0.11")
	if n := strings.Count(p.a.vipctl("events"), "resigned"); n > 0 {
		t.Errorf("without a move: owner resigned %d times, want 0", n)
	}

	whole := p.b.text
	p.b.configure(strings.Replace(whole, `endpoints = [{ address = "10.9.0.50" }]`, "endpoints = []", 1))
	wait.For(t, wait.Patience, "gw2 to lack endpoints", func() bool {
		return strings.Contains(p.b.vipctl("describe", "vip", "10.9.0.100"), "main has priority 1 here")
	})
	p.a.refuses(1, "10.9.0.12 took main, but can't serve it", "vip", "move", "10.9.0.100")
	p.owns(t, p.a)
	p.b.configure(whole)
	wait.For(t, wait.Patience, "gw2 to have an endpoint", func() bool {
		return !strings.Contains(p.b.vipctl("describe", "vip", "10.9.0.100"), "main has priority 1 here")
	})

	began := time.Now()
	p.a.wantOutput("10.9.0.100: owned by 10.9.0.12 after ", "vip", "move", "10.9.0.100", "--reason", "new kernel")
	p.owns(t, p.b)
	silent := p.probe.gap(p.a.mac, p.b.mac, began)
	t.Logf("silent for %s", silent.Round(time.Millisecond))
	if bound := p.b.down(interval) - 3*interval + plannedLate(); silent > wait.Bound(bound) {
		t.Errorf("VIP did not answer for %s, want at most %s", silent, bound)
	}
	p.a.refuses(2, "10.9.0.12 owns 10.9.0.100: run this command there", "vip", "move", "10.9.0.100")
	p.a.wantOutput("10.9.0.12", "get", "vips")
	p.a.wantOutput("priority 100; this host has 150", "get", "vips")
	p.b.wantOutput("gw2; others: unknown", "get", "vips")
	p.a.wantOutput("resigned", "events")
	p.a.wantOutput("this host gives 10.9.0.100 to another host: by root: \"new kernel\"", "events")
	text := p.a.vipctl("describe", "vip", "10.9.0.100")
	for _, want := range []string{"main is Backup here: router_id 51, version 3, priority 150", "10.9.0.12", "requested by an operator"} {
		if !strings.Contains(text, want) {
			t.Errorf("describe: output does not contain %q; output =\n%s", want, text)
		}
	}

	p.b.refuses(2, "this host is gw2, and with VRRP a host can only put itself on standby: run this command on gw1", "node", "standby", "gw1")
	p.b.wantOutput("node gw2: on standby until \"vipctl node resume\"; 10.9.0.11 owns main", "node", "standby", "--reason", "disk")
	p.owns(t, p.a)
	if n := p.probe.twice(began); n > 0 {
		t.Errorf("requests that both hosts answered = %d, want 0", n)
	}
	p.b.restart()
	wait.For(t, wait.Patience, "the status of gw2 to show the standby", func() bool {
		out, _ := p.b.ns.Command(t.Context(), filepath.Join(p.bin, "vipctl"), "status", "--config", p.b.config()).Output() // vipd may not answer yet
		return strings.Contains(string(out), "on standby by root: \"disk\"")
	})
	wait.For(t, wait.Patience, "gw2 to show a change before the restart", func() bool { // vipd owner may not have received a report yet
		return strings.Contains(p.b.vipctl("describe", "vip", "10.9.0.100"), "requested by an operator")
	})
	p.a.signal(syscall.SIGTERM)
	<-p.a.ended.Done()
	time.Sleep(2 * time.Second) // a host that is not on standby would take over within this time
	if p.probe.only(p.b.mac) {
		t.Error("after a restart: host on standby owns the VIP = true, want false")
	}
	p.b.wantOutput("node gw2: it may own VIPs again", "node", "resume")
	p.owns(t, p.b)

	p.b.refuses(1, "no other host took main, so this host took it back", "vip", "move", "@main")
	p.b.refuses(1, "gw2 is not on standby: no other host took main", "node", "standby", "gw2")
	p.owns(t, p.b)
	p.b.wantOutput("node gw2: on standby", "node", "standby", "gw2", "--force")
	wait.For(t, wait.Patience, "nobody to answer", func() bool { return !p.probe.only(p.b.mac) })
}

// TestVRRPDrain drains the node that owns the VIP. The node must pass the VIP to the other host
// even though it has no endpoints itself, and must stay on standby until it is undrained. A move to
// a host that is not in peers must be refused.
func TestVRRPDrain(t *testing.T) {
	const services = `
[services.probe]
vips = ["10.9.0.100"]
ports = [{ port = 9000, target_port = 9001, protocol = "udp" }]
endpoints = [{ address = "10.9.0.50" }]
`
	p := newPair(t, vrrpPair{interval: 200 * time.Millisecond, preempt: "0s", first: 150, second: 100, services: services, group: `peers = ["PEER"]`})
	p.a.serve()
	p.owns(t, p.a)
	p.b.serve()
	wait.For(t, wait.Patience, "gw2 to follow gw1", p.b.follows)
	p.a.refuses(2, "--to 10.9.0.13 is not among the peers of main", "vip", "move", "10.9.0.100", "--to", "10.9.0.13")
	p.owns(t, p.a)
	p.a.vipctl("drain", "--node", "gw1")
	p.owns(t, p.b)
	time.Sleep(time.Second) // a host that is not on standby would preempt within this time
	p.owns(t, p.b)
	p.a.vipctl("undrain", "--node", "gw1")
	p.owns(t, p.a)
}

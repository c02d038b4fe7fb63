package owner

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/program"
	"vipd/test/wait"
)

// alone returns the first host of a pair. The other host does not exist, and the first host's
// program has not been started.
func alone(t *testing.T, group string) *pair {
	t.Helper()
	l := lab.New(t)
	p := &pair{lab: l, lan: l.Bridge("lan"), bin: program.Bin(t)}
	p.client = l.Add("client")
	p.lan.Join(p.client, "10.9.0.50/16")
	p.a = p.router(t, l.Add("gw1"), 11, 150, vrrpPair{interval: 200 * time.Millisecond, preempt: "0s", group: group}, false)
	return p
}

// cannotOwn waits until the host reports a problem, and checks that the host does not own the VIP.
func (r *vrrpRouter) cannotOwn(problem string) {
	r.t.Helper()
	wait.For(r.t, wait.Patience, "the problem "+problem, func() bool { return r.problem(problem) })
	if got := r.bound(); len(got) > 0 {
		r.t.Errorf("bound = %v, want none", got)
	}
}

// TestVRRPCannotAdvertise starts hosts that can't send adverts. Each must report a problem that
// names the group, the reason and the remedy, and must not own the VIP. Once the cause is fixed,
// the host must own the VIP.
func TestVRRPCannotAdvertise(t *testing.T) {
	for _, c := range []struct {
		name, group, problem string
		// The function before runs before the host is started. The function after fixes the cause.
		before, after func(p *pair)
	}{
		{
			name: "source", group: `source = "10.9.0.77"`,
			problem: "main is not on this host: source 10.9.0.77 is not an address of interface lan: set source to 10.9.0.11, or add the address",
			before:  func(*pair) {}, after: func(p *pair) { p.a.ns.AddAddr("lan", "10.9.0.77/16") },
		},
		{
			name:    "capability",
			problem: "opening a socket for VRRP on lan: operation not permitted: give vipd owner CAP_NET_RAW, as vipd-owner.service does",
			before: func(p *pair) {
				lab.Need(p.a.t, "setpriv")
				text := fmt.Sprintf("#!/bin/sh\nexec setpriv --bounding-set -net_raw --inh-caps -net_raw -- %q \"$@\"\n", filepath.Join(p.bin, "vipd"))
				if err := os.WriteFile(filepath.Join(p.a.dir, "vipd"), []byte(text), 0o700); err != nil {
					p.a.t.Fatal(err)
				}
				p.a.bin = p.a.dir
			},
			after: func(p *pair) { _ = p.a.cmd.Process.Kill(); p.a.bin = p.bin; p.a.begin() },
		},
		{
			name:    "firewall",
			problem: "main can't be owned here: adverts can't be sent: sending an advert from 10.9.0.11 to 224.0.0.18 on lan: operation not permitted: allow IP protocol 112 in the firewall",
			before: func(p *pair) {
				p.a.ns.Exec("nft", "add table inet fw; add chain inet fw out { type filter hook output priority 0; }; add rule inet fw out meta l4proto 112 drop")
			},
			after: func(p *pair) { p.a.ns.Exec("nft", "delete table inet fw") },
		},
		{
			name: "link", problem: "main is not on this host: interface lan is down",
			before: func(*pair) {},
			after:  func(p *pair) { p.a.ns.Exec("ip", "link", "set", "lan", "up") },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := alone(t, c.group)
			c.before(p)
			p.a.begin()
			if c.name == "link" { // the VIP gets an interface only once the link has been up
				wait.For(t, wait.Patience, "the VIP", func() bool { return len(p.a.bound()) == 1 })
				p.a.ns.Exec("ip", "link", "set", "lan", "down")
			}
			p.a.cannotOwn(c.problem)
			c.after(p)
			wait.For(t, wait.Patience, "the VIP afterwards", func() bool { return len(p.a.bound()) == 1 && !p.a.problem("main") })
		})
	}
}

// TestVRRPCarrier uses separate networks for adverts and the VIP. First in one network and then in
// the other, the owner's interface loses its carrier. The other host must take over, and the
// previous owner must report the reason.
func TestVRRPCarrier(t *testing.T) {
	const interval = 200 * time.Millisecond
	p := newPair(t, vrrpPair{interval: interval, preempt: "never", first: 150, second: 100, sync: true})
	p.owns(t, p.a)
	wait.For(t, wait.Patience, "gw2 to follow the owner", p.b.follows)
	began := time.Now()
	p.lan.Carrier(p.a.ns, false)
	wait.For(t, wait.Patience, "gw2 to own the VIP", func() bool { return p.probe.only(p.b.mac) })
	took := p.probe.first(p.b.mac, began)
	t.Logf("the VIP's carrier was lost: taken over after %s", took.Round(time.Millisecond))
	if bound := p.b.down(interval) + 100*time.Millisecond; took > wait.Bound(bound) {
		t.Errorf("takeover took %s, want at most %s", took, bound)
	}
	wait.For(t, wait.Patience, "the problem", func() bool { return p.a.problem("interface lan has no carrier") })
	p.lan.Carrier(p.a.ns, true)
	wait.For(t, wait.Patience, "gw1 to follow the owner", p.a.follows)
	wait.For(t, wait.Patience, "no problem", func() bool { return !p.a.problem("carrier") })

	p.sync.Carrier(p.b.ns, false)
	p.owns(t, p.a)
	wait.For(t, wait.Patience, "the problem", func() bool { return p.b.problem("main is not on this host: interface sync has no carrier") })
	if n := p.probe.twice(began); n > 0 {
		t.Errorf("requests that both hosts answered = %d, want 0", n)
	}
}

// TestVRRPWithdrawnGateway removes the default route from the backup, and kills the owner. Without
// the route, the backup can't know whether it is connected, so it must not take over until the
// route is restored.
func TestVRRPWithdrawnGateway(t *testing.T) {
	p := newPair(t, vrrpPair{interval: 200 * time.Millisecond, preempt: "never", first: 150, second: 100, gateway: netip.MustParseAddr("10.9.0.50")})
	p.owns(t, p.a)
	wait.For(t, wait.Patience, "gw2 to follow the owner", p.b.follows)
	p.b.ns.Exec("ip", "route", "del", "default")
	wait.For(t, wait.Patience, "the problem", func() bool {
		return p.b.problem("main has no host for ownership.reach: the route via 10.9.0.50 is withdrawn")
	})
	time.Sleep(time.Second) // after one second, the gateway's last answer is too old
	p.a.signal(syscall.SIGKILL)
	wait.For(t, wait.Patience, "no takeover", func() bool { return p.b.problem("main has no owner here") })
	if got := p.b.bound(); len(got) > 0 {
		t.Errorf("without a witness: bound = %v, want none", got)
	}
	p.b.ns.Exec("ip", "route", "add", "default", "via", "10.9.0.50")
	p.owns(t, p.b)
}

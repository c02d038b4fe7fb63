package vrrp_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/failover/vrrp"
)

// TestTakeoverAfterSilence starts a node without another router, and then with a router that
// becomes silent. The node must take over after 3 intervals and its skew.
func TestTakeoverAfterSilence(t *testing.T) {
	b := newBench(t, mainGroup())
	down := b.groups[0].DownTime(100, interval)
	b.run(down - 5*ms)
	b.want(vrrp.Backup)
	b.run(10 * ms)
	b.want(vrrp.Claiming)
	b.run(25 * ms)
	b.want(vrrp.Active)
	if got := b.priorities(); !slices.Equal(got, []uint8{100}) {
		t.Errorf("adverts = %v, want one", got)
	}
	b.run(300 * ms)
	if got := b.priorities(); len(got) != 3 {
		t.Errorf("adverts in 3 intervals = %v, want 3", got)
	}

	b = newBench(t, mainGroup())
	b.receiveFor(time.Second, high, 150)
	b.run(down - interval - 5*ms)
	b.want(vrrp.Backup)
	b.run(40 * ms)
	b.want(vrrp.Active)
	if !b.noted("took main (10.9.0.100): 10.9.0.9 was silent for 0.3") {
		t.Errorf("notes = %q, want a note of the silence", b.notes)
	}
}

// TestOwnerHears delivers each kind of advert to an Active node. The node must stay Active only if
// VRRP makes it the owner.
func TestOwnerHears(t *testing.T) {
	for _, c := range []struct {
		name, from string
		priority   uint8
		want       vrrp.State
		replies    int
	}{
		{name: "a resigning router", from: high, priority: 0, want: vrrp.Active, replies: 1},
		{name: "a lower router", from: high, priority: 99, want: vrrp.Active, replies: 1},
		{name: "an equal router of a lower address", from: low, priority: 100, want: vrrp.Active, replies: 1},
		{name: "an equal router of a higher address", from: high, priority: 100, want: vrrp.Backup},
		{name: "a higher router", from: low, priority: 101, want: vrrp.Backup},
		{name: "an address owner", from: low, priority: 255, want: vrrp.Backup},
		{name: "this host itself", from: self, priority: 255, want: vrrp.Active},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, mainGroup())
			b.active()
			b.receive(c.from, c.priority)
			b.want(c.want)
			if got := b.priorities(); len(got) != c.replies {
				t.Errorf("adverts = %v, want %d", got, c.replies)
			}
			for range 100 {
				b.receive(c.from, c.priority)
			}
			if got := b.priorities(); len(got) > 0 {
				t.Errorf("replies to 100 more adverts at once = %d, want none", len(got))
			}
		})
	}
}

// TestBackupHears delivers an advert to a Backup in each interval. The Backup must take over only
// if it may preempt the sender.
func TestBackupHears(t *testing.T) {
	for _, c := range []struct {
		name     string
		preempt  time.Duration
		priority uint8
		within   time.Duration // 0 if it must stay a Backup
	}{
		{name: "a higher router", priority: 150},
		{name: "an equal router", priority: 100},
		{name: "a lower router", priority: 50, within: 400 * ms},
		{name: "a lower router, without preemption", preempt: vrrp.Never, priority: 50},
		{name: "a lower router, with a delay", preempt: time.Second, priority: 50, within: 1350 * ms},
		{name: "an unwell router, without preemption", preempt: vrrp.Never, priority: 1, within: 100 * ms},
		{name: "a resigning router", preempt: vrrp.Never, priority: 0, within: 100 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := mainGroup()
			g.Preempt = c.preempt
			b := newBench(t, g)
			took := time.Duration(0)
			for d := time.Duration(0); d < 2*time.Second && b.state() == vrrp.Backup; d += 5 * ms {
				if d%interval == 0 {
					b.receive(low, c.priority)
				}
				b.run(5 * ms)
				took = d
			}
			switch {
			case c.within == 0:
				b.want(vrrp.Backup)
			case b.state() != vrrp.Claiming || took > c.within || took < c.within-100*ms:
				t.Errorf("state = %s after %s, want Claiming after about %s", b.state(), took, c.within)
			}
		})
	}
}

// TestBackupUsesTheOwnersInterval delivers adverts of an owner whose interval is 300 ms. The node
// must take over only after 3 of these intervals.
func TestBackupUsesTheOwnersInterval(t *testing.T) {
	b := newBench(t, mainGroup())
	b.receive(high, 150, func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Interval = 300 * ms })
	b.run(1000 * ms)
	b.want(vrrp.Backup)
	b.run(150 * ms)
	b.want(vrrp.Active)
}

// TestDroppedPackets delivers adverts that this group can't use, from a router with a higher
// priority. The node must take over, count the reason of each drop, and report it once.
func TestDroppedPackets(t *testing.T) {
	for _, c := range []struct {
		reason vrrp.Reason
		group  func(g *vrrp.Group)
		change func(a *vrrp.Advert, d *vrrp.Datagram)
	}{
		{reason: vrrp.LowTTL, change: func(_ *vrrp.Advert, d *vrrp.Datagram) { d.TTL = 254 }},
		{reason: vrrp.Short, change: func(_ *vrrp.Advert, d *vrrp.Datagram) { d.Data = []byte{0x31, 51, 200} }},
		{reason: vrrp.WrongChecksum, change: func(_ *vrrp.Advert, d *vrrp.Datagram) { d.Data = []byte{0x31, 51, 200, 1, 0, 10, 1, 1, 10, 9, 0, 100} }},
		{reason: vrrp.WrongVersion, change: func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Version, a.Interval = 2, time.Second }},
		{reason: vrrp.WrongPeer, group: func(g *vrrp.Group) { g.Link.Peers = addrs(low) }},
		{reason: vrrp.WrongList, change: func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Addrs = addrs("10.9.0.200") }},
		{reason: vrrp.WrongInterval, group: version2, change: func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Interval = 2 * time.Second }},
		{reason: vrrp.WrongPassword, group: version2, change: func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Password = "another" }},
		{reason: vrrp.WrongPassword, group: version2, change: func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Password, a.Auth = "", vrrp.NoAuth }},
	} {
		t.Run(string(c.reason), func(t *testing.T) {
			g := mainGroup()
			if c.group != nil {
				c.group(&g)
			}
			b := newBench(t, g)
			change := c.change
			if change == nil {
				change = func(*vrrp.Advert, *vrrp.Datagram) {}
			}
			for range 20 {
				b.receive(high, 200, change)
				b.run(g.Interval / 5)
				if b.state() == vrrp.Active {
					break
				}
			}
			b.want(vrrp.Active)
			s := b.group()
			if s.Counters.Dropped[c.reason] < 10 || s.Routers[0].Dropped != c.reason || s.Routers[0].Differs == "" || len(s.Problems) == 0 {
				t.Errorf("status = %+v, want the reason %q", s, c.reason)
			}
			n := 0
			for _, note := range b.notes {
				if len(note) > 7 && note[:7] == "dropped" {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%d notes in %q, want 1", n, b.notes)
			}
		})
	}
}

// TestStrangerWithTheSameRouterID receives adverts of a router with other VIPs, whose version or
// password also differs. The host must keep its VIPs, because the other router is not an owner of
// these VIPs.
func TestStrangerWithTheSameRouterID(t *testing.T) {
	for name, change := range map[string]func(a *vrrp.Advert){
		"password": func(a *vrrp.Advert) { a.Password = "1111" },
		"version":  func(a *vrrp.Advert) { a.Version = 3 },
	} {
		g := mainGroup()
		version2(&g)
		b := newBench(t, g)
		b.run(4 * time.Second)
		b.want(vrrp.Active)
		b.receiveFor(10*time.Second, high, 200, func(a *vrrp.Advert, _ *vrrp.Datagram) {
			a.Addrs = addrs("10.9.0.200")
			change(a)
		})
		if got := b.state(); got != vrrp.Active {
			t.Errorf("%s: state with the stranger = %v, want %v", name, got, vrrp.Active)
		}
	}
}

func version2(g *vrrp.Group) { g.Version, g.Interval, g.Password = 2, time.Second, "secret" }

// TestOtherListsAreAccepted delivers adverts of a router that lists an additional address. The
// router must count as the owner, and a problem must name the address.
func TestOtherListsAreAccepted(t *testing.T) {
	b := newBench(t, mainGroup())
	b.receiveFor(time.Second, high, 150, func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Addrs = addrs(vip, "10.9.0.101") })
	b.want(vrrp.Backup)
	if s := b.group(); s.Owner.String() != high || len(s.Problems) != 1 || s.Routers[0].Differs != "it also lists 10.9.0.101" {
		t.Errorf("status = %+v, want the owner and the difference", s)
	}
}

// TestChecksumFollowsThePeer delivers adverts with each kind of checksum. The node must send the
// same kind. Before the first advert, it must send keepalived's kind.
func TestChecksumFollowsThePeer(t *testing.T) {
	sum := func(c vrrp.Checksum) func(a *vrrp.Advert, d *vrrp.Datagram) {
		return func(a *vrrp.Advert, d *vrrp.Datagram) { d.Data = a.Append(nil, d.From, d.To, c) }
	}
	b := newBench(t, mainGroup())
	for _, c := range []vrrp.Checksum{vrrp.Pseudo, vrrp.Plain, vrrp.Pseudo} {
		if c == vrrp.Plain || b.state() == vrrp.Active {
			b.receive(low, 50, sum(c))
		}
		b.run(500 * ms)
		if got := b.sums[len(b.sums)-1]; got != c {
			t.Errorf("checksum = %q, want %q", got, c)
		}
	}
	g := mainGroup()
	g.Checksum = vrrp.Plain
	g.Link.Peers = addrs(low, high)
	b = newBench(t, g)
	b.run(500 * ms)
	if len(b.sums)%2 != 0 || b.sums[0] != vrrp.Plain {
		t.Errorf("checksums = %q, want plain checksums to each of two peers", b.sums)
	}
}

// TestYield adds an owner that ignores this host's adverts. If the node preempted this owner, it
// must yield within k+2 intervals, and stay a Backup until the router is silent. If the router
// appears after the takeover, the node must not yield.
func TestYield(t *testing.T) {
	same := func(*vrrp.Advert, *vrrp.Datagram) {}
	peers := func(g *vrrp.Group) { g.Link.Peers = addrs(high) }
	for _, c := range []struct {
		name   string
		late   bool
		group  func(g *vrrp.Group)
		change func(a *vrrp.Advert, d *vrrp.Datagram)
		// distant reports whether the adverts may come from another network, so they alone are not
		// sufficient.
		distant bool
	}{
		{name: "a lower router", change: same},
		{name: "a lower router that appears later", late: true, change: same},
		{name: "another checksum", change: wrongChecksum},
		{name: "another checksum that appears later", late: true, change: wrongChecksum},
		{name: "not in peers", group: peers, change: same},
		{name: "a low TTL", change: func(_ *vrrp.Advert, d *vrrp.Datagram) { d.TTL = 64 }, distant: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := mainGroup()
			if c.group != nil {
				c.group(&g)
			}
			b := newBench(t, g)
			if c.late {
				b.active()
			}
			for b.state() != vrrp.Active {
				b.receiveFor(interval, low, 50, c.change)
			}
			if c.distant {
				if b.receiveFor(interval, low, 50, c.change); b.probes == 0 {
					t.Error("the VIP was not probed")
				}
			}
			var since time.Duration
			for ; b.state() == vrrp.Active && since < time.Second; since += interval {
				b.receiveFor(interval, low, 50, c.change)
			}
			if stays := c.late || c.distant; stays {
				b.want(vrrp.Active)
				if len(b.group().Problems) != 1 || !b.noted("10.9.0.1 is Active in main at the same time") {
					t.Errorf("problems %q, want one", b.group().Problems)
				}
				return
			}
			if since > 5*interval {
				t.Errorf("both were Active for %s, want at most 5 intervals", since)
			}
			b.receiveFor(2*time.Second, low, 50, c.change)
			b.want(vrrp.Backup)
			if s := b.group(); len(s.Problems) != 1 {
				t.Errorf("problems = %q, want one", s.Problems)
			}
			b.run(500 * ms)
			b.want(vrrp.Active)
		})
	}
}

// wrongChecksum makes the checksum of an advert wrong.
func wrongChecksum(a *vrrp.Advert, d *vrrp.Datagram) {
	d.Data = a.Append(nil, d.From, d.To, vrrp.Pseudo)
	d.Data[7]++
}

// TestYieldToANewcomer adds a router to a long-time owner. The router ignores the owner's adverts,
// and answers for the VIP. The owner must yield within k+2 intervals. It must become the owner
// again after the router's configuration is repaired, or an operator resumes the host.
func TestYieldToANewcomer(t *testing.T) {
	same := func(*vrrp.Advert, *vrrp.Datagram) {}
	more := func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Addrs = addrs(vip, "10.9.0.101") }
	for _, c := range []struct {
		name   string
		change func(a *vrrp.Advert, d *vrrp.Datagram)
		// adverts is the number of the router's adverts, and answers reports whether the router
		// answers for the VIP.
		adverts int
		answers bool
		want    vrrp.State
	}{
		{name: "another list", change: more, adverts: 50, answers: true, want: vrrp.Backup},
		{name: "another checksum", change: wrongChecksum, adverts: 50, answers: true, want: vrrp.Backup},
		{name: "a single advert", change: more, adverts: 1, answers: true, want: vrrp.Backup},
		{name: "forged adverts", change: same, adverts: 50, want: vrrp.Active},
		{name: "adverts from another network", change: func(_ *vrrp.Advert, d *vrrp.Datagram) { d.TTL = 64 }, adverts: 50, answers: true, want: vrrp.Active},
		{name: "an answer without adverts", answers: true, want: vrrp.Active},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, mainGroup())
			b.active()
			if c.answers {
				b.found[netip.MustParseAddr(vip)] = "02:00:00:00:00:01"
			}
			for i := range 5 {
				if i < c.adverts {
					b.receive(low, 50, c.change)
				}
				b.run(interval)
			}
			b.want(c.want)
			if c.want == vrrp.Active {
				return
			}
			if c.adverts == 1 { // the router is silent from then on
				b.run(4 * interval)
				b.want(vrrp.Active)
				return
			}
			b.receiveFor(time.Second, low, 50, c.change)
			b.want(vrrp.Backup)
			b.repair()
		})
	}
	b := newBench(t, mainGroup())
	b.active()
	b.found[netip.MustParseAddr(vip)] = "02:00:00:00:00:01"
	b.receiveFor(5*interval, low, 50)
	b.want(vrrp.Backup)
	b.do(b.node.Standby(b.now, false))
	b.repair()
}

// repair makes a router with a lower priority accept the node's adverts. The node must preempt it.
func (b *bench) repair() {
	b.t.Helper()
	delete(b.found, netip.MustParseAddr(vip))
	for i := 0; b.state() == vrrp.Backup && i < 5; i++ {
		b.receiveFor(interval, low, 50)
	}
	b.run(25 * ms)
	b.want(vrrp.Active)
}

// TestSlowRival adds a router that sends adverts of another version with a longer interval. The
// node must preempt the router, yield to it, and stay a Backup between two of its adverts.
func TestSlowRival(t *testing.T) {
	b := newBench(t, mainGroup())
	slow := func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Version, a.Interval = 2, time.Second }
	var owned int
	for i := range 200 {
		if i%10 == 0 {
			b.receive(low, 50, slow)
		}
		b.run(interval)
		if b.state() == vrrp.Active {
			owned++
		}
	}
	b.want(vrrp.Backup)
	if owned == 0 || owned > 50 {
		t.Errorf("both were Active for %d intervals, want at most 5 of the slow router", owned)
	}
}

// TestManyStrangers delivers accepted and dropped adverts of many routers. The numbers of notes, of
// remembered routers, and of routers in metrics must be limited.
func TestManyStrangers(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	b.notes = nil
	for i := range 200 {
		b.receive(fmt.Sprintf("10.9.1.%d", i+1), 50)
		b.receive(fmt.Sprintf("10.9.2.%d", i+1), 50, func(_ *vrrp.Advert, d *vrrp.Datagram) { d.TTL = 64 })
	}
	if n := len(b.notes); n == 0 || n > 10 {
		t.Errorf("%d notes, want 1 to 10", n)
	}
	routers := b.group().Routers
	named := slices.DeleteFunc(slices.Clone(routers), func(r vrrp.RouterStatus) bool { return !r.Named })
	if len(routers) != 32 || len(named) != 8 || named[0].Addr.String() != "10.9.1.1" {
		t.Errorf("%d routers, named: %v; want 32, and the first 8 named", len(routers), named)
	}
}

// TestUnyieldingOwner adds a router that ignores the node's adverts. The node must not yield. It
// must report the router at the router's first advert, and describe how the router differs.
func TestUnyieldingOwner(t *testing.T) {
	g := mainGroup()
	g.Unyielding = true
	b := newBench(t, g)
	b.active()
	more := func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Addrs = addrs(vip, "10.9.0.101") }
	b.receive(low, 50, more)
	if !b.noted("10.9.0.1 is Active in main at the same time as this host") {
		t.Errorf("notes = %q, want the rival", b.notes)
	}
	b.receiveFor(2*time.Second, low, 50, more)
	b.want(vrrp.Active)
	want := "main is Active, but 10.9.0.1 is also Active and ignores this host's adverts: it also lists 10.9.0.101"
	if got := b.group().Problems; !slices.Equal(got, []string{want}) {
		t.Errorf("problems = %q, want %q", got, want)
	}
}

// TestYieldToAnAnswer preempts a router that sends no adverts but still answers for the VIP. The
// node must yield, unless it took over after silence or is configured never to yield.
func TestYieldToAnAnswer(t *testing.T) {
	for _, c := range []struct {
		name           string
		lower, forever bool
		want           vrrp.State
	}{
		{name: "after preemption", lower: true, want: vrrp.Backup},
		{name: "after silence", want: vrrp.Active},
		{name: "unyielding", lower: true, forever: true, want: vrrp.Active},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := mainGroup()
			g.Unyielding = c.forever
			b := newBench(t, g)
			b.found[netip.MustParseAddr(vip)] = "02:00:00:00:00:01"
			for b.state() != vrrp.Active && b.now < local.Time(time.Hour+time.Second) {
				if c.lower {
					b.receive(low, 50)
				}
				b.run(50 * ms)
			}
			b.want(vrrp.Active)
			b.run(200 * ms)
			b.want(c.want)
		})
	}
}

// TestReadiness makes an owner unable to serve the VIP. It must resign. If no router takes over, it
// must become Active again, and stay Active until another router does.
func TestReadiness(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	b.do(b.node.Ready(b.now, "main", "no endpoint of web"))
	b.want(vrrp.Backup)
	b.run(600 * ms)
	b.want(vrrp.Active)
	if got := b.priorities(); got[0] != 0 || got[1] != 1 {
		t.Errorf("adverts = %v, want 0 and then 1", got)
	}
	b.do(b.node.Ready(b.now, "main", "no endpoint of web"))
	b.want(vrrp.Active)
	b.receive(low, 2)
	b.want(vrrp.Backup)
	b.do(b.node.Ready(b.now, "main", ""))
	b.receiveFor(400*ms, low, 2)
	b.run(25 * ms)
	b.want(vrrp.Active)
}

// TestOrderOfResigning makes an owner resign while the VIP is bound. The advert with priority 0
// must follow the removal of the VIP.
func TestOrderOfResigning(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	b.mute = true
	b.do(b.node.Resign(b.now, "main"))
	b.want(vrrp.Backup)
	if got := b.priorities(); len(got) > 0 {
		t.Fatalf("adverts before the VIP is removed = %v, want none", got)
	}
	b.do(b.node.Unbound(b.now, 1))
	if got := b.priorities(); !slices.Equal(got, []uint8{0}) {
		t.Errorf("adverts = %v, want 0", got)
	}
}

// TestFailedUnbind makes an owner resign while the VIP can't be unbound. The gate must close, which
// removes the VIP. The owner must then send its last advert, and must be able to own the group
// again later.
func TestFailedUnbind(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	b.mute = true
	b.do(b.node.Resign(b.now, "main"))
	b.do(b.node.Closed(b.now))
	b.mute = false
	if got := b.priorities(); !slices.Equal(got, []uint8{0}) {
		t.Errorf("adverts after the gate is closed = %v, want 0", got)
	}
	b.run(2 * time.Second)
	b.want(vrrp.Active)
}

// TestMove moves a group away from a host that preempts. The other router must keep the group until
// it is silent. Without another router, the host must become Active again.
func TestMove(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	b.do(b.node.Resign(b.now, "main"))
	b.receiveFor(2*time.Second, low, 50)
	b.want(vrrp.Backup)
	b.do(b.node.Standby(b.now, false))
	b.receiveFor(400*ms, low, 50)
	b.run(25 * ms)
	b.want(vrrp.Active)
	b.do(b.node.Resign(b.now, "main"))
	b.run(450 * ms)
	b.want(vrrp.Active)
}

// TestStandbyAndStop puts an owner on standby, and stops an owner. In both cases, the node must
// resign and own nothing afterwards.
func TestStandbyAndStop(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	b.do(b.node.Standby(b.now, true))
	b.run(time.Second)
	b.want(vrrp.Init)
	b.do(b.node.Standby(b.now, false))
	b.sent = nil
	b.active()
	b.do(b.node.Stop(b.now))
	b.want(vrrp.Init)
	if got := b.priorities(); !slices.Equal(got, []uint8{0}) || !b.node.Left() || b.open {
		t.Errorf("adverts = %v, left = %t, gate open = %t; want 0, and a closed gate", got, b.node.Left(), b.open)
	}
	b.run(time.Second)
	b.want(vrrp.Init)
}

// TestLapse stops an owner for a second. It must ignore packets from before the stop, and send
// nothing until it takes over again, whether or not its process reports the lapse first.
func TestLapse(t *testing.T) {
	for _, reported := range []bool{true, false} {
		b := newBench(t, mainGroup())
		b.active()
		queued := b.now.Add(500 * ms)
		b.now = b.now.Add(time.Second)
		if reported {
			b.do(b.node.Lapsed(b.now, local.NotRefreshed, time.Second))
		} else {
			b.receive(low, 50)
		}
		b.receive(low, 50, func(_ *vrrp.Advert, d *vrrp.Datagram) { d.At = queued })
		b.receive(low, 0, func(_ *vrrp.Advert, d *vrrp.Datagram) { d.At = queued })
		b.receive(low, 50)
		b.want(vrrp.Backup)
		b.run(300 * ms)
		if got := b.priorities(); len(got) > 0 || b.state() != vrrp.Backup {
			t.Errorf("reported %t: adverts %v and state %s, want a silent Backup", reported, got, b.state())
		}
		b.run(100 * ms)
		b.want(vrrp.Active)
	}
}

// TestSlowGate opens the gate so late that the first advert no longer permits an open gate. The
// node must close the gate without binding the VIP.
func TestSlowGate(t *testing.T) {
	b := newBench(t, mainGroup())
	b.mute = true
	b.run(400 * ms)
	b.want(vrrp.Claiming)
	for range 20 {
		b.now = b.now.Add(10 * ms)
		b.do(b.node.Reached(b.now, "other")) // an event without a tick, so the process does not seem to have paused
	}
	b.do(b.node.Opened(b.now, nil))
	if b.want(vrrp.Backup); b.open || b.node.Deadline() != 0 {
		t.Errorf("gate open = %t, deadline = %d; want a closed gate", b.open, b.node.Deadline())
	}

	b = newBench(t, mainGroup())
	b.mute = true
	b.run(400 * ms)
	b.do(b.node.Opened(b.now, errors.New("no nf_tables")))
	if b.want(vrrp.Backup); b.open || !b.noted("the gate can't be opened: no nf_tables") {
		t.Errorf("gate open = %t, notes = %q; want a closed gate and the reason", b.open, b.notes)
	}
}

// TestPausedBackup pauses the process of a Backup for longer than its down time. The Backup must
// not take over from an owner whose adverts are still queued.
func TestPausedBackup(t *testing.T) {
	b := newBench(t, mainGroup())
	b.receiveFor(time.Second, high, 150)
	b.now = b.now.Add(5 * time.Second)
	b.do(b.node.Tick(b.now))
	b.receiveFor(time.Second, high, 150)
	b.want(vrrp.Backup)
	if got := b.priorities(); len(got) > 0 {
		t.Errorf("adverts = %v, want none", got)
	}
}

// TestFailedAdverts makes the sending of adverts fail for one of two groups. The VIP of this group
// must be unbound, and the other group must stay Active.
func TestFailedAdverts(t *testing.T) {
	other := mainGroup()
	other.Name, other.RouterID, other.Link.On, other.Advertise, other.VIPs = "other", 52, 1, addrs("10.9.1.100"), addrs("10.9.1.100")
	b := newBench(t, mainGroup(), other)
	b.active()
	for range 30 { // only the adverts of main fail
		b.now = b.now.Add(10 * ms)
		for _, a := range b.node.Tick(b.now) {
			s, ok := a.(vrrp.Send)
			if b.sendErr = nil; ok && s.Group == "main" {
				b.sendErr = errors.New("network is down")
			}
			b.do([]local.Action{a})
		}
	}
	b.want(vrrp.Backup)
	if s := b.node.Status(b.now).Groups[1]; s.State != vrrp.Active || !b.open || !b.bound[netip.MustParseAddr("10.9.1.100")] {
		t.Errorf("state of the other group = %s, gate open = %t; want Active behind an open gate", s.State, b.open)
	}
	if d := b.node.Deadline(); d <= b.now.Add(gateTime) {
		t.Errorf("deadline in %s, want the deadline of the other group", d.Since(b.now))
	}
}

// TestWitness configures witnesses. When they become silent, an owner must resign once, and a
// Backup must not take over from a silent router. When a witness answers again, the Backup must
// first wait for another owner.
func TestWitness(t *testing.T) {
	g := mainGroup()
	g.Witness = vrrp.WitnessRequired
	b := newBench(t, g)
	b.run(2 * time.Second)
	b.want(vrrp.Backup)
	if !b.noted("no host of ownership.reach answers") || len(b.group().Problems) != 1 {
		t.Errorf("notes %q, problems %q; want a problem", b.notes, b.group().Problems)
	}
	down := g.DownTime(g.Priority, interval)
	b.do(b.node.Reached(b.now, "main"))
	b.run(down - 5*ms)
	b.want(vrrp.Backup)
	b.run(30 * ms)
	b.want(vrrp.Active)
	b.do(b.node.Reached(b.now, "main"))
	b.priorities()
	b.run(2010 * ms)
	b.want(vrrp.Backup)
	if got := b.priorities(); got[len(got)-1] != 0 {
		t.Errorf("adverts = %v, want 0 at last", got)
	}
	b.run(100 * ms)
	if got, want := b.group().Problems, "main has priority 1 here: no host of ownership.reach answers"; !slices.Contains(got, want) {
		t.Errorf("problems = %q, want %q", got, want)
	}
	b.run(1900 * ms)
	b.want(vrrp.Backup) // the node is cut off
	b.receive(low, 50)
	b.receive(low, 0)
	b.run(150 * ms)
	b.want(vrrp.Active) // the other router resigned
	b.run(3 * time.Second)
	b.want(vrrp.Active) // no witness has answered while the node was Active
}

// TestSilentWitness configures a witness for a Backup that receives adverts. After the witness has
// been silent for 2 s, the Backup must report that it would not take over. It must not report this
// without a witness.
func TestSilentWitness(t *testing.T) {
	for _, kind := range []vrrp.Witness{vrrp.WitnessRequired, vrrp.WitnessResigns, vrrp.NoWitness} {
		g := mainGroup()
		g.Witness = kind
		b := newBench(t, g)
		reports := func(when string, want bool) {
			t.Helper()
			if got := b.node.Unwitnessed(b.now); (len(got) > 0) != (want && kind == vrrp.WitnessRequired) {
				t.Errorf("witness %q, %s: unwitnessed %q", kind, when, got)
			}
		}
		b.receiveFor(1900*ms, high, 200)
		reports("after 1.9 s", false)
		b.receiveFor(300*ms, high, 200)
		reports("after 2.2 s", true)
		b.do(b.node.Reached(b.now, "main"))
		reports("after an answer", false)
		b.receiveFor(2200*ms, high, 200)
		reports("2.2 s after an answer", true)
		b.do(b.node.Reaching(b.now, "main"))
		reports("with another host", false)
	}
}

// TestLateWitness makes a witness answer shortly after the end of the down timer. The node must
// take over immediately.
func TestLateWitness(t *testing.T) {
	g := mainGroup()
	g.Witness = vrrp.WitnessRequired
	b := newBench(t, g)
	b.run(g.DownTime(g.Priority, interval) + 100*ms)
	b.want(vrrp.Backup)
	b.do(b.node.Reached(b.now, "main"))
	b.run(25 * ms)
	b.want(vrrp.Active)
}

// TestHealedPartition reconnects a host that was cut off from an owner with a lower priority. The
// host must not preempt the owner before it has been connected for its Preempt time. While no
// witness answers, it must never preempt the owner.
func TestHealedPartition(t *testing.T) {
	for _, c := range []struct {
		name    string
		preempt time.Duration
		answers bool
		want    vrrp.State
	}{
		{name: "never preempts", preempt: vrrp.Never, answers: true, want: vrrp.Backup},
		{name: "well for too short", preempt: time.Hour, answers: true, want: vrrp.Backup},
		{name: "well", preempt: 0, answers: true, want: vrrp.Active},
		{name: "without a witness", preempt: 0, want: vrrp.Backup},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := mainGroup()
			g.Preempt, g.Witness = c.preempt, vrrp.WitnessRequired
			b := newBench(t, g)
			b.do(b.node.Reached(b.now, "main"))
			b.active()
			b.do(b.node.Reached(b.now, "main"))
			b.run(2 * time.Hour) // cut off
			b.want(vrrp.Backup)
			for range 10 { // a witness answers before each advert
				if c.answers {
					b.do(b.node.Reached(b.now, "main"))
				}
				if b.state() == vrrp.Backup {
					b.receive(low, 50)
				}
				b.run(interval)
			}
			b.want(c.want)
		})
	}
}

// TestOwnerThatWasCutOff delivers adverts of another owner with a lower priority while no witness
// answers. The node must resign, unless a witness has just answered.
func TestOwnerThatWasCutOff(t *testing.T) {
	for _, answers := range []bool{false, true} {
		g := mainGroup()
		g.Witness = vrrp.WitnessRequired
		b := newBench(t, g)
		b.do(b.node.Reached(b.now, "main"))
		b.active()
		b.do(b.node.Reached(b.now, "main"))
		b.run(1500 * ms)
		want := vrrp.Backup
		if answers {
			b.do(b.node.Reached(b.now, "main"))
			want = vrrp.Active
		}
		b.receive(low, 50)
		b.want(want)
	}
}

// TestUnsentAdverts makes the sending of all adverts fail. The node must not own the group, and a
// problem must name the reason.
func TestUnsentAdverts(t *testing.T) {
	b := newBench(t, mainGroup())
	b.sendErr = errors.New("operation not permitted")
	b.run(3 * time.Second)
	b.want(vrrp.Backup)
	const want = "main can't be owned here: adverts can't be sent: operation not permitted"
	if got := b.group().Problems; !slices.Equal(got, []string{want}) {
		t.Errorf("problems %q, want %q", got, want)
	}
	if n := strings.Count(strings.Join(b.notes, "\n"), "operation not permitted"); n != 1 {
		t.Errorf("%d notes of the reason in %q, want 1", n, b.notes)
	}
	b.sendErr = nil
	b.active()
	if got := b.group().Problems; len(got) > 0 {
		t.Errorf("problems %q of an owner, want none", got)
	}
}

// TestSetGroups changes the priority and the VIPs of a group, and then its router ID. Only the
// change to the router ID may release the VIPs.
func TestSetGroups(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	g := mainGroup()
	g.Priority, g.VIPs, g.Advertise = 200, addrs(vip, "10.9.0.101"), addrs(vip, "10.9.0.101")
	b.do(b.node.SetGroups(b.now, []vrrp.Group{g}))
	b.want(vrrp.Active)
	b.run(interval)
	if got := b.priorities(); len(b.bound) != 2 || got[len(got)-1] != 200 {
		t.Errorf("adverts = %v and VIPs = %v, want priority 200 and two VIPs", got, b.bound)
	}
	g.RouterID = 52
	b.do(b.node.SetGroups(b.now, []vrrp.Group{g}))
	b.want(vrrp.Backup)
	if got := b.sent; len(got) != 1 || got[0].RouterID != 51 || got[0].Priority != 0 {
		t.Errorf("adverts = %+v, want router 51 to resign", got)
	}
	b.run(500 * ms)
	b.want(vrrp.Active)
	b.do(b.node.SetGroups(b.now, nil))
	if len(b.bound) > 0 || b.open {
		t.Errorf("VIPs = %v and gate open = %t after the removal of the group, want none", b.bound, b.open)
	}
}

// TestIPv6 delivers adverts from a router's link-local address with a zone. The node must leave the
// VIP to the router, and later send its own adverts with a checksum that covers the pseudo-header.
func TestIPv6(t *testing.T) {
	g := mainGroup()
	g.Link.Source, g.Advertise, g.VIPs = netip.MustParseAddr("fe80::5"), addrs("2001:db8::100"), addrs("2001:db8::100")
	b := newBench(t, g)
	hear := func(priority uint8) {
		b.receive("fe80::9", priority, func(a *vrrp.Advert, d *vrrp.Datagram) {
			d.To = vrrp.MulticastGroup(false)
			d.Data = a.Append(nil, d.From, d.To, vrrp.Pseudo)
			d.From = d.From.WithZone("eth0")
		})
	}
	for range 10 {
		hear(150)
		b.run(interval)
	}
	if b.state() != vrrp.Backup || b.group().Owner.String() != "fe80::9" {
		t.Errorf("status = %+v, want the other router as owner", b.group())
	}
	hear(0)
	b.run(100 * ms)
	if b.state() != vrrp.Active || len(b.sums) != 1 || b.sums[0] != vrrp.Pseudo {
		t.Errorf("state = %s, checksums = %q, want Active and one advert", b.state(), b.sums)
	}
}

// TestNext calls Next on a Backup and on an owner. The result must be the end of the down timer for
// the Backup, and the time of the next advert for the owner.
func TestNext(t *testing.T) {
	b := newBench(t, mainGroup())
	if got, want := b.node.Next(), b.now.Add(b.groups[0].DownTime(100, interval)); got != want {
		t.Errorf("Next of a Backup = %s from now, want %s", got.Since(b.now), want.Since(b.now))
	}
	b.active()
	if got := b.node.Next().Since(b.now); got <= 0 || got > interval {
		t.Errorf("Next of an owner = %s from now, want within an interval", got)
	}
}

// TestStatus reads the status of a Backup and of an owner. It must contain the owner, the other
// routers and the last changes.
func TestStatus(t *testing.T) {
	b := newBench(t, mainGroup())
	b.receive(high, 150)
	b.run(50 * ms)
	s := b.group()
	if s.Owner.String() != high || s.Routers[0].Age != 50*ms || s.Routers[0].Priority != 150 || s.Advertised != -1 {
		t.Errorf("status of a Backup = %+v, want the router", s)
	}
	b.active()
	for range 20 {
		b.receive(high, 150)
		b.active()
	}
	s = b.group()
	if s.Owner.String() != self || s.Advertised < 0 || len(s.Changes) != 10 || s.Changes[9].To != vrrp.Active || s.Changes[9].Why != "silence" {
		t.Errorf("status of an owner = %+v, want 10 changes", s)
	}
	if want := (vrrp.ChangeCount{To: vrrp.Active, Why: "silence", Count: 21}); !slices.Contains(s.Counters.Changes, want) {
		t.Errorf("changes = %+v, want %+v among them", s.Counters.Changes, want)
	}
}

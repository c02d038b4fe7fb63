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

// TestTakeoverAfterSilence starts a node without another router, and then a node with another
// router that becomes silent. Each node must take over after 3 intervals and its skew time.
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
		t.Errorf("adverts after the takeover = %v, want one", got)
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
		t.Errorf("notes = %q, want a note that the other router is silent", b.notes)
	}
}

// TestOwnerHears delivers adverts from different routers to an Active node. The node must stay
// Active if VRRP gives it precedence over the router. Otherwise it must become a Backup.
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
				t.Errorf("replies = %v, want %d", got, c.replies)
			}
			for range 100 {
				b.receive(c.from, c.priority)
			}
			if got := b.priorities(); len(got) > 0 {
				t.Errorf("replies to 100 more simultaneous adverts = %d, want 0", len(got))
			}
		})
	}
}

// TestBackupHears delivers an advert from the same router to a Backup in each interval. The Backup
// must take over only if it may preempt the router.
func TestBackupHears(t *testing.T) {
	for _, c := range []struct {
		name     string
		preempt  time.Duration
		priority uint8
		within   time.Duration // maximum time until the takeover; 0 if the node must stay a Backup
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

// TestBackupUsesTheOwnersInterval delivers an advert from an owner whose interval is 300 ms. The
// node must wait for 3 of the owner's intervals before it takes over.
func TestBackupUsesTheOwnersInterval(t *testing.T) {
	b := newBench(t, mainGroup())
	b.receive(high, 150, func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Interval = 300 * ms })
	b.run(1000 * ms)
	b.want(vrrp.Backup)
	b.run(150 * ms)
	b.want(vrrp.Active)
}

// TestDroppedPackets delivers adverts that the node must drop, from a router with a higher
// priority. The node must take over, count the dropped adverts by reason, and write one note about
// them.
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
				t.Errorf("status = %+v, want dropped adverts and a problem with the reason %q", s, c.reason)
			}
			n := 0
			for _, note := range b.notes {
				if len(note) > 7 && note[:7] == "dropped" {
					n++
				}
			}
			if n != 1 {
				t.Errorf("notes about dropped adverts = %d in %q, want 1", n, b.notes)
			}
		})
	}
}

// TestStrangerWithTheSameRouterID delivers adverts from a router that has the same router ID, but
// different VIPs and a different version or password. The node must keep its VIPs, because the
// router does not own them.
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
			t.Errorf("different VIPs and %s: state = %v, want %v", name, got, vrrp.Active)
		}
	}
}

func version2(g *vrrp.Group) { g.Version, g.Interval, g.Password = 2, time.Second, "secret" }

// TestOtherListsAreAccepted delivers adverts from a router that lists an additional address. The
// router must still count as the owner, and a problem must name the address.
func TestOtherListsAreAccepted(t *testing.T) {
	b := newBench(t, mainGroup())
	b.receiveFor(time.Second, high, 150, func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Addrs = addrs(vip, "10.9.0.101") })
	b.want(vrrp.Backup)
	if s := b.group(); s.Owner.String() != high || len(s.Problems) != 1 || s.Routers[0].Differs != "it also lists 10.9.0.101" {
		t.Errorf("status = %+v, want the router as the owner, and a problem with the additional address", s)
	}
}

// TestChecksumFollowsThePeer delivers adverts with each kind of checksum. The node must use the
// same kind in its own adverts. Before it has received an advert, it must use keepalived's kind.
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
			t.Errorf("checksum of the last advert = %q, want %q", got, c)
		}
	}
	g := mainGroup()
	g.Checksum = vrrp.Plain
	g.Link.Peers = addrs(low, high)
	b = newBench(t, g)
	b.run(500 * ms)
	if len(b.sums)%2 != 0 || b.sums[0] != vrrp.Plain {
		t.Errorf("checksums = %q, want only plain checksums, and equally many adverts to both peers", b.sums)
	}
}

// TestYield adds a router that is an owner and ignores the node's adverts. If the node has
// preempted this router, it must yield within 5 intervals, and stay a Backup until the router is
// silent. If the router appears only after the takeover, the node must not yield.
func TestYield(t *testing.T) {
	same := func(*vrrp.Advert, *vrrp.Datagram) {}
	peers := func(g *vrrp.Group) { g.Link.Peers = addrs(high) }
	for _, c := range []struct {
		name   string
		late   bool
		group  func(g *vrrp.Group)
		change func(a *vrrp.Advert, d *vrrp.Datagram)
		// distant reports whether the adverts may come from another network. Such adverts alone
		// must not make the node yield.
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
					t.Error("the node sent no Probe for the VIP")
				}
			}
			var since time.Duration
			for ; b.state() == vrrp.Active && since < time.Second; since += interval {
				b.receiveFor(interval, low, 50, c.change)
			}
			if stays := c.late || c.distant; stays {
				b.want(vrrp.Active)
				if len(b.group().Problems) != 1 || !b.noted("10.9.0.1 is Active in main at the same time") {
					t.Errorf("problems = %q, want one about the router that is also Active", b.group().Problems)
				}
				return
			}
			if since > 5*interval {
				t.Errorf("the node and the router were both Active for %s, want at most 5 intervals", since)
			}
			b.receiveFor(2*time.Second, low, 50, c.change)
			b.want(vrrp.Backup)
			if s := b.group(); len(s.Problems) != 1 {
				t.Errorf("Backup: problems = %q, want one", s.Problems)
			}
			b.run(500 * ms)
			b.want(vrrp.Active)
		})
	}
}

// wrongChecksum gives an advert a wrong checksum.
func wrongChecksum(a *vrrp.Advert, d *vrrp.Datagram) {
	d.Data = a.Append(nil, d.From, d.To, vrrp.Pseudo)
	d.Data[7]++
}

// TestYieldToANewcomer adds a router while the node has been Active for some time. If the router
// ignores the node's adverts and also answers for the VIP, the node must yield within 5 intervals.
// It must become Active again once the router's configuration is repaired, or once an operator has
// resumed the node and the router accepts its adverts.
func TestYieldToANewcomer(t *testing.T) {
	same := func(*vrrp.Advert, *vrrp.Datagram) {}
	more := func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Addrs = addrs(vip, "10.9.0.101") }
	for _, c := range []struct {
		name   string
		change func(a *vrrp.Advert, d *vrrp.Datagram)
		// adverts is the number of adverts that the router sends. answers is set if the router
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
			if c.adverts == 1 { // the router sends no more adverts
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

// repair simulates a router with a lower priority that now accepts the node's adverts. The node
// must preempt it.
func (b *bench) repair() {
	b.t.Helper()
	delete(b.found, netip.MustParseAddr(vip))
	for i := 0; b.state() == vrrp.Backup && i < 5; i++ {
		b.receiveFor(interval, low, 50)
	}
	b.run(25 * ms)
	b.want(vrrp.Active)
}

// TestSlowRival adds a router that sends adverts in another version, at a longer interval. The node
// must preempt the router and then yield to it. It must stay a Backup until the router's next
// advert.
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
		t.Errorf("the node was Active for %d of its intervals, want 1 to 50, which are 5 of the router's intervals", owned)
	}
}

// TestManyStrangers delivers adverts from 400 routers. Half of the adverts must be dropped. The
// node must limit the number of notes, the number of routers in its status, and the number of
// routers that metrics name.
func TestManyStrangers(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	b.notes = nil
	for i := range 200 {
		b.receive(fmt.Sprintf("10.9.1.%d", i+1), 50)
		b.receive(fmt.Sprintf("10.9.2.%d", i+1), 50, func(_ *vrrp.Advert, d *vrrp.Datagram) { d.TTL = 64 })
	}
	if n := len(b.notes); n == 0 || n > 10 {
		t.Errorf("notes = %d, want 1 to 10", n)
	}
	routers := b.group().Routers
	named := slices.DeleteFunc(slices.Clone(routers), func(r vrrp.RouterStatus) bool { return !r.Named })
	if len(routers) != 32 || len(named) != 8 || named[0].Addr.String() != "10.9.1.1" {
		t.Errorf("routers in the status = %d, routers named in metrics = %v; want 32, and the first 8 named", len(routers), named)
	}
}

// TestUnyieldingOwner configures the node never to yield, and adds a router that ignores the node's
// adverts. The node must stay Active. It must write a note at the router's first advert, and its
// problem must describe how the router's configuration differs.
func TestUnyieldingOwner(t *testing.T) {
	g := mainGroup()
	g.Unyielding = true
	b := newBench(t, g)
	b.active()
	more := func(a *vrrp.Advert, _ *vrrp.Datagram) { a.Addrs = addrs(vip, "10.9.0.101") }
	b.receive(low, 50, more)
	if !b.noted("10.9.0.1 is Active in main at the same time as this host") {
		t.Errorf("notes = %q, want a note about the router that is also Active", b.notes)
	}
	b.receiveFor(2*time.Second, low, 50, more)
	b.want(vrrp.Active)
	want := "main is Active, but 10.9.0.1 is also Active and ignores this host's adverts: it also lists 10.9.0.101"
	if got := b.group().Problems; !slices.Equal(got, []string{want}) {
		t.Errorf("problems = %q, want %q", got, want)
	}
}

// TestYieldToAnAnswer makes the node take over while another router still answers for the VIP, but
// sends no more adverts. The node must yield if it has preempted the router, unless it is
// configured never to yield. If the node took over after silence, it must stay Active.
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

// TestReadiness makes an Active node unable to serve the VIP. The node must resign. If no other
// router takes over, the node must become Active again, and stay Active until another router takes
// over.
func TestReadiness(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	b.do(b.node.Ready(b.now, "main", "no endpoint of web"))
	b.want(vrrp.Backup)
	b.run(600 * ms)
	b.want(vrrp.Active)
	if got := b.priorities(); got[0] != 0 || got[1] != 1 {
		t.Errorf("advert priorities = %v, want 0 and then 1", got)
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

// TestOrderOfResigning makes an Active node resign. It must remove the VIP before it sends the
// advert with priority 0.
func TestOrderOfResigning(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	b.mute = true
	b.do(b.node.Resign(b.now, "main"))
	b.want(vrrp.Backup)
	if got := b.priorities(); len(got) > 0 {
		t.Fatalf("before the VIP is removed: adverts = %v, want none", got)
	}
	b.do(b.node.Unbound(b.now, 1))
	if got := b.priorities(); !slices.Equal(got, []uint8{0}) {
		t.Errorf("after the VIP is removed: advert priorities = %v, want 0", got)
	}
}

// TestFailedUnbind makes an Active node resign although the VIP can't be unbound. The gate closes,
// which also removes the VIP. The node must then send the advert with priority 0, and must be able
// to own the group again later.
func TestFailedUnbind(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	b.mute = true
	b.do(b.node.Resign(b.now, "main"))
	b.do(b.node.Closed(b.now))
	b.mute = false
	if got := b.priorities(); !slices.Equal(got, []uint8{0}) {
		t.Errorf("after the gate has closed: advert priorities = %v, want 0", got)
	}
	b.run(2 * time.Second)
	b.want(vrrp.Active)
}

// TestMove moves a group away from a node that otherwise preempts other routers. Another router
// must keep the group until an operator resumes the node. Without another router, the node must
// become Active again.
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

// TestStandbyAndStop puts an Active node on standby, and later stops it. In both cases, the node
// must resign and own nothing afterwards.
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
		t.Errorf("advert priorities = %v, Left() = %t, gate open = %t; want 0, true, false", got, b.node.Left(), b.open)
	}
	b.run(time.Second)
	b.want(vrrp.Init)
}

// TestLapse pauses an Active node for a second, so its gate lapses. The node must ignore packets
// that arrived during the pause, and send nothing until it takes over again. It must do so whether
// or not the lapse is reported before the next packet.
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
			t.Errorf("lapse reported = %t: advert priorities = %v, state = %s; want a Backup that sends no adverts", reported, got, b.state())
		}
		b.run(100 * ms)
		b.want(vrrp.Active)
	}
}

// TestSlowGate opens the gate so late that the node's first advert no longer permits an open gate.
// The node must close the gate again without binding the VIP. It must also stay a Backup if the
// gate can't be opened.
func TestSlowGate(t *testing.T) {
	b := newBench(t, mainGroup())
	b.mute = true
	b.run(400 * ms)
	b.want(vrrp.Claiming)
	for range 20 {
		b.now = b.now.Add(10 * ms)
		b.do(b.node.Reached(b.now, "other")) // any event except a Tick shows that the process has not paused
	}
	b.do(b.node.Opened(b.now, nil))
	if b.want(vrrp.Backup); b.open || b.node.Deadline() != 0 {
		t.Errorf("gate open = %t, deadline = %d; want a closed gate and deadline 0", b.open, b.node.Deadline())
	}

	b = newBench(t, mainGroup())
	b.mute = true
	b.run(400 * ms)
	b.do(b.node.Opened(b.now, errors.New("no nf_tables")))
	if b.want(vrrp.Backup); b.open || !b.noted("the gate can't be opened: no nf_tables") {
		t.Errorf("gate open = %t, notes = %q; want a closed gate and a note with the reason", b.open, b.notes)
	}
}

// TestPausedBackup pauses the process of a Backup for longer than its down time. After the pause,
// the owner's adverts continue to arrive. The Backup must not take over.
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

// TestFailedAdverts makes it impossible to send adverts for one of two groups. That group's VIP
// must be unbound, and the other group must stay Active.
func TestFailedAdverts(t *testing.T) {
	other := mainGroup()
	other.Name, other.RouterID, other.Link.On, other.Advertise, other.VIPs = "other", 52, 1, addrs("10.9.1.100"), addrs("10.9.1.100")
	b := newBench(t, mainGroup(), other)
	b.active()
	for range 30 { // adverts can't be sent only for the group "main"
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
		t.Errorf("other group: state = %s, gate open = %t; want Active, an open gate, and its VIP bound", s.State, b.open)
	}
	if d := b.node.Deadline(); d <= b.now.Add(gateTime) {
		t.Errorf("the gate's deadline is in %s, want the other group's later deadline", d.Since(b.now))
	}
}

// TestWitness configures witnesses for a node. While no witness answers, a Backup must not take
// over from a silent router. When a witness answers, the Backup must first wait for an owner's
// adverts. When the witnesses become silent, an Active node must resign once.
func TestWitness(t *testing.T) {
	g := mainGroup()
	g.Witness = vrrp.WitnessRequired
	b := newBench(t, g)
	b.run(2 * time.Second)
	b.want(vrrp.Backup)
	if !b.noted("no host of ownership.reach answers") || len(b.group().Problems) != 1 {
		t.Errorf("notes = %q, problems = %q; want a note and a problem about silent witnesses", b.notes, b.group().Problems)
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
		t.Errorf("advert priorities = %v, want the last to be 0", got)
	}
	b.run(100 * ms)
	if got, want := b.group().Problems, "main has priority 1 here: no host of ownership.reach answers"; !slices.Contains(got, want) {
		t.Errorf("problems = %q, want %q", got, want)
	}
	b.run(1900 * ms)
	b.want(vrrp.Backup) // the node counts as cut off
	b.receive(low, 50)
	b.receive(low, 0)
	b.run(150 * ms)
	b.want(vrrp.Active) // the node takes over, because the other router has resigned
	b.run(3 * time.Second)
	b.want(vrrp.Active) // the node resigns only if a witness has answered while it was Active
}

// TestSilentWitness configures a witness for a Backup that receives adverts. If the witness is
// required and has been silent for 2 s, the Backup must report that it would not take over.
// Otherwise it must report nothing.
func TestSilentWitness(t *testing.T) {
	for _, kind := range []vrrp.Witness{vrrp.WitnessRequired, vrrp.WitnessResigns, vrrp.NoWitness} {
		g := mainGroup()
		g.Witness = kind
		b := newBench(t, g)
		reports := func(when string, want bool) {
			t.Helper()
			if got := b.node.Unwitnessed(b.now); (len(got) > 0) != (want && kind == vrrp.WitnessRequired) {
				t.Errorf("witness = %q, %s: unwitnessed groups = %q, want some only after 2 s and if the witness is required", kind, when, got)
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

// TestLateWitness makes a witness answer shortly after the down timer has expired. The node must
// then take over immediately.
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

// TestHealedPartition reconnects a node that was cut off while a router with a lower priority
// became the owner. The node must not preempt the owner before it has been connected for the
// group's Preempt time. It must never preempt the owner while no witness answers.
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
			for range 10 { // if a witness answers, it does so before each advert
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

// TestOwnerThatWasCutOff delivers an advert from another owner with a lower priority to an Active
// node whose witness has been silent for 1.5 s. The node must resign. If a witness has just
// answered, the node must stay Active.
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

// TestUnsentAdverts makes it impossible to send adverts. The node must not own the group, and a
// problem must name the reason.
func TestUnsentAdverts(t *testing.T) {
	b := newBench(t, mainGroup())
	b.sendErr = errors.New("operation not permitted")
	b.run(3 * time.Second)
	b.want(vrrp.Backup)
	const want = "main can't be owned here: adverts can't be sent: operation not permitted"
	if got := b.group().Problems; !slices.Equal(got, []string{want}) {
		t.Errorf("problems = %q, want %q", got, want)
	}
	if n := strings.Count(strings.Join(b.notes, "\n"), "operation not permitted"); n != 1 {
		t.Errorf("notes with the reason = %d in %q, want 1", n, b.notes)
	}
	b.sendErr = nil
	b.active()
	if got := b.group().Problems; len(got) > 0 {
		t.Errorf("after adverts can be sent again: problems = %q, want none", got)
	}
}

// TestSetGroups changes the priority and the VIPs of a group, and then the group's router ID. The
// node may release the VIPs only when the router ID changes.
func TestSetGroups(t *testing.T) {
	b := newBench(t, mainGroup())
	b.active()
	g := mainGroup()
	g.Priority, g.VIPs, g.Advertise = 200, addrs(vip, "10.9.0.101"), addrs(vip, "10.9.0.101")
	b.do(b.node.SetGroups(b.now, []vrrp.Group{g}))
	b.want(vrrp.Active)
	b.run(interval)
	if got := b.priorities(); len(b.bound) != 2 || got[len(got)-1] != 200 {
		t.Errorf("advert priorities = %v, bound VIPs = %v, want priority 200 last, and two VIPs", got, b.bound)
	}
	g.RouterID = 52
	b.do(b.node.SetGroups(b.now, []vrrp.Group{g}))
	b.want(vrrp.Backup)
	if got := b.sent; len(got) != 1 || got[0].RouterID != 51 || got[0].Priority != 0 {
		t.Errorf("adverts = %+v, want one with router ID 51 and priority 0", got)
	}
	b.run(500 * ms)
	b.want(vrrp.Active)
	b.do(b.node.SetGroups(b.now, nil))
	if len(b.bound) > 0 || b.open {
		t.Errorf("after the removal of the group: bound VIPs = %v, gate open = %t, want none and false", b.bound, b.open)
	}
}

// TestIPv6 delivers adverts from a router's link-local address, with a zone. The node must leave
// the VIP to the router. When the router resigns, the node must take over and send adverts with a
// checksum that covers the pseudo-header.
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
		t.Errorf("status = %+v, want a Backup, with the other router as the owner", b.group())
	}
	hear(0)
	b.run(100 * ms)
	if b.state() != vrrp.Active || len(b.sums) != 1 || b.sums[0] != vrrp.Pseudo {
		t.Errorf("state = %s, checksums = %q, want Active and one advert with a checksum that covers the pseudo-header", b.state(), b.sums)
	}
}

// TestNext calls Next on a Backup and on an owner. The result must be when the Backup's down timer
// expires, or when the owner's next advert is due.
func TestNext(t *testing.T) {
	b := newBench(t, mainGroup())
	if got, want := b.node.Next(), b.now.Add(b.groups[0].DownTime(100, interval)); got != want {
		t.Errorf("Next() of a Backup = %s from now, want %s", got.Since(b.now), want.Since(b.now))
	}
	b.active()
	if got := b.node.Next().Since(b.now); got <= 0 || got > interval {
		t.Errorf("Next() of an owner = %s from now, want more than 0 and at most an interval", got)
	}
}

// TestStatus reads the status of a Backup and of an owner. The status must contain the owner, the
// other routers and the last state changes.
func TestStatus(t *testing.T) {
	b := newBench(t, mainGroup())
	b.receive(high, 150)
	b.run(50 * ms)
	s := b.group()
	if s.Owner.String() != high || s.Routers[0].Age != 50*ms || s.Routers[0].Priority != 150 || s.Advertised != -1 {
		t.Errorf("status of a Backup = %+v, want the other router as the owner, with its age and priority", s)
	}
	b.active()
	for range 20 {
		b.receive(high, 150)
		b.active()
	}
	s = b.group()
	if s.Owner.String() != self || s.Advertised < 0 || len(s.Changes) != 10 || s.Changes[9].To != vrrp.Active || s.Changes[9].Why != "silence" {
		t.Errorf("status of an owner = %+v, want this host as the owner, and the last 10 changes", s)
	}
	if want := (vrrp.ChangeCount{To: vrrp.Active, Why: "silence", Count: 21}); !slices.Contains(s.Counters.Changes, want) {
		t.Errorf("change counters = %+v, want %+v among them", s.Counters.Changes, want)
	}
}

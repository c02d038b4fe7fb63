package vrrp_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/failover/vrrp"
)

// bench is a node in a simulated environment. The simulated kernel performs each action
// immediately. The test delivers other routers' adverts.
type bench struct {
	t      *testing.T
	node   *vrrp.Node
	groups []vrrp.Group
	now    local.Time
	open   bool
	bound  map[netip.Addr]bool
	// sent holds the adverts that the node has sent since the last call to priorities, and sums
	// holds their kinds of checksums. If sendErr is not nil, sending fails.
	sent    []vrrp.Advert
	sums    []vrrp.Checksum
	sendErr error
	notes   []string
	probes  int
	// found holds the answers to Probes: it maps each address that another host has to that host's
	// MAC.
	found map[netip.Addr]string
	// If mute is set, the node does not receive the results of OpenGate, CloseGate and Unbind.
	mute bool
}

const (
	vip  = "10.9.0.100"
	self = "10.9.0.5"
	high = "10.9.0.9" // another router's address, which is higher than self
	low  = "10.9.0.1"
)

// mainGroup returns the group that most tests use, with an interval of 100 ms and priority 100.
func mainGroup() vrrp.Group {
	return vrrp.Group{
		Name: "main", RouterID: 51, Priority: 100, Version: 3, Interval: interval, Preempt: 0,
		Link: vrrp.Link{Source: netip.MustParseAddr(self)}, Advertise: addrs(vip), VIPs: addrs(vip),
	}
}

func newBench(t *testing.T, groups ...vrrp.Group) *bench {
	t.Helper()
	b := &bench{t: t, groups: groups, node: vrrp.New(groups), now: local.Time(time.Hour)}
	b.bound, b.found = map[netip.Addr]bool{}, map[netip.Addr]string{}
	b.do(b.node.Tick(b.now))
	return b
}

// do performs the node's actions, and passes their results to the node.
func (b *bench) do(actions []local.Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case vrrp.Send:
			for _, p := range a.Packets {
				advert, sum, err := vrrp.Decode(p.Data, a.Source, p.To)
				if err != nil {
					b.t.Fatal(err)
				}
				b.sent, b.sums = append(b.sent, *advert), append(b.sums, sum)
			}
			b.do(b.node.Sent(b.now, a, b.now, b.sendErr))
		case local.Note:
			b.notes = append(b.notes, a.Text)
		case local.OpenGate:
			if b.open = true; !b.mute {
				b.do(b.node.Opened(b.now, nil))
			}
		case local.CloseGate:
			b.open = false
			clear(b.bound)
			if !b.mute {
				b.do(b.node.Closed(b.now))
			}
		case local.Bind:
			for _, v := range a.Addrs {
				b.bound[v] = true
			}
		case local.Unbind:
			for _, v := range a.Addrs {
				delete(b.bound, v)
			}
			if a.ID != 0 && !b.mute {
				b.do(b.node.Unbound(b.now, a.ID))
			}
		case local.Probe:
			b.probes++
			b.do(b.node.Probed(b.now, a.Addrs, b.found))
		}
	}
}

// run advances the time by d, and calls Tick every 5 ms.
func (b *bench) run(d time.Duration) {
	for end := b.now.Add(d); b.now < end; {
		b.now = b.now.Add(5 * ms)
		b.do(b.node.Tick(b.now))
	}
}

// receive delivers an advert from another router. The advert equals the group's own advert, except
// for the priority and the changes that the functions in change make.
func (b *bench) receive(from string, priority uint8, change ...func(a *vrrp.Advert, d *vrrp.Datagram)) {
	g := b.groups[0]
	a := &vrrp.Advert{Version: g.Version, RouterID: g.RouterID, Priority: priority, Interval: g.Interval, Addrs: g.Advertise}
	if g.Version == 2 && g.Password != "" {
		a.Auth, a.Password = vrrp.SimpleAuth, g.Password
	}
	d := vrrp.Datagram{From: netip.MustParseAddr(from), To: vrrp.MulticastGroup(true), TTL: vrrp.TTL, At: b.now}
	for _, f := range change {
		f(a, &d)
	}
	if d.Data == nil {
		d.Data = a.Append(nil, d.From, d.To, vrrp.Pseudo)
	}
	b.do(b.node.Received(b.now, d))
}

// receiveFor delivers such an advert in each interval, for the duration d.
func (b *bench) receiveFor(d time.Duration, from string, priority uint8, change ...func(a *vrrp.Advert, d *vrrp.Datagram)) {
	for ; d > 0; d -= interval {
		b.receive(from, priority, change...)
		b.run(interval)
	}
}

// state returns the state of the first group.
func (b *bench) state() vrrp.State { return b.group().State }

func (b *bench) group() vrrp.GroupStatus { return b.node.Status(b.now).Groups[0] }

// want fails the test unless the group is in the state s. In the state Active, the VIP must also be
// bound and the gate open. In any other state, the VIP must not be bound.
func (b *bench) want(s vrrp.State) {
	b.t.Helper()
	if got := b.state(); got != s {
		b.t.Fatalf("state = %s, want %s; notes: %s", got, s, strings.Join(b.notes, "\n"))
	}
	if is := b.bound[netip.MustParseAddr(vip)]; is != (s == vrrp.Active) || s == vrrp.Active && !b.open {
		b.t.Fatalf("state %s: VIP bound = %t, gate open = %t, want both true only if Active = %t", s, is, b.open, s == vrrp.Active)
	}
}

// priorities returns the priorities in the adverts that the node has sent since the last call.
func (b *bench) priorities() (all []uint8) {
	for _, a := range b.sent {
		all = append(all, a.Priority)
	}
	b.sent, b.sums = nil, nil
	return all
}

func (b *bench) noted(text string) bool {
	return strings.Contains(strings.Join(b.notes, "\n"), text)
}

// active runs the node without other routers until it is Active, and then drops the adverts in
// sent.
func (b *bench) active() {
	b.t.Helper()
	b.run(500 * ms)
	b.want(vrrp.Active)
	b.sent = nil
}

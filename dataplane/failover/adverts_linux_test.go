package failover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"vipd/test/lab"
	"vipd/test/wait"
)

type router struct {
	*Adverts
	ns       *lab.NS
	own4     netip.Addr
	own6     netip.Addr // link-local
	received chan Advert
	held     atomic.Pointer[chan bool] // if set, the router delivers received packets only after this channel is closed
}

func (r *router) receive(a Advert) {
	if held := r.held.Load(); held != nil {
		<-*held
	}
	r.received <- a
}

// newRouter connects a host to a bridge, and opens the host's sockets for adverts.
func newRouter(t *testing.T, b *lab.Bridge, ns *lab.NS, own4 string) *router {
	t.Helper()
	b.Join(ns, own4+"/24")
	r := &router{ns: ns, own4: netip.MustParseAddr(own4), received: make(chan Advert, 1000)}
	r.Adverts = NewAdverts(r.receive, slog.New(slog.DiscardHandler))
	wait.For(t, wait.Patience, "a link-local address", func() bool { r.own6 = linkLocal(t, ns); return r.own6.IsValid() })
	if err := ns.Do(func() error {
		r.Follow([]string{"lan"})
		return errors.Join(r.Failure("lan", true), r.Failure("lan", false))
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.mu.Lock()
		for _, s := range r.sockets {
			_ = s.file.Close()
		}
		r.mu.Unlock()
		r.running.Wait()
	})
	return r
}

// linkLocal returns the link-local address of a host's interface "lan". While duplicate address
// detection is running, it returns an invalid address.
func linkLocal(t *testing.T, ns *lab.NS) (a netip.Addr) {
	t.Helper()
	for _, field := range strings.Fields(ns.Exec("ip", "-6", "-o", "addr", "show", "dev", "lan", "scope", "link", "-tentative")) {
		if p, err := netip.ParsePrefix(field); err == nil && !p.IsSingleIP() {
			return p.Addr()
		}
	}
	return a
}

// message returns an advert of virtual router 51 that ends with text.
func message(text string) []byte { return append([]byte{0x31, 51}, text...) }

// next returns the next received packet. If none arrives, the test fails.
func (r *router) next(t *testing.T) Advert {
	t.Helper()
	select {
	case a := <-r.received:
		return a
	case <-time.After(wait.Patience):
		t.Fatal("no packet arrived")
		return Advert{}
	}
}

func (r *router) silent() bool { return len(r.received) == 0 }

// TestAdvertsArrive sends IPv4 and IPv6 packets to the group and to a peer. They must have a TTL of
// 255 and the requested source address, although the kernel would use a VIP. The sender must not
// receive its own packets.
func TestAdvertsArrive(t *testing.T) {
	l := lab.New(t)
	lan := l.Bridge("lan")
	a, b := newRouter(t, lan, l.Add("a"), "10.9.0.1"), newRouter(t, lan, l.Add("b"), "10.9.0.2")
	for _, vip := range []string{"10.9.0.100/32", "10.9.0.101/24", "fe80::100/128", "fd09::100/128"} {
		a.ns.AddAddr("lan", vip)
	}
	for _, c := range []struct {
		name     string
		from, to netip.Addr
	}{
		{"multicast", a.own4, vrrpGroup(true)},
		{"unicast", a.own4, b.own4},
		{"another source", netip.MustParseAddr("10.9.0.101"), vrrpGroup(true)},
		{"IPv6 multicast", a.own6, vrrpGroup(false)},
		{"IPv6 unicast", a.own6, b.own6},
		{"IPv6 source that is a VIP", netip.MustParseAddr("fe80::100"), vrrpGroup(false)},
	} {
		before := time.Now()
		if err := a.Send("lan", c.from, c.to, message(c.name)); err != nil {
			t.Errorf("Send %s: %v", c.name, err)
			continue
		}
		got := b.next(t)
		if got.At.Before(before.Add(-time.Second)) || got.At.After(time.Now()) {
			t.Errorf("%s: At = %s, want a time shortly after %s", c.name, got.At, before)
		}
		got.At = time.Time{}
		if want := (Advert{On: "lan", From: c.from, To: c.to, TTL: 255, Data: message(c.name)}); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: received packet = %v, want %v", c.name, got, want)
		}
	}
	if !a.silent() {
		t.Errorf("packet received by its sender = %v, want none", a.next(t))
	}
	if err := a.Send("lan", netip.MustParseAddr("10.9.0.77"), vrrpGroup(true), nil); err == nil {
		t.Error("Send from another host's address = nil, want an error")
	}
	if err := a.Send("wan", a.own4, vrrpGroup(true), nil); !errors.Is(err, unix.ENODEV) {
		t.Errorf("Send on an unknown interface = %v, want %v", err, unix.ENODEV)
	}
}

// TestAdvertsTTL sends packets with a lower TTL, as if they had crossed routers. The receiver must
// see each packet's TTL, so it can drop the packet.
func TestAdvertsTTL(t *testing.T) {
	l := lab.New(t)
	lan := l.Bridge("lan")
	a, b := newRouter(t, lan, l.Add("a"), "10.9.0.1"), newRouter(t, lan, l.Add("b"), "10.9.0.2")
	send := func(network string, from, to netip.Addr, limit func(net.PacketConn) error) {
		t.Helper()
		c, err := a.ns.ListenPacket(network, from.String())
		if err == nil {
			err = limit(c)
		}
		if err == nil {
			_, err = c.WriteTo(message("far"), &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()})
			err = errors.Join(err, c.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	send("ip4:112", a.own4, b.own4, func(c net.PacketConn) error { return ipv4.NewPacketConn(c).SetTTL(64) })
	if got := b.next(t); got.TTL != 64 || got.From != a.own4 {
		t.Errorf("received packet = %v, want TTL 64", got)
	}
	send("ip6:112", a.own6.WithZone("lan"), b.own6.WithZone("lan"), func(c net.PacketConn) error { return ipv6.NewPacketConn(c).SetHopLimit(63) })
	if got := b.next(t); got.TTL != 63 || got.From != a.own6 {
		t.Errorf("received packet = %v, want hop limit 63", got)
	}
}

// TestAdvertsFilter sends IPv4 and IPv6 packets that are not adverts. None of them may reach the
// process.
func TestAdvertsFilter(t *testing.T) {
	l := lab.New(t)
	lan := l.Bridge("lan")
	a, b := newRouter(t, lan, l.Add("a"), "10.9.0.1"), newRouter(t, lan, l.Add("b"), "10.9.0.2")
	for _, v4 := range []bool{true, false} {
		source := a.own6
		if v4 {
			source = a.own4
		}
		for _, data := range [][]byte{{0x41, 51, 0x31, 0x31}, {0x32, 51}, {}, message("wanted")} {
			if err := a.Send("lan", source, vrrpGroup(v4), data); err != nil {
				t.Fatal(err)
			}
		}
		if got := b.next(t); string(got.Data) != string(message("wanted")) {
			t.Errorf("first received packet = %q, want the advert", got.Data)
		}
	}
}

// TestAdvertsWhileReopening sends a packet while Adverts lists the interfaces. Send must not wait
// for the listing.
func TestAdvertsWhileReopening(t *testing.T) {
	l := lab.New(t)
	a := newRouter(t, l.Bridge("lan"), l.Add("a"), "10.9.0.1")
	a.reopening.Lock()
	defer a.reopening.Unlock()
	sent := make(chan error, 1)
	go func() { sent <- a.Send("lan", a.own4, vrrpGroup(true), message("now")) }()
	select {
	case err := <-sent:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(wait.Patience):
		t.Error("Send waited for the listing")
	}
}

// TestAdvertSources lists the source addresses of an interface that has a VIP. The VIP must not be
// among them. A missing interface must not have any source addresses.
func TestAdvertSources(t *testing.T) {
	l := lab.New(t)
	a := newRouter(t, l.Bridge("lan"), l.Add("a"), "10.9.0.1")
	a.ns.AddAddr("lan", "10.9.0.100/32")
	for name, want := range map[string][]netip.Addr{"lan": {a.own4, a.own6}, "wan": nil} {
		var got []netip.Addr
		err := a.ns.Do(func() (err error) {
			got, err = AdvertSources(name, []netip.Addr{netip.MustParseAddr("10.9.0.100")})
			return err
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("sources of %s = %v, %v; want %v", name, got, err, want)
		}
	}
}

// TestAdvertsQueued delays the receiver while a packet waits in its queue. The packet's timestamp
// must be its arrival time, so the receiver can drop old packets.
func TestAdvertsQueued(t *testing.T) {
	l := lab.New(t)
	lan := l.Bridge("lan")
	a, b := newRouter(t, lan, l.Add("a"), "10.9.0.1"), newRouter(t, lan, l.Add("b"), "10.9.0.2")
	held := make(chan bool)
	b.held.Store(&held)
	for range 3 {
		if err := a.Send("lan", a.own4, vrrpGroup(true), message("queued")); err != nil {
			t.Fatal(err)
		}
	}
	sent := time.Now()
	const delay = 300 * time.Millisecond
	time.Sleep(delay) // a real delay, because the kernel sets the timestamp
	close(held)
	for range 3 {
		if got := b.next(t); got.At.After(sent.Add(delay / 2)) {
			t.Errorf("packet sent at %s: timestamp = %s, want a time before the end of the receiver's delay", sent, got.At)
		}
	}
}

// TestAdvertsFollowLinks takes the interface down, renames it, and creates it again. While the
// interface is down, Send must fail. Afterwards, packets to the group must arrive in both
// directions.
func TestAdvertsFollowLinks(t *testing.T) {
	l := lab.New(t)
	lan := l.Bridge("lan")
	peer, host := newRouter(t, lan, l.Add("peer"), "10.9.0.2"), newRouter(t, lan, l.Host(), "10.9.0.1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan bool)
	go func() { host.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	both := func(after string) {
		t.Helper()
		for _, v4 := range []bool{true, false} {
			wait.For(t, wait.Patience, fmt.Sprintf("packets after %s, IPv4: %t", after, v4), func() bool {
				return arrives(host, peer, v4) && arrives(peer, host, v4)
			})
		}
	}
	both("the start")

	host.ns.Exec("ip", "link", "set", "lan", "down")
	if err := host.Send("lan", host.own4, vrrpGroup(true), nil); err == nil {
		t.Error("Send on a device that is down = nil, want an error")
	}
	host.ns.Exec("ip", "link", "set", "lan", "up")
	both("the link came up")

	host.ns.Exec("sh", "-c", "ip link set lan down; ip link set lan name other")
	wait.For(t, wait.Patience, "no socket on a renamed device", func() bool {
		return errors.Is(host.Send("lan", host.own4, vrrpGroup(true), nil), unix.ENODEV)
	})
	host.ns.Exec("sh", "-c", "ip link set other name lan; ip link set lan up")
	both("the name came back")

	host.ns.Exec("ip", "link", "del", "lan")
	wait.For(t, wait.Patience, "no socket on a missing device", func() bool {
		return errors.Is(host.Send("lan", host.own4, vrrpGroup(true), nil), unix.ENODEV)
	})
	lan.Join(host.ns, host.own4.String()+"/24")
	wait.For(t, wait.Patience, "a link-local address", func() bool { host.own6 = linkLocal(t, host.ns); return host.own6.IsValid() })
	both("the device was created again")
}

// arrives reports whether a packet from one router to the group soon arrives at the other router.
func arrives(from, to *router, v4 bool) bool {
	source := from.own6
	if v4 {
		source = from.own4
	}
	text := fmt.Sprint(time.Now().UnixNano())
	if from.Send("lan", source, vrrpGroup(v4), message(text)) != nil {
		return false
	}
	timeout := time.After(100 * time.Millisecond)
	for {
		select {
		case a := <-to.received:
			if string(a.Data) == string(message(text)) {
				return true
			}
		case <-timeout:
			return false
		}
	}
}

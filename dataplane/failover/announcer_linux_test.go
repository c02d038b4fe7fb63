package failover

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"vipd/dataplane/internal/neigh"
	"vipd/test/lab"
	"vipd/test/wait"
)

// TestAnnouncementSchedule announces addresses. Each address must be announced immediately, after
// another 0.1, 1 and 1.1 s, and then every minute. The announcement rate must be limited, and new
// addresses must be announced before repeats.
func TestAnnouncementSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type sent struct {
			addr netip.Addr
			at   time.Duration
		}
		var mu sync.Mutex // guards all and starts
		var all []sent
		began := time.Now()
		n := NewAnnouncer(time.Minute, slog.New(slog.DiscardHandler))
		n.send = func(_ int, a netip.Addr, _ bool) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, sent{a, time.Since(began)})
			return nil
		}
		seen := func() []sent {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { n.Run(ctx) })
		one, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		n.Announce(1, []netip.Addr{one})
		time.Sleep(63 * time.Second)
		synctest.Wait()
		var times []time.Duration
		for _, s := range seen() {
			times = append(times, s.at.Round(10*time.Millisecond))
		}
		if want := []time.Duration{0, 100 * time.Millisecond, 1100 * time.Millisecond, 2200 * time.Millisecond, 62200 * time.Millisecond}; !slices.Equal(times, want) {
			t.Errorf("announcement times = %v, want %v", times, want)
		}

		n.Forget([]netip.Addr{one})
		var many []netip.Addr
		for i := range 1000 {
			many = append(many, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
		}
		mu.Lock()
		all, began = nil, time.Now()
		mu.Unlock()
		n.Announce(1, many)
		time.Sleep(450 * time.Millisecond)
		synctest.Wait()
		first := 0
		for _, s := range seen() {
			if first < len(many) && s.addr == many[first] {
				first++
			}
		}
		if took := seen()[999].at; first != 1000 || took < 380*time.Millisecond || took > 410*time.Millisecond {
			t.Errorf("first announcements in order = %d within %s, want 1000 within about 400 ms", first, took)
		}
		time.Sleep(2 * time.Second) // 1,000 repeats of two frames each take 4 s
		synctest.Wait()
		n.Announce(1, []netip.Addr{other})
		time.Sleep(5 * time.Millisecond)
		synctest.Wait()
		if last := seen()[len(seen())-1].addr; last != other && seen()[len(seen())-2].addr != other {
			t.Errorf("last announced address = %s, want the new address", last)
		}
		if repeats := len(seen()) - 1001; repeats < 480 || repeats > 650 {
			t.Errorf("repeats in 2.4 s = %d, want 250 in each second", repeats)
		}
		n.Forget(append(many, other))
		count := len(seen())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(seen()) != count {
			t.Errorf("announcements of forgotten addresses = %d, want 0", len(seen())-count)
		}
		cancel()
		running.Wait()
	})
}

func announcing(t *testing.T) *Announcer {
	n := NewAnnouncer(time.Minute, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { n.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return n
}

type claims struct {
	mu  sync.Mutex
	all map[netip.Addr]net.HardwareAddr
}

func (c *claims) distinct() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

func (c *claims) macOf(a netip.Addr) net.HardwareAddr {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[a]
}

// listenForClaims listens on the LAN of the namespace at. It records announcements of all addresses
// except the nodes' own.
func listenForClaims(t *testing.T, at *lab.NS) *claims {
	t.Helper()
	c := &claims{all: map[netip.Addr]net.HardwareAddr{}}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan bool), make(chan error, 1)
	go func() {
		done <- at.Do(func() error {
			device, err := net.InterfaceByName("lan")
			if err != nil {
				return err
			}
			return neigh.Claims(ctx, device.Index, nil, func() { close(ready) }, func(claim neigh.Claim) {
				if own := claim.Addr.As16(); claim.Addr.IsLinkLocalUnicast() || own[15] == 11 && claim.Addr.Is4() && own[14] == 0 {
					return
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				c.all[claim.Addr] = claim.MAC
			})
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestRivalAnnouncements receives announcements of a VIP. Only announcements from another host may
// be reported, with that host's MAC.
func TestRivalAnnouncements(t *testing.T) {
	l, client := world(t)
	device, err := net.InterfaceByName("lan")
	if err != nil {
		t.Fatal(err)
	}
	rivals := listenForClaims(t, l.Host())
	var theirs net.HardwareAddr
	for _, text := range []string{vip4, vip6} {
		vip := netip.MustParseAddr(text)
		if err := neigh.Announce(device.Index, []netip.Addr{vip}); err != nil {
			t.Fatal(err)
		}
		if err := client.Do(func() error {
			other, err := net.InterfaceByName("lan")
			if err != nil {
				return err
			}
			theirs = other.HardwareAddr
			return neigh.Announce(other.Index, []netip.Addr{vip})
		}); err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, 10*time.Second, "a rival", func() error {
			if got := rivals.macOf(vip); got.String() != theirs.String() {
				return errNotYet(got)
			}
			return nil
		})
	}
}

type errNotYet net.HardwareAddr

func (e errNotYet) Error() string { return "its MAC is " + net.HardwareAddr(e).String() }

// TestLateReader starts reading announcements only after the listener's deadline. Announcements
// that arrived before the deadline must be reported.
func TestLateReader(t *testing.T) {
	l, client := world(t)
	device, err := net.InterfaceByName("lan")
	if err != nil {
		t.Fatal(err)
	}
	earlier := listenForClaims(t, l.Host()) // the kernel delivers each frame last to the listener that was opened first
	for _, text := range []string{vip4, vip6} {
		vip := netip.MustParseAddr(text)
		ctx, cancel := context.WithCancel(t.Context())
		var told atomic.Bool
		arrive := func() {
			if err := client.Do(func() error {
				other, err := net.InterfaceByName("lan")
				if err != nil {
					return err
				}
				return neigh.Announce(other.Index, []netip.Addr{vip})
			}); err != nil {
				t.Error(err)
			}
			wait.For(t, 0, "the announcement", func() bool { return earlier.macOf(vip) != nil })
			cancel()
		}
		err := neigh.Claims(ctx, device.Index, nil, arrive, func(c neigh.Claim) { told.Store(told.Load() || c.Addr == vip) })
		if err != nil || !told.Load() {
			t.Errorf("announcement of %s: reported = %t, %v; want true", vip, told.Load(), err)
		}
	}
}

// TestChangedMAC changes a device's MAC. The device's VIPs must be announced with the new MAC
// immediately, not only at the next repeat.
func TestChangedMAC(t *testing.T) {
	l, client := world(t)
	heard := listenForClaims(t, client)
	owner(t, l, vip4, vip6)
	announced := func(mac string) {
		t.Helper()
		for _, text := range []string{vip4, vip6} {
			vip := netip.MustParseAddr(text)
			wait.For(t, wait.Patience, text+" to be announced with "+mac, func() bool { return heard.macOf(vip).String() == mac })
		}
	}
	device, err := net.InterfaceByName("lan")
	if err != nil {
		t.Fatal(err)
	}
	announced(device.HardwareAddr.String())
	for _, mac := range []string{"02:00:00:00:00:07", "02:00:00:00:00:08"} {
		l.Host().Exec("ip", "link", "set", "lan", "address", mac)
		announced(mac)
	}
}

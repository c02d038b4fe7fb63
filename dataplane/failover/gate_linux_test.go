package failover

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"vipd/test/lab"
	"vipd/test/wait"
)

const (
	vip4 = "10.9.0.100"
	vip6 = "fd09::100"
)

// world returns a lab with a host and a client on one LAN. The host translates the VIP's port 80 to
// a server behind the host.
func world(t *testing.T) (l *lab.Lab, client *lab.NS) {
	l = lab.New(t)
	lab.Need(t, "nft")
	client = l.Add("client")
	server := l.Add("server")
	b := l.Bridge("lan")
	b.Join(l.Host(), "10.9.0.11/24", "fd09::11/64")
	b.Join(client, "10.9.0.50/24", "fd09::50/64")
	l.Link(l.Host(), server, "10.8.0.1/24", "10.8.0.20/24")
	server.Default("10.8.0.1")
	l.Host().Sysctl("net.ipv4.ip_forward", "1")
	server.Echo("udp", "s1", netip.MustParseAddrPort("10.8.0.20:80"))
	l.Host().Exec("nft", `add table ip test; add chain ip test pre { type nat hook prerouting priority -100; }; add rule ip test pre ip daddr `+vip4+` udp dport 80 dnat to 10.8.0.20:80`)
	t.Cleanup(func() { l.Host().For(t).Exec("nft", "add table ip test; delete table ip test") })
	return l, client
}

// TestFrozenOwnerIsSilent stops an owner's process with SIGSTOP. The kernel's timer alone must stop
// the host from answering and forwarding for the VIPs. When the process continues, its refreshes
// must not open the gate again.
func TestFrozenOwnerIsSilent(t *testing.T) {
	l, client := world(t)
	process, tell := owner(t, l, vip4, vip6)
	mac := hostMAC(t, l)
	lab.Eventually(t, 10*time.Second, "answers", func() error {
		found := answers(t, client, vip4, vip6)
		if len(found) != 2 || found[netip.MustParseAddr(vip4)].String() != mac {
			return fmt.Errorf("answers before the freeze = %v, want the owner's answers for both VIPs", found)
		}
		return nil
	})
	client.Exec("ip", "neigh", "replace", vip4, "lladdr", mac, "nud", "permanent", "dev", "lan") // packets must not wait for ARP
	lab.Eventually(t, 10*time.Second, "an answer through the host", func() error { return askServer(t, client) })
	tell()

	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped, last := time.Now(), time.Duration(0)
	lab.Eventually(t, 10*time.Second, "silence", func() error {
		for range 2 { // repeated, because a late answer may belong to the previous query
			asked := time.Since(stopped)
			if found := answers(t, client, vip4, vip6); len(found) > 0 {
				last = asked
				return fmt.Errorf("%s after the freeze: answers = %v, want none", asked, found)
			}
		}
		return nil
	})
	t.Logf("frozen: the last question that was answered was asked after %s", last.Round(time.Millisecond))
	silent := func(when string) {
		t.Helper()
		if found := answers(t, client, vip4, vip6); len(found) > 0 {
			t.Errorf("%s: answers = %v, want none", when, found)
		}
		if err := askServer(t, client); err == nil {
			t.Errorf("%s: the server behind the VIP answered, want no answer", when)
		}
	}
	silent("frozen, with the addresses bound")
	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	silent("going on")
	silent("going on for longer than the timeout")
	l.Host().Exec("ip", "addr", "del", vip4+"/32", "dev", "lan")
	silent("without the address")
}

func hostMAC(t *testing.T, l *lab.Lab) string {
	t.Helper()
	device, err := net.InterfaceByName("lan")
	if err != nil {
		t.Fatal(err)
	}
	return device.HardwareAddr.String()
}

// askServer sends a request to the server behind the VIP. If no answer arrives, it returns an
// error.
func askServer(t *testing.T, client *lab.NS) error {
	t.Helper()
	c, err := client.Dial(t.Context(), "udp", vip4+":80")
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_, err = lab.AskWithin(c, wait.Scaled(100*time.Millisecond))
	return err
}

// TestGateLifecycle opens and closes a gate, changes its VIPs, and deletes its table. The host must
// answer for the VIPs only while the gate is open. If the table is missing, Intact must report
// this.
func TestGateLifecycle(t *testing.T) {
	l, client := world(t)
	if err := Trial(); err != nil {
		t.Fatalf("Trial() = %v, want nil", err)
	}
	g, err := NewGate(GateOptions{Timeout: time.Hour}) // a long timeout, because this test does not depend on it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close(); clean(t, []string{vip4, vip6}) })
	x, err := NewAddresses()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	device, err := net.InterfaceByName("lan")
	if err != nil {
		t.Fatal(err)
	}
	both := []netip.Addr{netip.MustParseAddr(vip4), netip.MustParseAddr(vip6)}
	if err := g.Install([]string{"lan"}, both); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(x.Add(device.Index, both)...); err != nil {
		t.Fatal(err)
	}
	state := func(when string, want int, open bool) {
		t.Helper()
		lab.Eventually(t, 10*time.Second, when, func() error { // a busy host may answer late
			if found := answers(t, client, vip4, vip6); len(found) != want {
				return fmt.Errorf("answers = %v, want %d answers", found, want)
			}
			return nil
		})
		if is, err := g.IsOpen(); err != nil || is != open {
			t.Errorf("%s: IsOpen() = %t, %v; want %t", when, is, err, open)
		}
		if reason, err := g.Intact(); reason != "" || err != nil {
			t.Errorf("%s: Intact() = %q, %v; want no reason", when, reason, err)
		}
	}
	state("installed", 0, false)
	if err := g.Refresh(); err != nil {
		t.Fatal(err)
	}
	state("refreshed, but never opened", 0, false)
	do := func(f func() error) {
		t.Helper()
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	do(g.Open)
	state("open", 2, true)
	do(g.Refresh)
	state("refreshed", 2, true)
	do(g.Shut)
	state("shut", 0, false)
	do(func() error { return g.Cover(both[:1]) })
	state("of one VIP", 1, false)
	do(func() error { return g.Cover(both) })
	do(g.Open)
	do(func() error { return g.Install([]string{"lan"}, both) })
	state("installed anew", 0, false)
	l.Host().Exec("nft", "flush", "ruleset")
	if reason, err := g.Intact(); (reason == "") == g.shared || err != nil {
		t.Errorf("after \"nft flush ruleset\": Intact() = %q, %v; want \"\" only if the table is protected (%t)", reason, err, !g.shared)
	}
	do(g.Remove)
	if reason, err := g.Intact(); reason == "" || err != nil {
		t.Errorf("after its table was deleted: Intact() = \"\", %v; want a reason", err)
	}
}

// TestAddedAddressPassesGate adds VIPs to a device. As soon as Add returns, the kernel must treat
// the VIPs as local addresses, so packets to them pass an open gate.
func TestAddedAddressPassesGate(t *testing.T) {
	world(t)
	x, err := NewAddresses()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	device, err := net.InterfaceByName("lan")
	if err != nil {
		t.Fatal(err)
	}
	both := []netip.Addr{netip.MustParseAddr(vip4), netip.MustParseAddr(vip6)}
	for range 20 {
		began := time.Now()
		if err := errors.Join(x.Add(device.Index, both)...); err != nil {
			t.Fatal(err)
		}
		for _, a := range both {
			if !isLocal(a) && time.Since(began) < settling {
				t.Errorf("after Add: isLocal(%s) = false, want true", a)
			}
		}
		if err := errors.Join(x.Remove(device.Index, both)...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostVIPs removes two VIPs from their interface, one of which can't be added again. Lost must
// return both. The VIP that can't be added must no longer be announced.
func TestLostVIPs(t *testing.T) {
	l, _ := world(t)
	both := []netip.Addr{netip.MustParseAddr(vip4), netip.MustParseAddr(vip6)}
	k, err := NewKernel(KernelOptions{Places: Places{Interfaces: []string{"lan"}, Devices: map[netip.Addr]string{both[0]: "lan", both[1]: "lan"}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.End(); clean(t, []string{vip4, vip6}) })
	lost := func(want ...netip.Addr) {
		t.Helper()
		got := k.Lost()
		if slices.SortFunc(got, netip.Addr.Compare); !slices.Equal(got, want) {
			t.Errorf("lost = %v, want %v", got, want)
		}
	}
	if err := errors.Join(k.Close(), k.Open()); err != nil || len(k.Bind(both)) > 0 {
		t.Fatal("Close, Open or Bind: ", err)
	}
	lost()
	l.Host().Exec("ip", "addr", "del", vip4+"/32", "dev", "lan")
	l.Host().Sysctl("net.ipv6.conf.lan.disable_ipv6", "1")
	lost(both...)
	if failed := k.Bind(k.Lost()); len(failed) != 1 || failed[both[1]] == nil {
		t.Errorf("second Bind = %v, want an error only for the IPv6 VIP", failed)
	}
	lost()
	if got := k.announcer.All(); !slices.Equal(got, both[:1]) {
		t.Errorf("announced VIPs = %v, want only %s", got, both[0])
	}
}

// TestNetworkMovesToOtherDevice moves a VIP's network from one device to another. Bind must then
// remove the VIP from the first device.
func TestNetworkMovesToOtherDevice(t *testing.T) {
	l, _ := world(t)
	v := netip.MustParseAddr(vip4)
	on := func(device string) Places {
		return Places{Interfaces: []string{"lan", "other"}, Devices: map[netip.Addr]string{v: device}}
	}
	l.Host().Exec("ip", "link", "add", "other", "type", "bridge")
	l.Host().Exec("ip", "link", "set", "other", "up")
	k, err := NewKernel(KernelOptions{Places: on("lan"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.End(); clean(t, []string{vip4}) })
	if err := errors.Join(k.Close(), k.Open()); err != nil || len(k.Bind([]netip.Addr{v})) > 0 {
		t.Fatal("Close, Open or Bind: ", err)
	}
	if err := k.Cover(on("other")); err != nil {
		t.Fatal(err)
	}
	if failed := k.Bind(k.Lost()); len(failed) > 0 {
		t.Errorf("Bind on the other device = %v, want no errors", failed)
	}
	held := func() (n int) {
		all, err := Held()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(fmt.Sprint(all), vip4)
	}
	if n := held(); n != 1 {
		t.Errorf("devices with the VIP = %d, want 1", n)
	}
	if err := k.Unbind([]netip.Addr{v}); err != nil || held() > 0 {
		t.Errorf("after Unbind: devices with the VIP = %d, %v; want 0", held(), err)
	}
}

// TestVIPsOfAKilledOwner kills an owner process. The next owner process must remove all VIPs that
// the killed process added, even on other devices, before it opens the gate.
func TestVIPsOfAKilledOwner(t *testing.T) {
	l, client := world(t)
	process, _ := owner(t, l, vip4)
	lab.Eventually(t, 10*time.Second, "an answer", func() error {
		if len(answers(t, client, vip4)) == 0 {
			return errors.New("nobody answers")
		}
		return nil
	})
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = process.Wait()
	left, other := netip.MustParseAddr(vip4), netip.MustParseAddr(vip6)
	at := func(vips ...netip.Addr) Places {
		p := Places{Interfaces: []string{"lan"}, Devices: map[netip.Addr]string{}}
		for _, a := range vips {
			p.Devices[a] = "lan"
		}
		return p
	}
	next := func(told ...netip.Addr) *Kernel {
		t.Helper()
		k, err := NewKernel(KernelOptions{Places: at(other), VIPs: told, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		return k
	}
	removed := func(when string) {
		t.Helper()
		if held, err := Held(); err != nil || strings.Contains(fmt.Sprint(held), vip4) {
			t.Errorf("%s: addresses = %v, %v; want no %s", when, held, err, vip4)
		}
	}
	k := next()
	removed("taken away by users")
	add := func() { l.Host().Exec("ip", "addr", "add", vip4+"/32", "dev", "lan") }
	add()
	if err := errors.Join(k.Open(), k.Cover(at(left, other))); err != nil {
		t.Fatal(err)
	}
	removed("covered by an open gate")
	if err := errors.Join(k.gate.Remove(), k.End()); err != nil {
		t.Fatal(err)
	}
	add()
	k = next(left)
	removed("without a device, after the gate's table was deleted")
	_ = k.End()
}

// TestThousandVIPs adds 1,000 VIPs with one call. They must be announced in order and in time.
func TestThousandVIPs(t *testing.T) {
	_, client := world(t)
	n := wait.Load(1000)
	var vips []netip.Addr
	var texts []string
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 9, byte(1 + i/250), byte(1 + i%250)})
		if i%4 == 3 {
			a = netip.MustParseAddr(fmt.Sprintf("fd09::1:%x", i+1))
		}
		vips, texts = append(vips, a), append(texts, a.String())
	}
	g, err := NewGate(GateOptions{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	x, err := NewAddresses()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = g.Close(), x.Close(); clean(t, texts) })
	device, err := net.InterfaceByName("lan")
	if err != nil {
		t.Fatal(err)
	}
	heard := listenForClaims(t, client)
	began := time.Now()
	if err := g.Install([]string{"lan"}, vips); err != nil {
		t.Fatal(err)
	}
	installed := time.Now()
	if err := g.Open(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(x.Add(device.Index, vips)...); err != nil {
		t.Fatal(err)
	}
	added := time.Now()
	announcing(t).Announce(device.Index, vips)
	wait.For(t, 30*time.Second, "all are announced", func() bool { return heard.distinct() == n })
	t.Logf("%d VIPs: the gate took %s, the addresses %s, the announcements %s", n, installed.Sub(began), added.Sub(installed), time.Since(added))
	x.Remove(device.Index, vips[:n/2])
	if own, err := x.Strip(vips); err != nil || len(own) > 0 {
		t.Errorf("Strip = %v, %v; want no addresses", own, err)
	}
}

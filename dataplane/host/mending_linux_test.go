package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
	testwait "vipd/test/wait"
)

func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// TestRouteRemoved removes routes to VIPs. vipd must restore its own routes, and must not change
// other programs' routes.
func TestRouteRemoved(t *testing.T) {
	network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80"))
	for vip, node := range map[string]string{"10.96.0.10": "10.1.0.1", "fd00:96::10": "fd01::1"} {
		checkSource(t, h, vip, node)
		checkIntact(t, h)
		ip(t, "route add local "+vip+" dev lo table 99 proto 119")
		ip(t, "route del local "+vip+" dev lo table 99 proto 119")
		checkIntact(t, h)
		ip(t, "route del local "+vip+" dev lo table local proto 118")
		if reason, err := h.Intact(t.Context()); err != nil || reason != "the route to "+vip+" is missing from lo" {
			t.Fatalf("Intact = %q, %v; want a reason that names the removed route", reason, err)
		}
		h.Resync(true)
		apply(t, h, frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80"))
		checkSource(t, h, vip, node)
		checkIntact(t, h)
	}
	finishNothing(t, h)
	checkIntact(t, h)
}

// TestRouteRemovedWithoutEvent removes a route while the event buffer is full, so the event is
// lost. Intact must report the removed route.
func TestRouteRemovedWithoutEvent(t *testing.T) {
	network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	checkIntact(t, h)
	must(t, h.events.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) }))
	for i := range 40 {
		ip(t, fmt.Sprintf("addr add 10.99.0.%d/32 dev client", i+1))
	}
	ip(t, "route del local 10.96.0.10 dev lo table local proto 118")
	if reason, err := h.Intact(t.Context()); err != nil || reason != "the route to 10.96.0.10 is missing from lo" {
		t.Errorf("Intact = %q, %v; want a reason that names the removed route", reason, err)
	}
}

// TestLinkDown holds VIPs on a link that is down. After the link is up, vipd must add the routes
// and announce the VIPs.
func TestLinkDown(t *testing.T) {
	_, client := network(t)
	client.Sysctl("net.ipv4.conf.host.arp_accept", "1")
	ip(t, "link add away type veth peer name yonder")
	t.Cleanup(func() { ip(t, "link del away") })
	ip(t, "addr add 10.4.0.1/24 dev away")
	ip(t, "link set client down")
	o := options(t, xtables.NFT)
	o.Interface = "client"
	h := newHost(t, o)
	web := frontend("10.1.0.10:80")
	apply(t, h, web)
	apply(t, h, web) // the engine would also retry
	checkDevice(t, "client", "10.1.0.1/24", "10.1.0.10/32")
	checkWhere(t, h, "10.1.0.10", "client")
	if !strings.Contains(h.Addresses()[0].Note, "route is pending") {
		t.Fatalf("addresses = %+v, want a VIP whose route is pending", h.Addresses())
	}
	text := fmt.Sprint(h.Problems())
	if !strings.Contains(text, "VIPs lack their routes") || !strings.Contains(text, "not announced") {
		t.Fatalf("problems = %s, want problems about missing routes and announcements", text)
	}
	checkIntact(t, h)

	ip(t, "link set client up")
	lab.Eventually(t, deadlineIn, "the event of the link", func() error {
		if reason, err := h.Intact(t.Context()); err != nil || reason == "" {
			return fmt.Errorf("reason = %q, %w", reason, err)
		}
		return nil
	})
	h.Resync(true)
	apply(t, h, web)
	checkSource(t, h, "10.1.0.10", "10.1.0.1")
	lab.Eventually(t, deadlineIn, "the announcement of the VIP", func() error {
		if _, err := h.Intact(t.Context()); err != nil {
			return err
		}
		if neighbours := client.Exec("ip", "neigh"); !strings.Contains(neighbours, "10.1.0.10 dev host lladdr") {
			return fmt.Errorf("the client's neighbors lack the VIP:\n%s", neighbours)
		}
		return nil
	})
	checkIntact(t, h)
	if p := h.Problems(); len(p) != 0 {
		t.Fatalf("problems = %v, want none", p)
	}
	finishNothing(t, h)
	checkDevice(t, "client", "10.1.0.1/24") // the kernel removes IPv6 addresses when a link goes down
}

// TestAnnouncedAfterCarrierLoss disconnects and reconnects a link. vipd must then announce the VIPs
// again.
func TestAnnouncedAfterCarrierLoss(t *testing.T) {
	_, client := network(t)
	client.Sysctl("net.ipv4.conf.host.arp_accept", "1")
	o := options(t, xtables.NFT)
	o.Interface = "client"
	h := newHost(t, o)
	apply(t, h, frontend("10.1.0.10:80"))
	client.Exec("ip", "link", "set", "host", "down")
	lab.Eventually(t, deadlineIn, "the loss of the carrier", func() error {
		checkIntact(t, h)
		if link := h.view.devices[h.device.index]; link.running || !link.up {
			return fmt.Errorf("link = %+v, want no carrier", link)
		}
		return nil
	})
	client.Exec("ip", "link", "set", "host", "up")
	lab.Eventually(t, deadlineIn, "the announcement of the VIP", func() error {
		checkIntact(t, h)
		if neighbours := client.Exec("ip", "neigh"); !strings.Contains(neighbours, "10.1.0.10 dev host lladdr") {
			return fmt.Errorf("the client's neighbors lack the VIP:\n%s", neighbours)
		}
		return nil
	})
	if p := h.Problems(); len(p) != 0 {
		t.Fatalf("problems = %v, want none", p)
	}
}

// TestKilledWhileMoving moves a VIP to another device, and simulates kill -9 after each step. The
// next process, or Cleanup, must remove the VIP from all other devices.
func TestKilledWhileMoving(t *testing.T) {
	network(t)
	ip(t, "link add second type bridge")
	ip(t, "link set second up")
	t.Cleanup(func() { ip(t, "link del second") })
	for _, after := range []string{"the ledger", "the guard", "the removal", "everything"} {
		for _, then := range []string{"second", "lo", "Cleanup"} {
			t.Run(fmt.Sprintf("after %s, then %s", after, then), func(t *testing.T) {
				o := options(t, xtables.NFT)
				o.Interface, o.StrictARP = "lo", false
				h := newHost(t, o)
				web := frontend("10.96.0.10:80")
				apply(t, h, web)
				must(t, h.Close())
				o.Interface = "second"
				h = newHost(t, o)
				killAfter(t, h, after, web)
				must(t, h.Close())

				if then != "Cleanup" {
					o.Interface = then
					h = newHost(t, o)
					apply(t, h, web)
					apply(t, h, web)
					checkWhere(t, h, "10.96.0.10", then)
					want := map[string][]string{"lo": {"127.0.0.1/8", "::1/128"}, "second": nil}
					want[then] = append(want[then], "10.96.0.10/32")
					checkDevice(t, "lo", want["lo"]...)
					checkDevice(t, "second", want["second"]...)
					checkIntact(t, h)
					if len(h.ledger.Leaving) != 0 {
						t.Errorf("leaving addresses in the ledger = %v, want none", h.ledger.Leaving)
					}
					finishNothing(t, h)
				}
				_, err := Cleanup(t.Context(), o, false)
				must(t, err)
				checkDevice(t, "lo", "127.0.0.1/8", "::1/128")
				checkDevice(t, "second")
				if ledgerExists(o) {
					t.Error("the ledger still exists after Cleanup")
				}
			})
		}
	}
}

// killAfter starts a round and stops after the step named after, as if the process were killed.
func killAfter(t *testing.T, h *Host, after string, f *balancer.Frontend) {
	t.Helper()
	d := desired(f)
	if after == "everything" {
		must(t, h.Prepare(t.Context(), d))
		return
	}
	must(t, h.updateView())
	h.at(f.Addr).wanted = true
	h.plan()
	h.record(f.Addr, h.device.name)
	must(t, h.ledger.save())
	switch after {
	case "the guard":
		failed := h.guard.Prepare(t.Context())
		must(t, errors.Join(failed[:]...))
	case "the removal":
		must(t, h.remove(h.at(f.Addr), "lo"))
	}
}

// TestAddressesWaitForTheGuard closes the guard's connection. While the guard is incomplete, no
// address may be added, and frontends with source ranges must wait.
func TestAddressesWaitForTheGuard(t *testing.T) {
	_, client := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	listen(t, 80)
	apply(t, h, frontend("10.96.0.10:80"))
	h.guard.Close()
	plain, tight := frontend("10.1.0.1:81"), frontend("10.1.0.1:80", sources("10.9.0.0/16"))
	more := desired(frontend("10.96.0.10:80"), frontend("10.96.0.11:80"), plain, tight)
	ready := func(f, old *balancer.Frontend) error {
		return h.Ready(dataplane.Change{Key: f.Key, Old: old, New: f}, true)
	}
	for range 2 {
		if h.Prepare(t.Context(), more) == nil || h.Finish(t.Context(), more.Frontends) == nil {
			t.Fatal("Prepare or Finish without a guard connection: error = nil, want an error")
		}
	}
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32")
	checkWhere(t, h, "10.96.0.11", "none")
	if err := ready(tight, nil); err == nil || !strings.Contains(err.Error(), "can't be enforced yet") {
		t.Errorf("Ready = %v, want an error because the frontend has source ranges", err)
	}
	must(t, ready(plain, nil))
	must(t, ready(tight, tight)) // only endpoints change, and the source ranges stay the same
	idle := frontend("10.1.0.1:80", sources("10.9.0.0/16"), func(f *balancer.Frontend) { f.Backends = nil })
	if ready(tight, idle) == nil || ready(tight, plain) == nil {
		t.Error("Ready = nil, want an error because the frontend has new source ranges")
	}
	must(t, h.Close())
	h = newHost(t, o)
	must(t, h.Prepare(t.Context(), more))
	must(t, ready(tight, nil))
	checkAttempt(t, client, "10.1.0.1:80", silence)
	must(t, h.Finish(t.Context(), more.Frontends))
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32", "10.96.0.11/32")
	checkIntact(t, h)
}

// TestUnusableTables makes the nf_tables trial fail. Addresses must still be added. Until nf_tables
// works, a problem must report each missing protection and the reason.
func TestUnusableTables(t *testing.T) {
	network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	plain, tight := frontend("10.96.0.12:80"), frontend("10.1.0.1:80", sources("10.9.0.0/16"))
	h := newHost(t, o)
	t.Run("unusable", func(t *testing.T) {
		withoutTables(t)
		apply(t, h, plain, tight)
		checkWhere(t, h, "10.96.0.12", "lo")
		text := fmt.Sprint(h.Problems())
		for _, want := range []string{"answer on every port", "source_ranges are not enforced by the kernel: vipd enforces them itself", "nf_tables can't hold vipd's rules for ipv4 here", "CAP_NET_ADMIN: run as root"} {
			if !strings.Contains(text, want) {
				t.Errorf("problems lack %q: %s", want, text)
			}
		}
		c := dataplane.Change{Key: tight.Key, New: tight}
		must(t, h.Ready(c, true))
		if err := h.Ready(c, false); err == nil || !strings.Contains(err.Error(), "nf_tables") || !strings.Contains(err.Error(), "userspace") {
			t.Errorf("Ready = %v, want an error with the reason and advice", err)
		}
		must(t, h.Ready(dataplane.Change{Key: tight.Key, Old: tight, New: tight}, false)) // a frontend that is already served must continue
		if reason, err := h.Intact(t.Context()); reason != "" || err != nil {
			t.Errorf("Intact = %q, %v; want no reason", reason, err)
		}
	})
	h.Resync(true)
	apply(t, h, plain, tight)
	if p := h.Problems(); len(p) != 0 {
		t.Errorf("with working nf_tables: problems = %v, want none", p)
	}
	checkIntact(t, h)
}

// TestUnreadableView loses events while the kernel's state can't be read. vipd must keep using the
// last known state, and must not add or remove anything by mistake.
func TestUnreadableView(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	h.readView = func(*netlink.Handle) (view, error) { return view{}, errors.New("no memory for it") }
	h.stale = true
	known := len(h.view.addrs)
	both := desired(frontend("10.96.0.10:80"), frontend("10.1.0.1:80"))
	if err := h.Prepare(t.Context(), both); err == nil {
		t.Fatal("without a view: Prepare = nil, want an error")
	}
	if err := h.Finish(t.Context(), balancer.Desired{}.Frontends); err == nil {
		t.Fatal("without a view: Finish = nil, want an error")
	}
	if !h.stale || len(h.view.addrs) != known || h.ledger.Addresses[addrOf("10.96.0.10")] == "" {
		t.Fatalf("stale = %t, addresses = %d, want %d; added = %v", h.stale, len(h.view.addrs), known, h.ledger.Addresses)
	}
	h.readView = readView
	must(t, h.Prepare(t.Context(), both))
	must(t, h.Finish(t.Context(), both.Frontends))
	checkWhere(t, h, "10.96.0.10", "lo")
	checkWhere(t, h, "10.1.0.1", "host")
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32")

	// The host has an address that is missing from the Host's view. vipd must query the kernel
	// before it adds this address as a VIP.
	l.Host().AddAddr("client", "10.1.0.8/24")
	must(t, h.updateView())
	clear(h.open)
	delete(h.view.addrs, netip.MustParseAddr("10.1.0.8"))
	apply(t, h, frontend("10.96.0.10:80"), frontend("10.1.0.8:80"))
	checkWhere(t, h, "10.1.0.8", "host")
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32")
	checkAttempt(t, l.Host(), "10.1.0.8:22", refused) // refused because nothing listens on the port
	listen(t, 22)
	checkAttempt(t, l.Host(), "10.1.0.8:22", open)

	// A local route to the VIPs' network must not make VIPs count as the host's own addresses.
	ip(t, "route add local 10.97.0.0/16 dev lo")
	apply(t, h, frontend("10.97.0.10:80"))
	checkWhere(t, h, "10.97.0.10", "lo")
}

// TestRoundCost performs rounds with thousands of VIPs. A round's allocations must depend only on
// the number of changes.
func TestRoundCost(t *testing.T) {
	network(t)
	o := options(t, xtables.NFT)
	o.Interface, o.StrictARP = "lo", false
	h := newHost(t, o)
	many := testwait.Soak(2000, 10_000)
	var frontends []*balancer.Frontend
	for i := range many {
		f := frontend(fmt.Sprintf("10.97.%d.%d:80", i/250, 1+i%250))
		if i%100 == 99 {
			f = frontend(fmt.Sprintf("[fd00:97::%x]:80", i))
		}
		frontends = append(frontends, f)
	}
	all := desired(frontends...)
	// If the host has no IPv6 address, rounds must not repeat the search for a source address.
	ip(t, "addr del fd01::1/64 dev client")
	round := func(d balancer.Desired) {
		must(t, h.Prepare(t.Context(), d))
		must(t, h.Finish(t.Context(), d.Frontends))
	}
	round(all)
	round(all)
	const maxAllocs = 500 // far fewer than one per VIP; other goroutines also allocate
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"nothing changed", func() {}},
		{"a frontend's backends changed", func() {
			f := *all.Frontends.At(frontends[7].Key)
			f.Backends = append([]balancer.Backend(nil), f.Backends...)
			f.Backends[0].Weight++
			all.Frontends = all.Frontends.Set(f.Key, &f)
		}},
		{"a frontend was added or removed", func() {
			if f := frontend("10.97.0.8:443"); all.Frontends.Has(f.Key) {
				all.Frontends, all.Addresses = all.Frontends.Delete(f.Key), all.Addresses.Set(f.Addr, 1)
			} else {
				all.Frontends, all.Addresses = all.Frontends.Set(f.Key, f), all.Addresses.Set(f.Addr, 2)
			}
		}},
	} {
		began := time.Now()
		got := testing.AllocsPerRun(10, func() {
			c.do()
			round(all)
		})
		t.Logf("%s: %.0f allocations, %v", c.name, got, time.Since(began)/11)
		if got > maxAllocs {
			t.Errorf("%s: allocations = %.0f, want at most %d", c.name, got, maxAllocs)
		}
	}
	checkIntact(t, h)
	for _, c := range []struct {
		what string
		look func() (string, error)
	}{
		{"addresses", func() (string, error) { return h.addressesIntact(), nil }},
		{"everything", func() (string, error) { return h.Intact(t.Context()) }},
	} {
		began := time.Now()
		got := testing.AllocsPerRun(10, func() {
			if reason, err := c.look(); reason != "" || err != nil {
				t.Fatalf("Intact = %q, %v; want no reason", reason, err)
			}
		})
		t.Logf("a check of %s: %.0f allocations, %v", c.what, got, time.Since(began)/11)
		if got > maxAllocs {
			t.Errorf("allocations to check %s = %.0f, want at most %d", c.what, got, maxAllocs)
		}
	}
	finishNothing(t, h)
}

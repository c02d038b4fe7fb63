package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// TestAddressLifecycle adds VIPs, removes them in steps, and cleans up. vipd must change only
// addresses that it has added. An address must stay while a frontend on it is applied.
func TestAddressLifecycle(t *testing.T) {
	l, _ := network(t)
	l.Host().AddAddr("lo", "10.96.0.99/32") // one of the host's own addresses
	primeTools(t)
	before := dumpHost(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)

	apply(t, h,
		frontend("10.96.0.10:80"), frontend("10.96.0.10:443"), frontend("[fd00:96::10]:80"), frontend("10.96.0.99:80"),
		frontend("127.0.0.7:80"), frontend("10.1.0.1:30080", nodePort))
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32", "10.96.0.99/32", "fd00:96::10/128")
	want := map[string]string{"10.96.0.10": "lo", "fd00:96::10": "lo", "10.96.0.99": "host", "127.0.0.7": "host"}
	if got := holders(h); !maps.Equal(got, want) {
		t.Fatalf("holders = %v, want %v", got, want)
	}
	if p := h.Problems(); len(p) != 0 {
		t.Fatalf("problems = %v, want none", p)
	}
	checkIntact(t, h)

	// Remove one of the two frontends on an address, and the only frontend on another address.
	apply(t, h, frontend("10.96.0.10:443"))
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32", "10.96.0.99/32")

	// The VIP is no longer desired, but its frontend is still applied, so it stays.
	must(t, h.Prepare(t.Context(), balancer.Desired{}))
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32", "10.96.0.99/32")
	finishNothing(t, h)
	checkUnchanged(t, before)
	if ledgerExists(o) {
		t.Fatal("the ledger still exists after Cleanup")
	}
}

func checkIntact(t *testing.T, h *Host) {
	t.Helper()
	if reason, err := h.Intact(t.Context()); reason != "" || err != nil {
		t.Fatalf("Intact = %q, %v; want no reason", reason, err)
	}
}

// TestBridgeInsteadOfDummy holds VIPs on a bridge, because some kernels lack dummy devices. The
// VIPs must survive the loss of the ledger. After the bridge is removed, the VIPs must be added
// again.
func TestBridgeInsteadOfDummy(t *testing.T) {
	network(t)
	primeTools(t)
	before := dumpHost(t)
	o := options(t, xtables.NFT)
	o.StrictARP = false // with strict ARP, the ledger that is lost below would contain the old arp_ignore
	bridge := func(name string) netlink.Link {
		return &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, Alias: deviceAlias}}
	}
	h := newHost(t, o)
	h.newLink = bridge
	apply(t, h, frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80"))
	checkDevice(t, "vipd0", "10.96.0.10/32", "fd00:96::10/128")
	checkIntact(t, h)

	// Simulate a process that is killed and loses its ledger. The next process must recognize the
	// device by its alias.
	must(t, h.Close())
	must(t, os.RemoveAll(o.RunDir))
	h = newHost(t, o)
	h.newLink = bridge
	apply(t, h, frontend("10.96.0.10:80"))
	checkDevice(t, "vipd0", "10.96.0.10/32")
	checkIntact(t, h)

	for _, do := range [][]string{{"link", "set", "vipd0", "down"}, {"link", "del", "vipd0"}} {
		if out, err := exec.Command("ip", do...).CombinedOutput(); err != nil {
			t.Fatalf("ip %q: %v: %s", do, err, out)
		}
		reason, err := h.Intact(t.Context())
		must(t, err)
		if !strings.Contains(reason, "device") && !strings.Contains(reason, "gone") {
			t.Fatalf("reason after %q = %q, want a reason that names the device", do, reason)
		}
		h.Resync(true)
		apply(t, h, frontend("10.96.0.10:80"))
		checkDevice(t, "vipd0", "10.96.0.10/32")
		checkSource(t, h, "10.96.0.10", "10.1.0.1")
		checkIntact(t, h)
	}
	finishNothing(t, h)
	checkUnchanged(t, before)
}

// TestDummyDevice adds a VIP to a real dummy device, or to lo if the kernel has no dummy devices.
// Cleanup must remove it.
func TestDummyDevice(t *testing.T) {
	network(t)
	o := options(t, xtables.Auto)
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	held := h.Addresses()
	switch {
	case len(held) == 1 && held[0].Where == "vipd0":
		checkDevice(t, "vipd0", "10.96.0.10/32")
	case len(held) == 1 && held[0].Where == "lo" && strings.Contains(held[0].Note, "no dummy"):
		checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32")
	default:
		t.Fatalf("addresses = %+v, want a VIP on a dummy device or on lo", held)
	}
	checkIntact(t, h)
	must(t, h.Release(t.Context()))
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128")
	checkDevice(t, "vipd0")
}

// TestOwnAddressesComeAndGo adds a VIP to another device of the host as the host's own address, and
// then removes it there. vipd must remove its own copy of the address, and add it again later.
func TestOwnAddressesComeAndGo(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	web := frontend("10.96.0.10:80")
	apply(t, h, web)
	checkWhere(t, h, "10.96.0.10", "lo")

	// The VIP becomes the host's own address. vipd must remove the copy that it has added, and the
	// guard's rules for the address, because these rules would block the host's programs.
	l.Host().AddAddr("client", "10.96.0.10/24")
	reason, err := h.Intact(t.Context())
	must(t, err)
	if !strings.Contains(reason, "also on a device other") {
		t.Fatalf("reason = %q, want a reason that names the other device", reason)
	}
	h.Resync(true)
	apply(t, h, web)
	checkWhere(t, h, "10.96.0.10", "host")
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128")
	checkAttempt(t, l.Host(), "10.96.0.10:22", refused) // refused because nothing listens on the port
	listen(t, 22)
	checkAttempt(t, l.Host(), "10.96.0.10:22", open)
	checkIntact(t, h)

	// The host loses its own address, so vipd must add it again.
	l.Host().DelAddr("client", "10.96.0.10/24")
	if reason, err := h.Intact(t.Context()); err != nil || !strings.Contains(reason, "is missing") {
		t.Fatalf("reason = %q, %v; want a reason that says missing", reason, err)
	}
	apply(t, h, web)
	checkWhere(t, h, "10.96.0.10", "lo")
	checkAttempt(t, l.Host(), "10.96.0.10:22", refused)

	// Another program removes the address that vipd has added.
	l.Host().DelAddr("lo", "10.96.0.10/32")
	if reason, err := h.Intact(t.Context()); err != nil || !strings.Contains(reason, "is missing") {
		t.Fatalf("reason = %q, %v; want a reason that says missing", reason, err)
	}
	apply(t, h, web)
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32")
	checkSource(t, h, "10.96.0.10", "10.1.0.1")

	// The host itself has this service's address.
	apply(t, h, frontend("10.1.0.1:80"))
	finishNothing(t, h)
	checkDevice(t, "client", "10.1.0.1/24", "fd01::1/64")
}

func checkWhere(t *testing.T, h *Host, a, want string) {
	t.Helper()
	if got := holders(h)[a]; got != want {
		t.Fatalf("holder of %s = %q, want %q", a, got, want)
	}
}

// checkSource checks the source address of the host's connections to a VIP. It calls Intact between
// attempts, because a busy kernel may finish adding IPv6 addresses late.
func checkSource(t *testing.T, h *Host, vip, want string) {
	t.Helper()
	lab.Eventually(t, 10*time.Second, "the source", func() error {
		c, err := net.Dial("udp", net.JoinHostPort(vip, "9"))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if got := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr(); got != addrOf(want) {
			reason, err := h.Intact(t.Context())
			return fmt.Errorf("source of connections to %s = %s, want %s; Intact = %q, %v", vip, got, want, reason, err)
		}
		return nil
	})
}

// TestSourceOfConnections changes the node's addresses and routes. The host's connections to VIPs
// must use the node's own address as their source.
func TestSourceOfConnections(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	both := []*balancer.Frontend{frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80")}
	apply(t, h, both...)
	checkSource(t, h, "10.96.0.10", "10.1.0.1")
	checkSource(t, h, "fd00:96::10", "fd01::1")
	for _, r := range h.ourRoutes(unix.RTPROT_KERNEL) {
		if r.Dst.IP.Equal(net.IP(addrOf("10.96.0.10").AsSlice())) {
			t.Fatalf("route to the VIP = %v, want no route that the kernel has added", r)
		}
	}

	// A second link gets the default route, so its address becomes the source.
	other := l.Add("other")
	l.Link(l.Host(), other, "10.2.0.1/24", "10.2.0.2/24", "fd02::1/64", "fd02::2/64")
	l.Host().Default("10.2.0.2", "fd02::2")
	h.Resync(true)
	apply(t, h, both...)
	checkSource(t, h, "10.96.0.10", "10.2.0.1")
	checkSource(t, h, "fd00:96::10", "fd02::1")

	// The address of the second link is removed. The VIP must stay local, and its route must use
	// another source.
	l.Host().DelAddr("other", "10.2.0.1/24")
	l.Host().DelAddr("other", "fd02::1/64")
	if to, err := RouteTo(addrOf("10.96.0.10")); err != nil || !to.Local {
		t.Fatalf("without the node's address: RouteTo(VIP) = %+v, %v; want a local route", to, err)
	}
	if reason, err := h.Intact(t.Context()); err != nil || !strings.Contains(reason, "no longer has the address 10.2.0.1") {
		t.Fatalf("Intact = %q, %v; want a reason that names the node's address", reason, err)
	}
	apply(t, h, both...)
	checkSource(t, h, "10.96.0.10", "10.1.0.1")
	checkSource(t, h, "fd00:96::10", "fd01::1")
	checkIntact(t, h)

	// A service now uses the node's only addresses as its VIPs.
	finishNothing(t, h)
	h.Resync(true)
	apply(t, h, append(both, frontend("10.1.0.1:80"), frontend("[fd01::1]:80"))...)
	checkSource(t, h, "10.96.0.10", "10.1.0.1")
	checkSource(t, h, "fd00:96::10", "fd01::1")
	must(t, h.Release(t.Context()))
	if routes := append(h.ourRoutes(routeProtocol), h.ourRoutes(plainProtocol)...); len(routes) != 0 {
		t.Fatalf("routes = %v, want none", routes)
	}
}

// TestRestartAfterKill closes a Host without cleanup, as if it were killed, and starts another Host
// with other VIPs. Clients of VIPs that both Hosts hold must not be interrupted, and obsolete
// objects must be removed.
func TestRestartAfterKill(t *testing.T) {
	l, client := network(t)
	primeTools(t)
	before := dumpHost(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	first := newHost(t, o)
	apply(t, first, frontend("10.96.0.10:80"), frontend("10.96.0.11:80", sources("10.1.0.0/24")), frontend("[fd00:96::10]:80"))
	must(t, first.Close()) // like kill -9, Close removes nothing

	// The host gets an address before the second Host starts.
	l.Host().AddAddr("lo", "10.96.0.50/32")
	second := newHost(t, o)
	own, _, err := second.LocalAddresses(nil)
	must(t, err)
	if got := fmt.Sprint(own); got != "[10.1.0.1 10.96.0.50 fd01::1]" {
		t.Fatalf("own addresses = %s, want 10.1.0.1, 10.96.0.50 and fd01::1", got)
	}
	listen(t, 80)
	want := desired(frontend("10.96.0.10:80"), frontend("10.96.0.50:80"), frontend("10.96.0.12:80"))
	must(t, second.Prepare(t.Context(), want))
	checkAttempt(t, client, "10.96.0.10:80", open) // clients must not be interrupted between Prepare and Finish
	must(t, second.Finish(t.Context(), want.Frontends))
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32", "10.96.0.12/32", "10.96.0.50/32")
	checkWhere(t, second, "10.96.0.50", "host")
	checkIntact(t, second)
	finishNothing(t, second)
	l.Host().DelAddr("lo", "10.96.0.50/32")
	checkUnchanged(t, before)
}

// TestLostLedger removes the ledger. vipd must write it again. After a restart without the ledger,
// vipd must recognize its VIPs by their routes.
func TestLostLedger(t *testing.T) {
	l, _ := network(t)
	l.Host().AddAddr("lo", "10.96.0.99/32")
	o := options(t, xtables.NFT)
	o.Interface, o.ManageSysctls = "lo", false // without the ledger, vipd can't restore the old values of sysctls
	all := []*balancer.Frontend{frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80"), frontend("10.96.0.99:80")}
	first := newHost(t, o)
	apply(t, first, all...)
	must(t, os.RemoveAll(o.RunDir))
	first.Resync(true)
	apply(t, first, all...)
	if !ledgerExists(o) {
		t.Error("the ledger is missing")
	}
	must(t, os.RemoveAll(o.RunDir))
	must(t, first.Close())
	second := newHost(t, o)
	apply(t, second, all...)
	want := map[string]string{"10.96.0.10": "lo", "fd00:96::10": "lo", "10.96.0.99": "host"}
	if got := holders(second); !maps.Equal(got, want) {
		t.Errorf("after a restart without the ledger: holders = %v, want %v", got, want)
	}
	must(t, second.Close())
	must(t, os.RemoveAll(o.RunDir))
	if done, err := Cleanup(t.Context(), o, false); err != nil {
		t.Errorf("steps of Cleanup = %q, error = %v; want no error", done, err)
	}
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.99/32")
}

// TestStaleLedger reads a ledger from an earlier boot. The ledger contains one of the host's own
// addresses. The host must keep this address.
func TestStaleLedger(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	l.Host().AddAddr("lo", "10.96.0.10/32")
	stale := &ledger{
		Boot: "another", Namespace: "net:[1]", Addresses: map[netip.Addr]string{addrOf("10.96.0.10"): "lo"},
		Sysctls: map[string]sysctlRecord{"net.ipv4.conf.all.arp_ignore": {Old: "1", Set: "0"}},
	}
	stale.path, stale.changed = o.RunDir+"/"+ledgerFile, true
	must(t, stale.save())
	done, err := Cleanup(t.Context(), o, false)
	must(t, err)
	if len(done) != 0 {
		t.Fatalf("steps of Cleanup = %q, want none", done)
	}
	stale.changed = true
	must(t, stale.save())
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	checkWhere(t, h, "10.96.0.10", "host")
	finishNothing(t, h)
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32")
}

// TestBindFalse uses bind = false while another program adds and removes a VIP. vipd must not
// report either change as drift or as a problem.
func TestBindFalse(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface, o.Bind = "lo", false
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	check := func(where string) {
		t.Helper()
		checkIntact(t, h)
		checkWhere(t, h, "10.96.0.10", where)
		if p := h.Problems(); len(p) != 0 {
			t.Fatalf("problems = %v, want none", p)
		}
	}
	check("none")
	for range 2 {
		l.Host().AddAddr("client", "10.96.0.10/32")
		check("host")
		l.Host().DelAddr("client", "10.96.0.10/32")
		check("none")
	}
	if note := h.Addresses()[0].Note; !strings.Contains(note, "bind = false") {
		t.Fatalf("the VIP's note = %q, want a note that says bind = false", note)
	}
}

// TestGatewayIsNotAdded defines a VIP that is one of the host's gateways. vipd must not add it, and
// must report a problem with the reason.
func TestGatewayIsNotAdded(t *testing.T) {
	l, _ := network(t)
	l.Host().Default("10.1.0.2", "fd01::2")
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	for _, vip := range []string{"10.1.0.2", "fd01::2"} {
		apply(t, h, frontend(netip.AddrPortFrom(addrOf(vip), 80).String()), frontend("10.96.0.10:80"))
		checkWhere(t, h, vip, "none")
		checkWhere(t, h, "10.96.0.10", "lo")
		if p := h.Problems(); len(p) != 1 || !strings.Contains(p[0].Text, vip+" is not local: it is the address of a gateway") {
			t.Fatalf("problems = %v, want a problem about the gateway", p)
		}
		checkIntact(t, h)
	}
}

// TestBroadcastAddressIsNotAdded defines two VIPs: the broadcast address of a connected network,
// and the last address of another network. vipd must report a problem for the broadcast address
// instead of adding it, and must add the other VIP.
func TestBroadcastAddressIsNotAdded(t *testing.T) {
	network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	apply(t, h, frontend("10.1.0.255:80"), frontend("10.96.0.255:80"))
	checkWhere(t, h, "10.1.0.255", "none")
	checkWhere(t, h, "10.96.0.255", "lo")
	if p := h.Problems(); len(p) != 1 || !strings.Contains(p[0].Text, "10.1.0.255 is not local: it is the broadcast address of 10.1.0.0/24") {
		t.Fatalf("problems = %v, want a problem about the broadcast address", p)
	}
	checkIntact(t, h)
}

// TestProblemOfLeavingVIP removes the service of a VIP that is one of the host's gateways. The VIP
// then waits for its last connections. vipd must not report it as a problem or list it as held,
// because the host never held it.
func TestProblemOfLeavingVIP(t *testing.T) {
	l, _ := network(t)
	l.Host().Default("10.1.0.2")
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	apply(t, h, frontend("10.1.0.2:80"))
	if p := h.Problems(); len(p) != 1 {
		t.Fatalf("problems = %v, want a problem about the gateway", p)
	}
	want := desired(frontend("10.96.0.10:80"))
	want.Addresses = want.Addresses.Set(addrOf("10.1.0.2"), 0)
	must(t, h.Prepare(t.Context(), want))
	must(t, h.Finish(t.Context(), want.Frontends))
	if p := h.Problems(); len(p) > 0 {
		t.Errorf("problems = %v, want none", p)
	}
	if all := h.Addresses(); len(all) != 1 || all[0].Addr != addrOf("10.96.0.10") {
		t.Errorf("addresses = %v, want only 10.96.0.10", all)
	}
}

// TestMissingDeviceIsNoDrift changes addresses.interface to a missing device, and starts another
// Host. Intact must not report the missing device as another program's change.
func TestMissingDeviceIsNoDrift(t *testing.T) {
	network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	apply(t, newHost(t, o), frontend("10.96.0.10:80"))
	o.Interface = "eth7"
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	checkIntact(t, h)
}

// TestARPAnswers sends an ARP request for a held VIP. The host must answer only if strict_arp is
// off.
func TestARPAnswers(t *testing.T) {
	for _, strict := range []bool{true, false} {
		t.Run(fmt.Sprintf("strict %t", strict), func(t *testing.T) {
			l, client := network(t)
			client.Exec("ip", "route", "add", "10.96.0.10/32", "dev", "host")
			if strict { // expects no answer, so a short timeout is enough; with strict_arp off, the answer may be late
				client.Sysctl("net.ipv4.neigh.host.retrans_time_ms", "50")
			}
			primeTools(t)
			before := dumpHost(t)
			o := options(t, xtables.NFT)
			o.Interface, o.StrictARP = "lo", strict
			h := newHost(t, o)
			apply(t, h, frontend("10.96.0.10:80"))
			if answered := pings(t, client, "10.96.0.10"); answered != !strict {
				t.Errorf("the host answers ARP for the VIP = %t, want %t", answered, !strict)
			}
			if known := strings.Contains(client.Exec("ip", "neigh", "show", "10.96.0.10"), "lladdr"); known != !strict {
				t.Errorf("the client has a MAC address for the VIP = %t, want %t", known, !strict)
			}
			if strict {
				checkSysctl(t, l, "net.ipv4.conf.all.arp_ignore", "1")
				checkSysctl(t, l, "net.ipv4.conf.all.arp_announce", "2")
			}
			finishNothing(t, h)
			checkUnchanged(t, before)
		})
	}
}

// TestSilencedAddresses holds a VIP on lo, where another program has an address. A warning must
// name the program's address until the address is removed.
func TestSilencedAddresses(t *testing.T) {
	l, _ := network(t)
	lab.Need(t, "ip")
	l.Host().Exec("ip", "addr", "add", "10.9.9.9/32", "dev", "lo")
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	const want = "hosts on the LAN can no longer reach 10.9.9.9 on lo"
	if p := h.Problems(); len(p) != 1 || !strings.HasPrefix(p[0].Text, want) {
		t.Errorf("problems = %v, want a problem that says %q", p, want)
	}
	l.Host().Exec("ip", "addr", "del", "10.9.9.9/32", "dev", "lo")
	lab.Eventually(t, time.Minute, "no problem without the address", func() error {
		reason, err := h.Intact(t.Context())
		if reason != "" {
			apply(t, h, frontend("10.96.0.10:80"))
		}
		if p := h.Problems(); len(p) != 0 {
			return fmt.Errorf("problems = %v, want none", p)
		}
		return err
	})
	finishNothing(t, h)
}

func checkSysctl(t *testing.T, l *lab.Lab, name, want string) {
	t.Helper()
	if got := l.Host().ReadSysctl(name); got != want {
		t.Fatalf("%s = %s, want %s", name, got, want)
	}
}

// TestSysctlsOfOthers changes sysctls that vipd has set before. vipd must keep the new values.
func TestSysctlsOfOthers(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	l.Host().Sysctl("net.ipv4.conf.all.arp_ignore", "2")
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	checkSysctl(t, l, "net.ipv4.conf.all.arp_ignore", "2") // stricter than vipd needs
	checkSysctl(t, l, "net.ipv4.conf.all.arp_announce", "2")
	l.Host().Sysctl("net.ipv4.conf.all.arp_announce", "1")
	finishNothing(t, h)
	checkSysctl(t, l, "net.ipv4.conf.all.arp_announce", "1")
	checkSysctl(t, l, "net.ipv4.conf.all.arp_ignore", "2")

	// If manage_sysctls is false, vipd only reports the sysctls.
	o.ManageSysctls = false
	l.Host().Sysctl("net.ipv4.conf.all.arp_ignore", "0")
	h = newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	p := h.Problems()
	if len(p) != 2 || !strings.Contains(p[0].Text, "sysctl -w net.ipv4.conf.all.arp_ignore=1") {
		t.Fatalf("problems = %v, want two problems about sysctls", p)
	}
	checkSysctl(t, l, "net.ipv4.conf.all.arp_ignore", "0")
}

// TestCleanupSaysWhatItLeaves runs Cleanup after vipd has enabled forwarding. If another program
// may need forwarding or has changed the sysctl, Cleanup must leave its value alone and say why.
func TestCleanupSaysWhatItLeaves(t *testing.T) {
	l, _ := network(t)
	lab.Need(t, "ip")
	for _, c := range []struct {
		name, meanwhile, after, says string
		bridge                       bool
	}{
		{"no other", "1", "0", "set sysctl net.ipv4.ip_forward back from 1 to 0", false},
		{"containers", "1", "1", "leave sysctl net.ipv4.ip_forward at 1 (0 before vipd started): bridge docker7 might need it", true},
		{"set since", "2", "2", "leave sysctl net.ipv4.ip_forward at 2 (0 before vipd started): another program has set it since", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.Host().Sysctl("net.ipv4.ip_forward", "0")
			o := options(t, xtables.NFT)
			o.Interface, o.Mode.Forward = "lo", true
			h := newHost(t, o)
			apply(t, h, frontend("10.96.0.10:80"))
			checkSysctl(t, l, "net.ipv4.ip_forward", "1")
			must(t, h.Close())
			if c.bridge {
				l.Host().Exec("ip", "link", "add", "docker7", "up", "type", "bridge")
				t.Cleanup(func() { l.Host().Exec("ip", "link", "del", "docker7") })
			}
			l.Host().Sysctl("net.ipv4.ip_forward", c.meanwhile)
			half := filepath.Join(o.RunDir, ledgerFile+".123")
			must(t, os.WriteFile(half, []byte("half"), 0o600))
			for _, dry := range []bool{true, false} {
				done, err := Cleanup(t.Context(), o, dry)
				must(t, err)
				if !slices.Contains(done, c.says) || !slices.Contains(done, "remove file "+half) {
					t.Errorf("dry = %v: steps of Cleanup = %q, want %q and %s removed", dry, done, c.says, half)
				}
			}
			checkSysctl(t, l, "net.ipv4.ip_forward", c.after)
			if left, err := os.ReadDir(o.RunDir); err != nil || len(left) > 0 {
				t.Errorf("files in the run folder = %v, %v; want none", left, err)
			}
		})
	}
}

// TestSysctlFiles reads configuration files in the format of sysctl.d(5). setIn must find the file
// that sets a sysctl to a value.
func TestSysctlFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "50-x.conf")
	must(t, os.WriteFile(file, []byte("# net.ipv4.ip_forward=1\n-net/ipv4/ip_forward = 1\nnet.ipv4.x=2\n"), 0o600))
	for name, want := range map[string]string{"net.ipv4.ip_forward": file, "net.ipv4.x": "", "net.ipv4.y": ""} {
		if got := setIn([]string{filepath.Dir(file) + "/*.conf"}, name, "1"); got != want {
			t.Errorf("setIn(%s, 1) = %q, want %q", name, got, want)
		}
	}
}

// TestVIPsOnALink holds VIPs on the client's link. The VIPs must not answer until a frontend is
// applied. Then vipd must announce them, and they must answer.
func TestVIPsOnALink(t *testing.T) {
	l, client := network(t)
	lab.Need(t, "ip")
	o := options(t, xtables.NFT)
	o.Interface = "client"
	client.Sysctl("net.ipv4.conf.host.arp_accept", "1")
	client.Sysctl("net.ipv6.conf.host.accept_untracked_na", "1")
	client.Sysctl("net.ipv6.conf.host.forwarding", "1") // only routers accept unsolicited advertisements
	h := newHost(t, o)

	// Before a frontend is applied, the VIPs are not announced, and none of their ports answers.
	both := desired(frontend("10.1.0.10:80"), frontend("[fd01::10]:80"))
	must(t, h.Prepare(t.Context(), both))
	checkDevice(t, "client", "10.1.0.1/24", "10.1.0.10/32", "fd01::1/64", "fd01::10/128")
	if neighbours := client.Exec("ip", "neigh"); strings.Contains(neighbours, "::10 ") || strings.Contains(neighbours, ".10 ") {
		t.Errorf("the client's neighbors before a frontend is applied =\n%s\nwant no VIPs", neighbours)
	}
	for _, from := range []*lab.NS{client, l.Host()} {
		checkAttempt(t, from, "10.1.0.10:80", silence)
		checkAttempt(t, from, "[fd01::10]:80", silence)
	}
	client.Exec("ip", "neigh", "flush", "all")
	must(t, h.Finish(t.Context(), both.Frontends))
	checkAttempt(t, client, "10.1.0.10:81", refused)
	checkAttempt(t, client, "[fd01::10]:81", refused)
	lab.Eventually(t, 2*time.Second, "the announcement of the VIPs", func() error {
		neighbours := client.Exec("ip", "neigh")
		for _, a := range []string{"10.1.0.10", "fd01::10"} {
			if !strings.Contains(neighbours, a+" dev host lladdr") {
				return fmt.Errorf("the client's neighbors lack %s:\n%s", a, neighbours)
			}
		}
		return nil
	})
	client.Exec("ip", "neigh", "flush", "all")
	if !pings(t, client, "10.1.0.10") || !pings(t, client, "fd01::10") {
		t.Fatal("the VIPs do not answer on the link, want answers")
	}
	checkSource(t, h, "10.1.0.10", "10.1.0.1")
	checkSource(t, h, "fd01::10", "fd01::1")
	checkSysctl(t, l, "net.ipv4.conf.all.arp_ignore", "0")
	finishNothing(t, h)
	checkDevice(t, "client", "10.1.0.1/24", "fd01::1/64")

	o.Interface = "eth7"
	h = newHost(t, o)
	apply(t, h, frontend("10.1.0.10:80"))
	if p := h.Problems(); len(p) != 1 || !strings.Contains(p[0].Text, "there is no device eth7") {
		t.Fatalf("problems = %v, want a problem about the missing device", p)
	}
}

// TestFollowAddresses adds and removes addresses on the host. FollowAddresses must report each
// change.
func TestFollowAddresses(t *testing.T) {
	l, _ := network(t)
	h := newHost(t, options(t, xtables.NFT))
	ctx, cancel := context.WithCancel(t.Context())
	changes, ended := make(chan bool, 1), make(chan error, 1)
	go func() {
		ended <- h.FollowAddresses(ctx, func() {
			select {
			case changes <- true:
			default:
			}
		})
	}()
	lab.Eventually(t, deadlineIn, "a change", func() error { // the first events may precede the subscription
		l.Host().AddAddr("client", "10.1.0.100/24")
		l.Host().DelAddr("client", "10.1.0.100/24")
		select {
		case <-changes:
			return nil
		case <-time.After(300 * time.Millisecond):
			return errors.New("no change was reported")
		}
	})
	own, _, err := h.LocalAddresses([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/30"), netip.MustParsePrefix("fd00::/8")})
	must(t, err)
	if got := fmt.Sprint(own); got != "[10.1.0.1 fd01::1]" {
		t.Fatalf("local addresses in the networks = %s, want 10.1.0.1 and fd01::1", got)
	}
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Fatalf("FollowAddresses = %v, want context.Canceled", err)
	}
}

// TestGateways adds routes that use gateways. Before, Gateways must return nothing. Afterwards, it
// must return these gateways.
func TestGateways(t *testing.T) {
	l, _ := network(t)
	h := newHost(t, options(t, xtables.NFT))
	to := []netip.Addr{
		netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1"),
		netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("127.0.0.1"),
	}
	if got := h.Gateways(to); len(got) > 0 {
		t.Errorf("without routes: gateways = %v, want none", got)
	}
	l.Host().Default("10.1.0.2", "fd01::2")
	l.Host().Route("203.0.113.0/24", "10.1.0.3")
	if got, want := fmt.Sprint(h.Gateways(to)), "[10.1.0.2 fd01::2 10.1.0.3]"; got != want {
		t.Errorf("gateways = %s, want %s", got, want)
	}
}

// TestDeviceWithoutIPv6 disables IPv6 on a device. Only IPv6 VIPs may then cause a problem, and
// only until IPv6 is enabled again.
func TestDeviceWithoutIPv6(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	l.Host().Sysctl("net.ipv6.conf.lo.disable_ipv6", "1")
	h := newHost(t, o)
	both := []*balancer.Frontend{frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80")}
	apply(t, h, both...)
	want := map[string]string{"10.96.0.10": "lo", "fd00:96::10": "none"}
	if got := holders(h); !maps.Equal(got, want) {
		t.Fatalf("holders = %v, want %v", got, want)
	}
	p := h.Problems()
	if len(p) != 1 || p[0].Service != "web" || !strings.Contains(p[0].Text, "sysctl -w net.ipv6.conf.lo.disable_ipv6=0") {
		t.Fatalf("problems = %v, want a problem about disabled IPv6", p)
	}
	checkIntact(t, h)
	l.Host().Sysctl("net.ipv6.conf.lo.disable_ipv6", "0")
	h.Resync(true)
	apply(t, h, both...)
	checkWhere(t, h, "fd00:96::10", "lo")
	if p := h.Problems(); len(p) != 0 {
		t.Fatalf("problems = %v, want none", p)
	}
}

package host

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// awaitOnDevice waits until the VIP is on the device. Until then, it performs a round whenever
// Intact returns a reason, like the engine.
func awaitOnDevice(t *testing.T, h *Host, vip, device string) {
	t.Helper()
	f := frontend(vip)
	d := desired(f)
	lab.Eventually(t, 10*time.Second, vip+" on "+device, func() error {
		reason, err := h.Intact(t.Context())
		if err != nil {
			return err
		}
		if reason != "" {
			h.Resync(true)
		}
		if err := h.Prepare(t.Context(), d); err != nil {
			return err
		}
		if err := h.Finish(t.Context(), d.Frontends); err != nil {
			return err
		}
		if on := holders(h)[f.Addr.String()]; on != device {
			return fmt.Errorf("holder = %q, Intact = %q, problems = %v", on, reason, h.Problems())
		}
		return nil
	})
}

// TestLateDevice requests a VIP before the configured device exists, and then creates the device,
// twice. vipd must add the VIP to the device each time.
func TestLateDevice(t *testing.T) {
	network(t)
	o := options(t, xtables.Auto)
	o.Interface = "late0.5"
	h := newHost(t, o)
	apply(t, h, frontend("10.96.7.1:80"))
	if on := holders(h)["10.96.7.1"]; on != nowhere {
		t.Fatalf("before the device exists: holder of the VIP = %q, want none", on)
	}
	for range 2 {
		ip(t, "link add late0.5 type veth peer name late1")
		ip(t, "link set late0.5 up")
		awaitOnDevice(t, h, "10.96.7.1:80", "late0.5")
		ip(t, "link del late0.5")
		awaitOnDevice(t, h, "10.96.7.1:80", nowhere)
	}
}

// TestLateOwnAddress adds one of the host's own addresses after vipd has added a VIP. The host's
// connections to the VIP must then use this address as their source.
func TestLateOwnAddress(t *testing.T) {
	network(t)
	ip(t, "link add late0.5 type veth peer name late1")
	t.Cleanup(func() { ip(t, "link del late0.5") })
	ip(t, "link set late0.5 up")
	ip(t, "link set late1 up")
	o := options(t, xtables.Auto)
	o.Interface = "late0.5"
	h := newHost(t, o)
	awaitOnDevice(t, h, "10.97.0.100:80", "late0.5")
	ip(t, "addr add 10.97.0.5/24 dev late0.5")
	ip(t, "route add 198.51.100.0/24 dev late0.5")
	ip(t, "route add 203.0.113.0/24 dev late0.5 scope global")
	for _, to := range []string{"10.97.0.7", "198.51.100.1", "203.0.113.1"} {
		routes, err := h.nl.RouteGet(net.ParseIP(to))
		must(t, err)
		if len(routes) != 1 || routes[0].Src.String() != "10.97.0.5" {
			t.Errorf("routes to %s = %v, want the source 10.97.0.5", to, routes)
		}
	}
}

// TestNoRoomForLedger makes the ledger unwritable before and after a VIP is added. Prepare must
// return an error each time. vipd must add the VIP only once the ledger can be written, and must
// then keep it.
func TestNoRoomForLedger(t *testing.T) {
	network(t)
	h := newHost(t, options(t, xtables.Auto))
	path := h.ledger.path
	h.ledger.path = "/proc/nowhere/host.json"
	d := desired(frontend("10.96.7.1:80"))
	if err := h.Prepare(t.Context(), d); err == nil {
		t.Error("Prepare = nil, want an error about the ledger")
	}
	h.ledger.path = path
	must(t, h.Prepare(t.Context(), d))
	must(t, h.Finish(t.Context(), d.Frontends))
	if on := holders(h)["10.96.7.1"]; on == nowhere || on == "" {
		t.Errorf("with a writable ledger: holder of the VIP = %q, want a device; problems = %v", on, h.Problems())
	}

	// A full disk must not cause the removal of held addresses.
	on := holders(h)["10.96.7.1"]
	h.ledger.path = "/proc/nowhere/host.json"
	h.Resync(true)
	if err := h.Prepare(t.Context(), d); err == nil {
		t.Error("Prepare = nil, want an error about the ledger")
	}
	if now, p := holders(h)["10.96.7.1"], h.Problems(); now != on || len(p) > 0 {
		t.Errorf("holder of the VIP = %q, want %q; problems = %v", now, on, p)
	}
	h.ledger.path = path
	must(t, h.Prepare(t.Context(), d))
	must(t, h.Finish(t.Context(), d.Frontends))
	checkIntact(t, h)
}

// TestIPv6Enabled enables IPv6 on a device with the command that the problem recommends. vipd must
// then add the VIP.
func TestIPv6Enabled(t *testing.T) {
	network(t)
	ip(t, "link add late0.5 type veth peer name late1")
	disable, err := procSysctls{}.path(disableIPv6("late0.5"))
	must(t, err)
	must(t, os.WriteFile(disable, []byte("1"), 0))
	o := options(t, xtables.Auto)
	o.Interface = "late0.5"
	h := newHost(t, o)
	f := frontend("[fd01::77]:80")
	apply(t, h, f)
	if held := h.Addresses()[0]; held.Where != nowhere || held.Note != "IPv6 is disabled on late0.5: sysctl -w net.ipv6.conf.late0/5.disable_ipv6=0" {
		t.Errorf("addresses = %+v, want a VIP that no device has, and the command that enables IPv6", held)
	}
	must(t, os.WriteFile(disable, []byte("0"), 0))
	awaitOnDevice(t, h, "[fd01::77]:80", "late0.5")
}

// TestLateRoute simulates a kernel that adds its own route to a VIP late. vipd must remove this
// route.
func TestLateRoute(t *testing.T) {
	network(t)
	h := newHost(t, options(t, xtables.Auto))
	a := netip.MustParseAddr("fd01::77")
	apply(t, h, frontend("[fd01::77]:80"))
	kernels := func() bool {
		out, err := exec.Command("ip", "-6", "route", "show", "table", "local", "fd01::77", "proto", "kernel").Output()
		must(t, err)
		return len(out) > 0
	}
	look := func() {
		t.Helper()
		if reason, err := h.Intact(t.Context()); reason != "" || err != nil {
			t.Fatalf("Intact = %q, %v; want no reason", reason, err)
		}
	}
	gone := func(what string) {
		t.Helper()
		lab.Eventually(t, 10*time.Second, what, func() error {
			if look(); kernels() || h.at(a).arriving {
				return fmt.Errorf("kernel's route exists = %v, arriving = %v; want neither", kernels(), h.at(a).arriving)
			}
			return nil
		})
	}
	gone("the arrival of the address")
	h.at(a).shadowed, h.at(a).arriving = true, true // as if unshadow had timed out
	h.reopen(h.at(a))
	ip(t, "-6 route add local fd01::77 dev "+h.device.name+" table local proto kernel metric 1")
	look()
	if !kernels() {
		t.Error("the kernel's route was removed before the address arrived")
	}
	ip(t, "-6 addr change fd01::77/128 dev "+h.device.name) // makes the kernel send its event again
	gone("the removal of the kernel's route")
}

package owner

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/test/etcdkit"
	"vipd/test/wait"
)

// verbs is the configuration of TestMovesByVipctl: a group with a VIP that the last host can't
// serve, and VIPs without a group.
const verbs = `
[vips."10.9.0.110"]
hold = "one"
group = "two"
require = "local"
[vips."10.9.0.111"]
hold = "one"
group = "two"
[services.near]
vips = ["10.9.0.110"]
ports = [{ port = 9000, target_port = 9001, protocol = "udp" }]
endpoints = [{ address = "10.9.0.11" }, { address = "10.9.0.12" }]
[vips."10.9.0.112"]
hold = "one"
[vips."10.9.0.113"]
hold = "one"
[vips."10.9.0.114"]
hold = "one"
[vips."10.9.0.115"]
hold = "one"
`

// TestMovesByVipctl moves VIPs with vipctl, and checks which host has their addresses. All VIPs of
// a group must move together, and a forced move must last. A request that arrives late must be
// ignored. Balancing must distribute a loaded host's VIPs.
func TestMovesByVipctl(t *testing.T) {
	f := newFleet(t, "nftables", etcdkit.Options{})
	f.waitForOwner()
	file := filepath.Join(t.TempDir(), "verbs.toml")
	if err := os.WriteFile(file, []byte(verbs), 0o600); err != nil {
		t.Fatal(err)
	}
	first, third := f.hosts[0], f.hosts[2]
	first.vipctl("apply", "-f", file)
	v := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(n)}) }
	two := []netip.Addr{v(110), v(111)}
	for n := 110; n <= 115; n++ {
		wait.For(t, wait.Patience, "an owner of "+v(n).String(), func() bool { return f.has(v(n)) })
	}
	refused := func(want string, args ...string) {
		t.Helper()
		out, err := first.ns.Command(t.Context(), filepath.Join(f.bin, "vipctl"), append(args, "--config", first.config())...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("vipctl %v: error = %v\n%swant %q", args, err, out, want)
		}
	}

	for _, g := range f.hosts[:2] {
		first.move("@two", "--to", g.ns.Name)
		f.leadsTo(g, two...)
	}
	refused("service near has no usable endpoint on this host (--force moves it anyway)", "vip", "move", "@two", "--to", third.ns.Name)
	const announced = "10.9.0.110: announced by gw3 after "
	if out := first.vipctl("vip", "move", "@two", "--to", third.ns.Name, "--force", "--timeout", wait.Patience.String()); !strings.HasPrefix(out, announced) {
		t.Errorf("forced move: output = %q, want %q", out, announced)
	}
	f.leadsTo(third, two...)

	third.relays[0].Cut()
	wait.For(t, wait.Patience, "vipctl to say that gw3 has not answered", func() bool { // vipctl's timeout of a second may expire before gw3 has received the request
		out, err := first.ns.Command(t.Context(), filepath.Join(f.bin, "vipctl"), "vip", "move", "@two", "--to", first.ns.Name, "--timeout", "1s",
			"--config", first.config()).CombinedOutput()
		if err == nil {
			t.Fatalf("move that gw3 can't receive: output = %s, want an error", out)
		}
		return strings.Contains(string(out), "gw3 has not answered in time: 10.9.0.110 stays there")
	})
	third.relays[0].Heal()
	time.Sleep(2 * time.Second) // the VIPs must not move in this time; the owner checks every second
	f.leadsTo(third, two...)
	if out := first.vipctl("get", "vips"); strings.Count(out, " force ") != 2 {
		t.Errorf("list of VIPs =\n%s\nwant a list with two forced moves", out)
	}

	for n := 112; n <= 115; n++ {
		first.move(v(n).String(), "--to", first.ns.Name)
	}
	f.leadsTo(first, v(112), v(113), v(114), v(115))
	moved := 0
	for _, m := range regexp.MustCompile(`(?m)^(10\.9\.0\.11[2-5]): gw1 -> (gw\d)$`).FindAllStringSubmatch(first.vipctl("vip", "balance"), -1) {
		f.leadsTo(f.hosts[slices.IndexFunc(f.hosts, func(g *gateway) bool { return g.ns.Name == m[2] })], netip.MustParseAddr(m[1]))
		moved++
	}
	if moved == 0 {
		t.Errorf("VIPs that balance moved from the loaded host = 0, want at least 1")
	}
}

// leadsTo waits until a client's ARP requests for VIPs return the host's MAC address.
func (f *fleet) leadsTo(g *gateway, vips ...netip.Addr) {
	f.t.Helper()
	var mac string
	if err := g.ns.Do(func() error {
		lan, err := net.InterfaceByName("lan")
		if err == nil {
			mac = lan.HardwareAddr.String()
		}
		return err
	}); err != nil {
		f.t.Fatal(err)
	}
	for _, v := range vips {
		wait.For(f.t, wait.Patience, fmt.Sprintf("%s to lead to %s", v, g.ns.Name), func() bool {
			ask(f.t, f.client, netip.AddrPortFrom(v, probePort))
			return strings.Contains(f.client.Exec("ip", "neigh", "show", v.String()), mac)
		})
	}
}

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link connects two namespaces with a veth pair. Each end is named after the namespace at the other
// end. addrs are pairs of addresses, one for a and one for b: "10.1.0.1/24", "10.1.0.2/24",
// "fd01::1/64", "fd01::2/64"; "" means none.
func (l *Lab) Link(a, b *NS, addrs ...string) {
	l.t.Helper()
	l.cable(a, b.Name, b, a.Name)
	for i, cidr := range addrs {
		switch {
		case cidr == "":
		case i%2 == 0:
			a.AddAddr(b.Name, cidr)
		default:
			b.AddAddr(a.Name, cidr)
		}
	}
}

// cable creates a veth pair with the ends nameA in a and nameB in b, both up.
func (l *Lab) cable(a *NS, nameA string, b *NS, nameB string) {
	l.t.Helper()
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: nameA, Namespace: netlink.NsFd(a.fd)},
		PeerName:  nameB, PeerNamespace: netlink.NsFd(b.fd),
	}
	if err := l.host.netlink.LinkAdd(veth); err != nil {
		l.t.Fatalf("linking %s and %s: %v", a.Name, b.Name, err)
	}
	// A namespace disappears some time after its last user, but the host's end of the link must be
	// removed before the next test.
	l.t.Cleanup(func() {
		for _, end := range []struct {
			ns   *NS
			name string
		}{{a, nameA}, {b, nameB}} {
			if link, err := end.ns.netlink.LinkByName(end.name); err == nil {
				_ = end.ns.netlink.LinkDel(link) // the first of the two deletes removes both ends
			}
		}
	})
	a.linkUp(nameA)
	b.linkUp(nameB)
	a.awaitReady(nameA)
	b.awaitReady(nameB)
}

// awaitReady waits until a new link has a usable link-local address, which shows that the kernel
// uses the link. Before that, the kernel drops neighbor discovery, which would delay the first
// connection by a second.
func (n *NS) awaitReady(name string) {
	n.lab.t.Helper()
	Eventually(n.lab.t, 5*time.Second, "bringing up link "+name+" in "+n.Name, func() error {
		all, err := n.netlink.AddrList(n.link(name), netlink.FAMILY_V6)
		if err != nil {
			return err
		}
		for _, a := range all {
			if a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0 {
				return nil
			}
		}
		return errors.New("it has no link-local address yet")
	})
}

// Bridge is a switch: a namespace that has only a bridge.
type Bridge struct {
	ns *NS
}

// Bridge creates a switch called name.
func (l *Lab) Bridge(name string) *Bridge {
	l.t.Helper()
	n := l.Add(name)
	dev := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}
	if err := n.netlink.LinkAdd(dev); err != nil {
		l.t.Fatalf("making bridge %s: %v", name, err)
	}
	n.linkUp("br")
	return &Bridge{n}
}

// Join connects a namespace to the switch. The namespace's end of the link is named after the
// switch, and gets the addresses.
func (b *Bridge) Join(n *NS, addrs ...string) {
	l := b.ns.lab
	l.t.Helper()
	l.cable(b.ns, n.Name, n, b.ns.Name)
	port, bridge := b.ns.link(n.Name), b.ns.link("br")
	if err := b.ns.netlink.LinkSetMaster(port, bridge); err != nil {
		l.t.Fatalf("plugging %s into %s: %v", n.Name, b.ns.Name, err)
	}
	for _, cidr := range addrs {
		n.AddAddr(b.ns.Name, cidr)
	}
}

// Plug connects or disconnects the switch port of a namespace that has joined. The namespace's link
// keeps its carrier.
func (b *Bridge) Plug(n *NS, in bool) {
	b.ns.lab.t.Helper()
	args := []string{"link", "set", n.Name, "nomaster"}
	if in {
		args = []string{"link", "set", n.Name, "master", "br"}
	}
	b.ns.Exec("ip", args...)
}

// Carrier turns the carrier on or off for the link of a namespace that has joined.
func (b *Bridge) Carrier(n *NS, on bool) {
	b.ns.lab.t.Helper()
	state := "down"
	if on {
		state = "up"
	}
	b.ns.Exec("ip", "link", "set", n.Name, state)
}

// Tap adds a tap device to the switch, for a guest (vm.Options.Tap). The returned function within
// calls its argument in the switch's namespace, where the argument can open the device.
func (b *Bridge) Tap(name string) (within func(func() error) error) {
	b.ns.lab.t.Helper()
	b.ns.Exec("ip", "tuntap", "add", "dev", name, "mode", "tap")
	b.ns.Exec("ip", "link", "set", name, "master", "br", "up")
	return b.ns.Do
}

func (n *NS) link(name string) netlink.Link {
	n.lab.t.Helper()
	link, err := n.netlink.LinkByName(name)
	if err != nil {
		n.lab.t.Fatalf("finding link %s in %s: %v", name, n.Name, err)
	}
	return link
}

func (n *NS) linkUp(name string) {
	n.lab.t.Helper()
	if err := n.netlink.LinkSetUp(n.link(name)); err != nil {
		n.lab.t.Fatalf("setting link %s up in %s: %v", name, n.Name, err)
	}
}

// AddAddr adds an address such as 10.1.0.1/24 or fd01::1/64 to the device, and waits until it is
// usable.
func (n *NS) AddAddr(dev, cidr string) {
	n.lab.t.Helper()
	link := n.link(dev)
	addr := &netlink.Addr{IPNet: n.ipNet(cidr)}
	if addr.IP.To4() == nil {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := n.netlink.AddrReplace(link, addr); err != nil {
		n.lab.t.Fatalf("adding address %s to %s in %s: %v", cidr, dev, n.Name, err)
	}
	if addr.IP.To4() == nil {
		n.awaitLocal(addr.IP)
		if dev != "lo" {
			n.awaitJoined(dev, addr.IP)
		}
	}
	if n != n.lab.host {
		return
	}
	n.lab.t.Cleanup(func() { // lo outlives the test
		if link, err := n.netlink.LinkByName(dev); err == nil {
			_ = n.netlink.AddrDel(link, addr)
		}
	})
}

// awaitLocal waits until the kernel accepts packets for an IPv6 address. The kernel adds the local
// route some time after the address.
func (n *NS) awaitLocal(ip net.IP) {
	n.lab.t.Helper()
	Eventually(n.lab.t, 5*time.Second, "taking packets for "+ip.String()+" in "+n.Name, func() error {
		routes, err := n.netlink.RouteGet(ip)
		if err == nil && (len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL) {
			err = fmt.Errorf("they would go by %v", routes)
		}
		return err
	})
}

// awaitJoined waits until the device listens for neighbour solicitations for a new IPv6 address,
// which takes some time. A neighbour that gets no answer retries only after a second.
func (n *NS) awaitJoined(dev string, ip net.IP) {
	n.lab.t.Helper()
	group := fmt.Sprintf("ff0200000000000000000001ff%x", []byte(ip[13:]))
	Eventually(n.lab.t, 5*time.Second, "listening for neighbours of "+ip.String()+" in "+n.Name, func() error {
		var text []byte
		err := n.Do(func() (err error) {
			text, err = os.ReadFile("/proc/thread-self/net/igmp6")
			return err
		})
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 2 && f[1] == dev && f[2] == group {
				return nil
			}
		}
		return errors.New("it has not joined the solicited-node group yet")
	})
}

// DelAddr removes an address from the device.
func (n *NS) DelAddr(dev, cidr string) {
	n.lab.t.Helper()
	if err := n.netlink.AddrDel(n.link(dev), &netlink.Addr{IPNet: n.ipNet(cidr)}); err != nil {
		n.lab.t.Fatalf("removing address %s from %s in %s: %v", cidr, dev, n.Name, err)
	}
}

func (n *NS) ipNet(cidr string) *net.IPNet {
	n.lab.t.Helper()
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		n.lab.t.Fatal(err)
	}
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Route adds a route to dst, such as 10.96.0.0/16, through the gateway via.
func (n *NS) Route(dst, via string) {
	n.lab.t.Helper()
	gateway, err := netip.ParseAddr(via)
	if err != nil {
		n.lab.t.Fatal(err)
	}
	route := &netlink.Route{Dst: n.ipNet(dst), Gw: gateway.AsSlice()}
	if err := n.netlink.RouteReplace(route); err != nil {
		n.lab.t.Fatalf("routing %s via %s in %s: %v", dst, via, n.Name, err)
	}
	if n != n.lab.host {
		return
	}
	n.lab.t.Cleanup(func() {
		if err := n.netlink.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
			n.lab.t.Errorf("removing the route to %s in %s: %v", dst, n.Name, err)
		}
	})
}

// MTU sets a device's MTU, which limits the packets that the device sends and receives.
func (n *NS) MTU(dev string, bytes int) {
	n.lab.t.Helper()
	if err := n.netlink.LinkSetMTU(n.link(dev), bytes); err != nil {
		n.lab.t.Fatalf("setting the MTU of %s in %s: %v", dev, n.Name, err)
	}
}

// Unreachable adds an unreachable route to dst.
func (n *NS) Unreachable(dst string) {
	n.lab.t.Helper()
	if err := n.netlink.RouteReplace(&netlink.Route{Dst: n.ipNet(dst), Type: unix.RTN_UNREACHABLE}); err != nil {
		n.lab.t.Fatalf("leaving no way to %s in %s: %v", dst, n.Name, err)
	}
}

// Default sets the default gateway of each address family.
func (n *NS) Default(gateways ...string) {
	n.lab.t.Helper()
	for _, via := range gateways {
		a, err := netip.ParseAddr(via)
		if err != nil {
			n.lab.t.Fatal(err)
		}
		all := "0.0.0.0/0"
		if a.Is6() {
			all = "::/0"
		}
		n.Route(all, via)
	}
}

package dataplanetest

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
)

// These are the ports of every service, unless a test case sets other ports. They all differ, so a
// dataplane that confuses them fails.
const (
	vipPort    = 80
	targetPort = 8080
	nodePort   = 30080
)

const serverCount = 3

// addrs holds an object's IPv4 and IPv6 address.
type addrs [2]netip.Addr

func parseAddrs(v4, v6 string) addrs { return addrs{netip.MustParseAddr(v4), netip.MustParseAddr(v6)} }

// inFamilyOf returns the address that has the same family as a.
func (p addrs) inFamilyOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return p[0]
	}
	return p[1]
}

// heldVIP returns the IPv4 and the IPv6 VIP that vipd must add to the host. No other object uses
// the other addresses in vipRanges.
func heldVIP() addrs { return vipN(10) }

// vipN returns the n-th IPv4 and IPv6 VIP in the networks that clients route to the host.
func vipN(n int) addrs {
	return parseAddrs(fmt.Sprintf("10.96.0.%d", n), fmt.Sprintf("fd00:96::%d", n))
}

// vipRanges holds the networks that clients route to the host. It is read-only.
var vipRanges = [2]string{"10.96.0.0/16", "fd00:96::/64"}

// world is a layout that has been built.
type world struct {
	host    *lab.NS
	client  *lab.NS
	clients []addrs // addresses of the client's namespace; each represents one client
	servers []*server
	vip     addrs // VIPs of the service
	node    addrs // the host's own addresses on the client's link
	own     []netip.Addr
	// detour reports whether the servers, which are on the client's link, send their packets to the
	// client through the host.
	detour bool
}

// server is a namespace that has TCP and UDP echo servers at its addresses.
type server struct {
	name string
	ns   *lab.NS
	addr addrs
	echo map[balancer.Key]*lab.Server
}

// layout defines how hosts and servers are connected in a test network.
type layout struct {
	name  string
	build func(t testing.TB, l *lab.Lab) *world
	snat  balancer.SNAT // the services' snat setting
	// sameLink reports whether clients are on the same link as the servers, so replies would bypass
	// the host.
	sameLink bool
	// noHairpin reports whether a server that connects to the VIP reaches itself, whatever the host
	// does.
	noHairpin bool
}

func layouts() []layout {
	return []layout{
		{name: "routed", build: routed, snat: balancer.AutoSNAT},
		{name: "one-arm", build: oneArm, snat: balancer.AutoSNAT, sameLink: true},
		{name: "astray", build: astray, snat: balancer.AlwaysSNAT},
		{name: "shared-vip", build: sharedVIP, snat: balancer.AutoSNAT, noHairpin: true},
		{name: "own-address", build: ownAddress, snat: balancer.AutoSNAT},
	}
}

// clientCount is the number of addresses in the client's namespace. Neither clientCount nor
// clientCount + 1 is a multiple of serverCount, so round robin sends a returning client to another
// server.
const clientCount = 7

// newWorld creates the host and a client, and connects them with a link. The client routes packets
// for VIPs through the host.
func newWorld(l *lab.Lab) *world {
	w := &world{host: l.Host(), client: l.Add("client"), vip: heldVIP(), node: parseAddrs("10.1.0.1", "fd01::1")}
	l.Link(w.host, w.client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	w.own = append(w.own, w.node[:]...)
	w.addClients("host", "10.1.0.", "fd01::")
	w.client.Default("10.1.0.1", "fd01::1")
	w.forwards()
	return w
}

// addClients adds addresses, starting at .2, to a device in the client's namespace.
func (w *world) addClients(dev, net4, net6 string) {
	for i := range clientCount {
		a := parseAddrs(net4+fmt.Sprint(i+2), net6+fmt.Sprint(i+2))
		if i > 0 {
			w.client.AddAddr(dev, a[0].String()+"/24")
			w.client.AddAddr(dev, a[1].String()+"/64")
		}
		w.clients = append(w.clients, a)
	}
}

// forwards enables IPv6 forwarding on the host. On a real host, this is the operator's task. vipd
// enables IPv4 forwarding itself if needed.
func (w *world) forwards() { w.host.Sysctl("net.ipv6.conf.all.forwarding", "1") }

// serve adds the server s to the world, and starts its echo servers.
func (w *world) serve(s *server) {
	s.echo = map[balancer.Key]*lab.Server{}
	for _, addr := range s.addr {
		for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
			k := balancer.Key{Addr: addr, Port: targetPort, Proto: proto}
			s.echo[k] = s.ns.Echo(string(proto), s.name, k.AddrPort())
		}
	}
	w.servers = append(w.servers, s)
}

// linked creates the i-th server on its own link to its gateway, the namespace to. It returns the
// server and the gateway's addresses on this link.
func linked(l *lab.Lab, to *lab.NS, i int) (s *server, gateway addrs) {
	s = &server{name: fmt.Sprint("s", i), addr: parseAddrs(fmt.Sprintf("10.2.%d.2", i), fmt.Sprintf("fd02:%d::2", i))}
	s.ns = l.Add(s.name)
	gateway = parseAddrs(fmt.Sprintf("10.2.%d.1", i), fmt.Sprintf("fd02:%d::1", i))
	l.Link(to, s.ns, gateway[0].String()+"/24", s.addr[0].String()+"/24", gateway[1].String()+"/64", s.addr[1].String()+"/64")
	s.ns.Default(gateway[0].String(), gateway[1].String())
	return s, gateway
}

func joined(l *lab.Lab, lan *lab.Bridge, net4, net6 string, i int) *server {
	s := &server{name: fmt.Sprint("s", i), addr: parseAddrs(net4+fmt.Sprint(20+i), net6+fmt.Sprint(20+i))}
	s.ns = l.Add(s.name)
	lan.Join(s.ns, s.addr[0].String()+"/24", s.addr[1].String()+"/64")
	return s
}

func routed(_ testing.TB, l *lab.Lab) *world {
	w := newWorld(l)
	for i := 1; i <= serverCount; i++ {
		s, gateway := linked(l, w.host, i)
		w.own = append(w.own, gateway[:]...)
		w.serve(s)
	}
	return w
}

func oneArm(_ testing.TB, l *lab.Lab) *world {
	w := &world{host: l.Host(), client: l.Add("client"), vip: heldVIP(), node: parseAddrs("10.3.0.1", "fd03::1")}
	w.own = append(w.own, w.node[:]...)
	lan := l.Bridge("lan")
	lan.Join(w.host, "10.3.0.1/24", "fd03::1/64")
	lan.Join(w.client, "10.3.0.2/24", "fd03::2/64")
	w.addClients("lan", "10.3.0.", "fd03::")
	w.routeVIPs(w.client, "10.3.0.1", "fd03::1")
	for i := 1; i <= serverCount; i++ {
		s := joined(l, lan, "10.3.0.", "fd03::", i)
		w.routeVIPs(s.ns, "10.3.0.1", "fd03::1")
		w.serve(s)
	}
	w.forwards()
	return w
}

func (w *world) routeVIPs(n *lab.NS, via ...string) {
	for i, to := range vipRanges {
		n.Route(to, via[i])
	}
}

func astray(_ testing.TB, l *lab.Lab) *world {
	w := newWorld(l)
	lan, router := l.Bridge("lan"), l.Add("router")
	lan.Join(w.host, "10.4.0.1/24", "fd04::1/64")
	w.own = append(w.own, netip.MustParseAddr("10.4.0.1"), netip.MustParseAddr("fd04::1"))
	lan.Join(router, "10.4.0.254/24", "fd04::254/64")
	for i := 1; i <= serverCount; i++ {
		s := joined(l, lan, "10.4.0.", "fd04::", i)
		s.ns.Default("10.4.0.254", "fd04::254")
		w.routeVIPs(s.ns, "10.4.0.1", "fd04::1")
		w.serve(s)
	}
	return w
}

func sharedVIP(t testing.TB, l *lab.Lab) *world {
	w := routed(t, l)
	w.host.Sysctl("net.ipv4.conf.all.rp_filter", "1")
	for _, s := range w.servers {
		s.ns.AddAddr("lo", w.vip[0].String()+"/32")
		s.ns.AddAddr("lo", w.vip[1].String()+"/128")
		w.noWayBack(s)
	}
	return w
}

// noWayBack removes a server's route to the host's addresses on other links, and enables the
// server's reverse path filter. So the server drops packets from those addresses.
func (w *world) noWayBack(s *server) {
	s.ns.Sysctl("net.ipv4.conf.all.rp_filter", "1")
	for _, a := range w.own {
		bits := 24
		if a.Is6() {
			bits = 64
		}
		if link := netip.PrefixFrom(s.addr.inFamilyOf(a), bits); !link.Masked().Contains(a) {
			s.ns.Unreachable(netip.PrefixFrom(a, a.BitLen()).String())
		}
	}
}

func ownAddress(t testing.TB, l *lab.Lab) *world {
	w := routed(t, l)
	w.vip = w.node // node ports must also be open on the addresses facing the servers
	for _, a := range w.own {
		if a != w.vip[0] && a != w.vip[1] {
			w.node[map[bool]int{true: 0, false: 1}[a.Is4()]] = a
		}
	}
	return w
}

// isOwn reports whether a is one of the host's own addresses, which do not include the VIPs that
// vipd has added.
func (w *world) isOwn(a netip.Addr) bool { return slices.Contains(w.own, a) }

package packetflow

import (
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
)

// link is one of the node's interfaces, with the hosts behind it.
type link struct {
	dev string
	// own has the node's IPv4 and IPv6 addresses on the link. Hosts use them as their router.
	own   [2]netip.Prefix
	hosts []place
}

// place is a host with its addresses.
type place struct {
	name  string
	addrs [2]netip.Addr
}

// links returns the links in flows.md's network.
func links() []link {
	own := func(v4, v6 string) [2]netip.Prefix {
		return [2]netip.Prefix{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}
	}
	at := func(name, v4, v6 string) place {
		return place{name, [2]netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}}
	}
	return []link{
		{"far", own("10.1.0.1/24", "fd01::1/64"), []place{at("far", "10.1.0.2", "fd01::2"), at("stranger", "10.1.0.3", "fd01::3")}},
		{"s1", own("10.2.1.1/24", "fd02:1::1/64"), []place{at("s1", "10.2.1.2", "fd02:1::2")}},
		{"s2", own("10.2.2.1/24", "fd02:2::1/64"), []place{at("s2", "10.2.2.2", "fd02:2::2")}},
		{"lan", own("10.3.0.1/24", "fd03::1/64"), []place{at("near", "10.3.0.2", "fd03::2"), at("s3", "10.3.0.23", "fd03::23")}},
	}
}

func servers() []string { return []string{"s1", "s2", "s3"} }

// places returns the names of all hosts.
func places() []string {
	all := []string{"local"}
	for _, l := range links() {
		for _, h := range l.hosts {
			all = append(all, h.name)
		}
	}
	return all
}

// addressOf returns a host's address in the address family of like. For the node, it is the source
// address of the node's connections.
func addressOf(name string, like netip.Addr) netip.Addr {
	i := 0
	if like.Is6() {
		i = 1
	}
	for _, l := range links() {
		if name == "local" {
			return l.own[i].Addr()
		}
		for _, h := range l.hosts {
			if h.name == name {
				return h.addrs[i]
			}
		}
	}
	panic("there is no host " + name)
}

// nameOf returns the name of the host that has an address. It returns "node" for the node's
// addresses, and "" for unknown addresses.
func nameOf(a netip.Addr) string {
	for _, l := range links() {
		for i := range l.own {
			if l.own[i].Addr() == a {
				return "node"
			}
		}
		for _, h := range l.hosts {
			if slices.Contains(h.addrs[:], a) {
				return h.name
			}
		}
	}
	return ""
}

// ownAddresses returns the node's addresses.
func ownAddresses() []netip.Addr {
	var all []netip.Addr
	for _, l := range links() {
		for _, n := range l.own {
			all = append(all, n.Addr())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// compile compiles a section's services for the node.
func (s section) compile(c balancer.Capabilities) balancer.Desired {
	own := ownAddresses()
	env := balancer.Env{Node: "n1", Local: own, NodePortAddresses: own, Capabilities: c}
	return new(balancer.Compiler).Next(env, balancer.Inputs{Services: s.services}, time.Now())
}

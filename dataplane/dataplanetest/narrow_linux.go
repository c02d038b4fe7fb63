package dataplanetest

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"testing"

	"vipd/balancer"
	"vipd/test/lab"
)

// narrow builds a layout in which a link between the host and the servers has a smaller MTU than
// all other links. No ICMP message reports this MTU:
//
//	client --- host ===1400=== router --- s1, s2, s3
func narrow(t testing.TB, l *lab.Lab) *world {
	w := newWorld(l)
	router := l.Add("router")
	l.Link(w.host, router, "10.4.0.1/24", "10.4.0.2/24", "fd04::1/64", "fd04::2/64")
	w.host.MTU("router", 1400)
	router.MTU("host", 1400)
	w.own = append(w.own, parseAddrs("10.4.0.1", "fd04::1").slice()...)
	router.Default("10.4.0.1", "fd04::1")
	router.Sysctl("net.ipv4.ip_forward", "1")
	router.Sysctl("net.ipv6.conf.all.forwarding", "1")
	for i := 1; i <= serverCount; i++ {
		s, _ := linked(l, router, i)
		w.host.Route(fmt.Sprintf("10.2.%d.0/24", i), "10.4.0.2")
		w.host.Route(fmt.Sprintf("fd02:%d::/64", i), "fd04::2")
		w.serve(s)
	}
	for ns, chain := range map[*lab.NS]string{router: "OUTPUT", w.client: "INPUT"} {
		ns.Exec("iptables", "-A", chain, "-p", "icmp", "--icmp-type", "fragmentation-needed", "-j", "DROP")
		ns.Exec("ip6tables", "-A", chain, "-p", "icmpv6", "--icmpv6-type", "packet-too-big", "-j", "DROP")
	}
	return w
}

// testNarrow sends streams through a link whose MTU is smaller than both sides assume. The streams
// must arrive. If mss is set, neither side may send larger segments.
func testNarrow(t *testing.T, s *Subject) {
	r := newRig(t, s, layout{name: "narrow", build: narrow}, s.newHost(t))
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	r.apply(web)
	clients := map[string]*lab.NS{"forwarded": r.w.client, "local": r.w.host}
	for name, from := range clients {
		r.step(name, func(r *rig) {
			r.eachOf(balancer.TCP, func(r *rig, key balancer.Key) { checkStream(r, from, key, zeros{}, 100_000) })
		})
	}
	const mss = 1240 // small enough for all links, including IPv6 headers
	r.apply(edited(web, func(s *balancer.Service) { s.MSS = mss }))
	for name, from := range clients {
		r.step(name+" with mss", func(r *rig) {
			r.eachOf(balancer.TCP, func(r *rig, key balancer.Key) { checkSegments(r, from, key, mss) })
		})
	}
}

// checkSegments opens a connection, and checks the segment sizes of all connections. Each size must
// be mss, or slightly less because of TCP options.
func checkSegments(r *rig, client *lab.NS, key balancer.Key, mss int) {
	r.Helper()
	c, _ := r.mustOpen(client, netip.Addr{}, key)
	all := []*lab.NS{client, r.w.host}
	for _, s := range r.w.servers {
		all = append(all, s.ns)
	}
	sizes := regexp.MustCompile(`\bmss:(\d+)`)
	r.Eventually("only segments of the service's mss", func() error { // an earlier connection may still be open
		for _, ns := range all {
			for _, size := range sizes.FindAllStringSubmatch(ns.Exec("ss", "-Htin", "state", "established"), -1) {
				if n, err := strconv.Atoi(size[1]); err != nil || n > mss || n < mss-40 {
					return fmt.Errorf("%s: segment size = %d with mss = %d, %v", key, n, mss, err)
				}
			}
		}
		return nil
	})
	if err := c.Close(); err != nil {
		r.Error(err)
	}
}

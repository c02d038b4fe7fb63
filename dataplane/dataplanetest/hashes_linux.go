package dataplanetest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
)

// hashEndpoints is the number of endpoints per service in the case "hashes".
const hashEndpoints = 6

// hashService returns a service whose endpoints have the sinks' addresses and the weights 1, 2, 3,
// 1, 2, 3.
func hashService(scheduler balancer.Scheduler, vips ...netip.Addr) *balancer.Service {
	s := newService(balancer.Name("hash-"+string(scheduler)), addrs{})
	s.VIPs, s.Scheduler = vips, scheduler
	s.Ports = []balancer.Port{{Name: "udp", Port: vipPort, Protocol: balancer.UDP, TargetPort: spreadPort}}
	for i := range hashEndpoints {
		for _, a := range manyAddrs(i) {
			s.Endpoints = append(s.Endpoints, balancer.Endpoint{Address: a, Weight: 1 + i%3})
		}
	}
	return s
}

// withoutFirst returns a copy of a service from hashService. In the copy, the first endpoint drains
// if drains is true, and is otherwise removed.
func withoutFirst(s *balancer.Service, drains bool) *balancer.Service {
	return edited(s, func(s *balancer.Service) {
		if !drains {
			s.Endpoints = s.Endpoints[2:]
			return
		}
		for i := range 2 {
			s.Endpoints[i].Draining = true
		}
	})
}

// clientHashes returns the schedulers that choose by a hash of the client's address.
func clientHashes() []balancer.Scheduler {
	return []balancer.Scheduler{balancer.SourceHash, balancer.Maglev}
}

// testHashes schedules hundreds of clients with each hash scheduler. The clients must be
// distributed by weight, and must stay on their endpoints. When an endpoint is removed, Maglev may
// move at most a few clients of other endpoints.
func testHashes(r *rig) {
	sinks := startSinks(r)
	for i, net := range []string{"10.50.0.0/16", "fd50::/64"} {
		r.w.host.Route(net, r.w.clients[0][i].String())
		makeLocal(r, r.w.client, net)
	}
	r.w.client.Sysctl("net.ipv6.ip_nonlocal_bind", "1") // IPv4 needs only the local route
	for _, scheduler := range clientHashes() {
		r.step(string(scheduler), func(r *rig) {
			if instead, ok := r.caps.Nearest[scheduler]; ok {
				r.Skipf("%s does %s instead", r.caps.Mode, instead)
			}
			r.eachOf(balancer.UDP, func(r *rig, key balancer.Key) { checkClientHash(r, scheduler, key, sinks) })
		})
	}
	r.step(string(balancer.DestinationHash), func(r *rig) {
		if instead, ok := r.caps.Nearest[balancer.DestinationHash]; ok {
			r.Skipf("%s does %s instead", r.caps.Mode, instead)
		}
		checkVIPHash(r, sinks)
	})
}

func checkClientHash(r *rig, scheduler balancer.Scheduler, key balancer.Key, sinks [2]*sink) {
	s, first := sinks[0], manyAddrs(0).inFamilyOf(key.Addr)
	if key.Addr.Is6() {
		s = sinks[1]
	}
	clients := randomClients(400, key.Addr)
	all := hashService(scheduler, key.Addr)
	meet := func(services ...*balancer.Service) []netip.Addr {
		r.Helper()
		r.apply(services...)
		return serversOfClients(r, s, clients, key.Addr)
	}
	before := meet(all)
	if err := sharedByWeight(before, key.Addr); err != nil {
		r.Errorf("%s: %v", scheduler, err)
	}
	if again := meet(all); !slices.Equal(again, before) {
		r.Errorf("%s: clients that reach another endpoint with their second datagram = %d of %d, want 0", scheduler, differing(before, again), len(clients))
	}
	for name, fewer := range map[string]*balancer.Service{"is removed": withoutFirst(all, false), "drains": withoutFirst(all, true)} {
		after := meet(fewer)
		if slices.Contains(after, first) {
			r.Errorf("%s: when an endpoint %s, it still gets datagrams, want none", scheduler, name)
		}
		moved := 0
		for i, a := range before {
			if a != first && after[i] != a {
				moved++
			}
		}
		if scheduler == balancer.Maglev && moved > len(clients)/8 {
			r.Errorf("%s: when an endpoint %s, moved clients of other endpoints = %d of %d, want at most an eighth", scheduler, name, moved, len(clients))
		}
		if scheduler != balancer.Maglev {
			continue
		}
		if back := meet(all); differing(before, back) > len(clients)/8 {
			r.Errorf("%s: clients with another endpoint after the endpoint was added again = %d of %d, want at most an eighth", scheduler, differing(before, back), len(clients))
		}
	}
	_ = netlink.ConntrackTableFlush(netlink.ConntrackTable) // the next flows need the space of these flows
}

func checkVIPHash(r *rig, sinks [2]*sink) {
	const vips = 24
	clients := randomClients(3, r.w.vip[0])
	all := hashService(balancer.DestinationHash)
	for i := range vips {
		all.VIPs = append(all.VIPs, vipN(180 + i)[0])
	}
	meet := func(s *balancer.Service) (met []netip.Addr) {
		r.Helper()
		r.apply(s)
		for _, vip := range s.VIPs {
			at := serversOfClients(r, sinks[0], clients, vip)
			if len(countOf(at)) != 1 {
				r.Errorf("dh: endpoints of the clients of %s = %v, want one endpoint for all clients", vip, at)
			}
			met = append(met, at[0])
		}
		return met
	}
	before := meet(all)
	if len(countOf(before)) < 2 {
		r.Errorf("dh: all %d VIPs have the endpoint %s, want several endpoints", vips, before[0])
	}
	for name, fewer := range map[string]*balancer.Service{"is removed": withoutFirst(all, false), "drains": withoutFirst(all, true)} {
		if slices.Contains(meet(fewer), manyAddrs(0)[0]) {
			r.Errorf("dh: when an endpoint %s, it still gets datagrams, want none", name)
		}
	}
}

func randomClients(n int, vip netip.Addr) []netip.Addr {
	random := rand.New(rand.NewPCG(50, 0))
	all := make([]netip.Addr, n)
	for i := range all {
		all[i] = parseAddrs(fmt.Sprintf("10.50.%d.%d", random.IntN(256), random.IntN(256)), fmt.Sprintf("fd50::%x:%x", random.IntN(1<<16), random.IntN(1<<16))).inFamilyOf(vip)
	}
	return all
}

func differing(a, b []netip.Addr) (n int) {
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// sharedByWeight returns an error if the clients of a service from hashService are not distributed
// by weight.
func sharedByWeight(met []netip.Addr, vip netip.Addr) error {
	weights := map[netip.Addr]int{}
	for i := range hashEndpoints {
		weights[manyAddrs(i).inFamilyOf(vip)] = 1 + i%3
	}
	return fair(countOf(met), weights, byChance)
}

// serversOfClients sends a datagram from each client to a VIP. All datagrams have the same new
// source port. It returns the endpoint that received each datagram.
func serversOfClients(r *rig, s *sink, clients []netip.Addr, vip netip.Addr) []netip.Addr {
	r.Helper()
	network := "udp4"
	if vip.Is6() {
		network = "udp6"
	}
	pc, err := r.w.client.ListenPacket(network, fmt.Sprintf(":%d", r.s.ports.next()))
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = pc.Close() }()
	payload := make([]byte, 8)
	binary.BigEndian.PutUint32(payload, s.begin())
	for i, client := range clients {
		binary.BigEndian.PutUint32(payload[4:], uint32(i))
		if _, _, err := pc.(*net.UDPConn).WriteMsgUDPAddrPort(payload, from(client), netip.AddrPortFrom(vip, vipPort)); err != nil {
			r.Fatalf("%s sends to %s: %v", client, vip, err)
		}
		limitInFlight(r, s, i)
	}
	return awaitArrival(r, s, len(clients))
}

// from returns a control message that sets a datagram's source address.
func from(a netip.Addr) []byte {
	if a.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
}

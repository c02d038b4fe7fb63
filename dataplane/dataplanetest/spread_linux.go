package dataplanetest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// spreadPort is the port on which the server with many addresses listens.
const spreadPort = 9000

// manyAddrs returns the n-th IPv4 and IPv6 address of the server that has many addresses.
func manyAddrs(n int) addrs {
	return parseAddrs(fmt.Sprintf("10.200.%d.%d", n/200, 1+n%200), fmt.Sprintf("fd0a::%x", 1+n))
}

// spreadCase describes a service in which each endpoint must get its share of clients.
type spreadCase struct {
	n         int // number of endpoints
	scheduler balancer.Scheduler
	mixed     bool // the weights are 1, 2, 3, 1, 2, 3, ...
	vip       addrs
	families  int // 1: only IPv4, 2: IPv4 and IPv6
}

func spreadCases(r *rig) []spreadCase {
	var all []spreadCase
	add := func(n int, scheduler balancer.Scheduler, mixed bool) {
		families := 1
		if n == 3 || n == 10 {
			families = 2
		}
		all = append(all, spreadCase{n, scheduler, mixed, vipN(130 + len(all)), families})
	}
	sizes := []int{3, 7, 1000}
	switch {
	case wait.Soaking():
		sizes = []int{1, 2, 3, 7, 10, 100, 1000}
	case r.s.Connections > 0: // each connection needs sockets
		sizes = []int{3, 7, 100}
	}
	for _, n := range sizes {
		if n > wait.Load(1000) {
			break
		}
		add(n, balancer.RoundRobin, false)
		add(n, balancer.WeightedRoundRobin, false)
		if n > 1 {
			add(n, balancer.WeightedRoundRobin, true)
		}
	}
	return all
}

func (c spreadCase) String() string {
	weights := "equal"
	if c.mixed {
		weights = "mixed"
	}
	return fmt.Sprintf("%s-%d-%s", c.scheduler, c.n, weights)
}

func (c spreadCase) weight(i int) int {
	if c.mixed {
		return 1 + i%3
	}
	return 1
}

func (c spreadCase) service() *balancer.Service {
	s := newService(balancer.Name("spread-"+strings.ToLower(c.String())), c.vip)
	s.VIPs = s.VIPs[:c.families]
	s.Ports = []balancer.Port{{Name: "udp", Port: vipPort, Protocol: balancer.UDP, TargetPort: spreadPort}}
	s.Scheduler = c.scheduler
	for i := range c.n {
		for _, a := range manyAddrs(i).slice()[:c.families] {
			s.Endpoints = append(s.Endpoints, balancer.Endpoint{Address: a, Weight: c.weight(i)})
		}
	}
	return s
}

// testSpread sends thousands of datagrams to services with few and many endpoints. Each endpoint
// must get its share by weight.
func testSpread(r *rig) {
	sinks := startSinks(r)
	for _, c := range spreadCases(r) {
		r.step(c.String(), func(r *rig) {
			r.apply(c.service()) // also removes earlier flows, because each flow in userspace mode needs a socket
			for family := range c.families {
				checkSpread(r, c, c.vip[family], sinks[family])
			}
		})
	}
}

// startSinks adds all addresses of manyAddrs to the first server. It starts an IPv4 and an IPv6
// sink, which record the datagrams to these addresses.
func startSinks(r *rig) [2]*sink {
	r.Helper()
	s1 := r.w.servers[0]
	for i, to := range []string{"10.200.0.0/16", "fd0a::/64"} {
		r.w.host.Route(to, s1.addr[i].String())
		makeLocal(r, s1.ns, to)
	}
	return [2]*sink{startSink(r, s1, "udp4"), startSink(r, s1, "udp6")}
}

// makeLocal makes all addresses of a network local to a namespace, until the test ends.
func makeLocal(r *rig, n *lab.NS, network string) {
	r.Helper()
	n.Exec("ip", "route", "add", "local", network, "dev", "lo")
	r.Cleanup(func() { n.Exec("ip", "route", "del", "local", network, "dev", "lo") })
}

func checkSpread(r *rig, c spreadCase, vip netip.Addr, s *sink) {
	weights, sum := map[netip.Addr]int{}, 0
	for i := range c.n {
		weights[manyAddrs(i).inFamilyOf(vip)] = c.weight(i)
		sum += c.weight(i)
	}
	n, slack := cmp.Or(r.s.Connections, wait.Load(min(10_000, 400*c.n))), float64(byChance)
	if c.scheduler == balancer.RoundRobin || r.s.ExactWeights {
		n, slack = max(1, min(n, wait.Load(2000))/sum)*sum, exact // send whole cycles
	}
	if err := fair(spray(r, vip, s, n), weights, slack); err != nil {
		r.Errorf("%s: %v", vip, err)
	}
	// Remove the earlier flows, because the next flows need their space. If conntrack is missing,
	// there are no flows.
	_ = netlink.ConntrackTableFlush(netlink.ConntrackTable)
}

// chiLimit returns an approximation of the 1 - 1e-9 quantile of the chi-square distribution (Wilson
// and Hilferty). For few degrees of freedom, the result is slightly too high.
func chiLimit(freedom int) float64 {
	if freedom == 0 {
		return 0
	}
	const normal = 5.9978 // the same quantile of the normal distribution
	v := 2 / (9 * float64(freedom))
	return float64(freedom) * math.Pow(1-v+normal*math.Sqrt(v), 3)
}

// spray sends n datagrams to a VIP, each from a different combination of client address and port.
// All must arrive. It returns the number of datagrams that each address received.
func spray(r *rig, vip netip.Addr, s *sink, n int) map[netip.Addr]int {
	r.Helper()
	run := s.begin()
	var sources []net.PacketConn
	for _, c := range r.w.clients {
		sources = append(sources, rawUDP(r, c.inFamilyOf(vip)))
	}
	to := &net.IPAddr{IP: vip.AsSlice()}
	packet := make([]byte, 16) // the packet's fields are source port, destination port, length, checksum and payload
	binary.BigEndian.PutUint16(packet[2:], vipPort)
	binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)))
	binary.BigEndian.PutUint32(packet[8:], run)
	for i := range n {
		binary.BigEndian.PutUint16(packet, uint16(1024+i/len(sources)))
		binary.BigEndian.PutUint32(packet[12:], uint32(i))
		if _, err := sources[i%len(sources)].WriteTo(packet, to); err != nil {
			r.Fatalf("sending to %s: %v", vip, err)
		}
		limitInFlight(r, s, i)
	}
	return countOf(awaitArrival(r, s, n))
}

// limitInFlight is called after the i-th datagram was sent. If too many datagrams are still in
// transit, it waits. A socket's default buffer has room for about 250 datagrams.
func limitInFlight(r *rig, s *sink, i int) {
	r.Helper()
	const inFlight = 64
	if i%(inFlight/2) == 0 {
		r.Eventually("the arrival of datagrams", func() error { return s.atLeast(i - inFlight) })
	}
}

// awaitArrival waits until n datagrams have arrived, and returns the destination of each.
func awaitArrival(r *rig, s *sink, n int) []netip.Addr {
	r.Helper()
	r.Eventually("the arrival of all datagrams", func() error { return s.atLeast(n) })
	s.mu.Lock()
	defer s.mu.Unlock()
	to := make([]netip.Addr, n)
	for i := range to {
		to[i] = s.met[uint32(i)]
	}
	return to
}

func countOf(all []netip.Addr) map[netip.Addr]int {
	counts := map[netip.Addr]int{}
	for _, a := range all {
		counts[a]++
	}
	return counts
}

// rawUDP returns a socket in the client's namespace that can send UDP datagrams from any port.
func rawUDP(r *rig, from netip.Addr) net.PacketConn {
	r.Helper()
	network := "ip4:udp"
	if from.Is6() {
		network = "ip6:udp"
	}
	c, err := r.w.client.ListenPacket(network, from.String())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close() })
	if from.Is6() { // makes the kernel write the checksum at this offset; with IPv4, the checksum is optional
		control(r, c.(*net.IPConn), func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, 6)
		})
	}
	return c
}

func control(r *rig, c syscall.Conn, f func(fd int) error) {
	r.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		r.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil || failed != nil {
		r.Fatalf("setting up a socket: %v, %v", err, failed)
	}
}

// sink records each datagram's destination address.
type sink struct {
	mu  sync.Mutex
	run uint32
	met map[uint32]netip.Addr // keyed by datagram number
}

// startSink starts a sink that receives the datagrams to all addresses of a network in a server's
// namespace.
func startSink(r *rig, s *server, network string) *sink {
	r.Helper()
	pc, err := s.ns.ListenPacket(network, fmt.Sprintf(":%d", spreadPort))
	if err != nil {
		r.Fatal(err)
	}
	c := pc.(*net.UDPConn)
	control(r, c, func(fd int) error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
			return err
		}
		if network == "udp4" {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	k := &sink{}
	var running sync.WaitGroup
	running.Go(func() { k.count(c) })
	r.Cleanup(func() { _ = c.Close(); running.Wait() })
	return k
}

func (k *sink) count(c *net.UDPConn) {
	payload, control := make([]byte, 64), make([]byte, 128)
	for {
		n, m, _, _, err := c.ReadMsgUDPAddrPort(payload, control)
		if err != nil {
			return // an error means that the socket is closed
		}
		to, ok := destination(control[:m])
		k.mu.Lock()
		if ok && n == 8 && binary.BigEndian.Uint32(payload) == k.run {
			k.met[binary.BigEndian.Uint32(payload[4:])] = to
		}
		k.mu.Unlock()
	}
}

// destination returns a datagram's destination address from its control messages, or false if they
// contain none.
func destination(control []byte) (netip.Addr, bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) != 1 {
		return netip.Addr{}, false
	}
	info := messages[0].Data
	if messages[0].Header.Level == unix.IPPROTO_IP { // struct in_pktinfo contains index, local address and destination
		return netip.AddrFromSlice(info[8:12])
	}
	return netip.AddrFromSlice(info[:16]) // struct in6_pktinfo contains destination and index
}

// begin discards the records of earlier datagrams. It returns a number that all later datagrams
// must contain.
func (k *sink) begin() uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.run++
	k.met = map[uint32]netip.Addr{}
	return k.run
}

// atLeast returns an error if fewer than n datagrams have arrived.
func (k *sink) atLeast(n int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.met) < n {
		return fmt.Errorf("%d of %d datagrams have arrived", len(k.met), n)
	}
	return nil
}

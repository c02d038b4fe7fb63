package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/test/lab"
)

// fencePort is where fences go: datagrams that follow a packet on its way. The test's thread stays on one processor,
// whose queue the kernel keeps in order from cable to cable, so what has not arrived before the fence never will.
const fencePort = 7

// ports are those that servers and the host listen on.
func ports() []uint16 { return []uint16{80, 8080, 9000} }

// network is the world with its sockets.
type network struct {
	t       *testing.T
	lab     *lab.Lab
	client  *lab.NS
	servers map[string]*lab.NS
	sockets []*socket
	fences  map[bool]map[string]*socket // by IPv6, and where
	port    uint16                      // of the last packet sent
}

// socket listens somewhere.
type socket struct {
	fd    int
	where string
	at    netip.AddrPort
	proto Protocol
}

func (s *socket) close() { _ = unix.Close(s.fd) }

func newNetwork(t *testing.T) *network {
	l := lab.New(t)
	n := &network{t: t, lab: l, client: l.Add("client"), servers: map[string]*lab.NS{}, fences: map[bool]map[string]*socket{false: {}, true: {}}, port: 10000}
	l.Link(l.Host(), n.client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	n.client.AddAddr("host", "10.1.0.3/24")
	n.client.AddAddr("host", "fd01::3/64")
	n.client.Default("10.1.0.1", "fd01::1")
	l.Host().AddAddr("lo", "10.96.0.10/32")
	l.Host().AddAddr("lo", "fd00:96::10/128")
	l.Host().Sysctl("net.ipv4.ip_forward", "1")
	l.Host().Sysctl("net.ipv6.conf.all.forwarding", "1")
	l.Host().Sysctl("net.ipv4.icmp_ratemask", "0")
	l.Host().Sysctl("net.ipv6.icmp.ratemask", "")
	n.listen("host", l.Host(), "0.0.0.0", "::")
	for i := 1; i <= 2; i++ {
		name := fmt.Sprint("s", i)
		s := l.Add(name)
		n.servers[name] = s
		l.Link(l.Host(), s, fmt.Sprintf("10.2.%d.1/24", i), fmt.Sprintf("10.2.%d.2/24", i), fmt.Sprintf("fd02:%d::1/64", i), fmt.Sprintf("fd02:%d::2/64", i))
		s.Default(fmt.Sprintf("10.2.%d.1", i), fmt.Sprintf("fd02:%d::1", i))
		n.listen(name, s, fmt.Sprintf("10.2.%d.2", i), fmt.Sprintf("fd02:%d::2", i))
	}
	return n
}

func (n *network) listen(where string, ns *lab.NS, addrs ...string) {
	for _, a := range addrs {
		at := netip.MustParseAddr(a)
		fence := n.socket(where, ns, netip.AddrPortFrom(at, fencePort), UDP)
		n.fences[at.Is6()][where] = fence
		n.t.Cleanup(fence.close)
		for _, port := range ports() {
			for _, proto := range []Protocol{TCP, UDP} {
				s := n.socket(where, ns, netip.AddrPortFrom(at, port), proto)
				n.sockets = append(n.sockets, s)
				n.t.Cleanup(s.close)
			}
		}
	}
}

// socket opens a socket that does not block; a listening one for TCP where the port is one of ports.
func (n *network) socket(where string, ns *lab.NS, at netip.AddrPort, proto Protocol) *socket {
	n.t.Helper()
	s := &socket{where: where, at: at, proto: proto}
	err := ns.Do(func() (err error) {
		domain, kind := unix.AF_INET, unix.SOCK_DGRAM
		if at.Addr().Is6() {
			domain = unix.AF_INET6
		}
		if proto == TCP {
			kind = unix.SOCK_STREAM
		}
		if s.fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if domain == unix.AF_INET6 {
			err = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
		}
		if proto == TCP {
			err = errors.Join(err, unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
				unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
		}
		err = errors.Join(err, unix.Bind(s.fd, sockaddr(at)))
		if proto == TCP && slices.Contains(ports(), at.Port()) {
			err = errors.Join(err, unix.Listen(s.fd, 16))
		}
		return err
	})
	if err != nil {
		n.t.Fatalf("opening a socket at %s in %s: %v", at, ns.Name, err)
	}
	return s
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// host is the Host of the lab.
func (n *network) host() Host {
	return Host{
		Route: func(dst netip.Addr) (bool, string) {
			switch a := dst.String(); {
			case a == "10.1.0.1", a == "fd01::1", a == "10.96.0.10", a == "fd00:96::10", dst.IsLoopback(),
				strings.HasPrefix(a, "10.2.") && strings.HasSuffix(a, ".1"), strings.HasPrefix(a, "fd02:") && strings.HasSuffix(a, "::1"):
				return true, ""
			case strings.HasPrefix(a, "10.1."), strings.HasPrefix(a, "fd01:"):
				return false, "client"
			case strings.HasPrefix(a, "10.2.1."), strings.HasPrefix(a, "fd02:1:"):
				return false, "s1"
			case strings.HasPrefix(a, "10.2.2."), strings.HasPrefix(a, "fd02:2:"):
				return false, "s2"
			}
			return false, ""
		},
		Address: func(dev string, v6 bool) netip.Addr {
			of := map[string][2]string{"client": {"10.1.0.1", "fd01::1"}, "s1": {"10.2.1.1", "fd02:1::1"}, "s2": {"10.2.2.1", "fd02:2::1"}}[dev]
			if of[0] == "" {
				of = [2]string{"127.0.0.1", "::1"}
			}
			if v6 {
				return netip.MustParseAddr(of[1])
			}
			return netip.MustParseAddr(of[0])
		},
	}
}

// fence waits until all that was sent before has arrived, wherever it went.
func (n *network) fence(a addresses, from *lab.NS) {
	n.t.Helper()
	src := netip.IPv4Unspecified()
	if a.v6 {
		src = netip.IPv6Unspecified()
	}
	s := n.socket("fence", from, netip.AddrPortFrom(src, 0), UDP)
	defer s.close()
	for where, to := range map[string]string{"host": a.host, "s1": a.servers[0], "s2": a.servers[1]} {
		if err := unix.Sendto(s.fd, []byte("fence"), 0, sockaddr(netip.AddrPortFrom(netip.MustParseAddr(to), fencePort))); err != nil {
			n.t.Fatalf("sending a fence to %s: %v", where, err)
		}
		at := n.fences[a.v6][where]
		fds := []unix.PollFd{{Fd: int32(at.fd), Events: unix.POLLIN}}
		if got, err := unix.Poll(fds, 5000); err != nil || got != 1 {
			n.t.Fatalf("a fence to %s does not arrive: %v", where, err)
		}
		if _, _, err := unix.Recvfrom(at.fd, make([]byte, 16), 0); err != nil {
			n.t.Fatalf("receiving a fence at %s: %v", where, err)
		}
	}
}

// sent is a packet on its way, or what became of it.
type sent struct {
	from *lab.NS
	*socket
	arrived *socket // where it did; nil: nowhere
	as      netip.AddrPort
}

// hearErrors has a socket keep the ICMP errors that come for it.
func (s *socket) hearErrors() error {
	if s.at.Addr().Is6() {
		return unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	}
	return unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
}

// send sends a first packet and says what became of it, in the words of expected.
func (n *network) send(a addresses, from *lab.NS, p Packet) (*sent, string) {
	n.t.Helper()
	s := &sent{from: from, socket: n.socket("client", from, p.Src, p.Proto)}
	if err := s.hearErrors(); err != nil {
		n.t.Fatal(err)
	}
	switch err := unix.Connect(s.fd, sockaddr(p.Dst)); {
	case errors.Is(err, unix.ENETUNREACH):
		return s, "unrouted"
	case err != nil && !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.EPERM):
		return s, errno(err)
	}
	return s, n.follow(a, s)
}

// follow sends a datagram, or waits for a handshake, and says what became of it.
func (n *network) follow(a addresses, s *sent) string {
	n.t.Helper()
	rounds := 1
	if s.proto == TCP {
		rounds = 4 // there, back and there, and one to spare
	} else if err := unix.Send(s.fd, []byte("packet"), 0); err != nil && !errors.Is(err, unix.EPERM) {
		return errno(err)
	}
	for range rounds {
		n.fence(a, s.from)
	}
	result := n.answer(s)
	for _, at := range n.sockets {
		if peer, ok := receive(at); ok {
			s.arrived, s.as = at, peer
			result = strings.TrimPrefix(result+", ", "nothing, ") + arrival(at.where, at.at.Port(), peer.Addr())
		}
	}
	return result
}

func arrival(where string, port uint16, from netip.Addr) string {
	if where == "host" {
		return fmt.Sprintf("host:%d", port)
	}
	return fmt.Sprintf("%s:%d from %s", where, port, from)
}

// receive takes what is waiting at a socket, and returns where it came from.
func receive(at *socket) (netip.AddrPort, bool) {
	if at.proto == UDP {
		_, peer, err := unix.Recvfrom(at.fd, make([]byte, 64), unix.MSG_DONTWAIT)
		return addrPort(peer), err == nil
	}
	fd, peer, err := unix.Accept4(at.fd, unix.SOCK_CLOEXEC)
	if err != nil {
		return netip.AddrPort{}, false
	}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(fd)
	return addrPort(peer), true
}

// answer is what the sender hears: an ICMP error, a reset, or nothing.
func (n *network) answer(s *sent) string {
	code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		n.t.Fatal(err)
	}
	if s.proto == TCP {
		if code == 0 || unix.Errno(code) == unix.EPERM {
			return "nothing"
		}
		return errno(unix.Errno(code))
	}
	control := make([]byte, 256)
	_, size, _, _, err := unix.Recvmsg(s.fd, nil, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return "nothing"
	}
	messages, err := unix.ParseSocketControlMessage(control[:size])
	if err != nil || len(messages) == 0 || len(messages[0].Data) < 8 {
		n.t.Fatalf("reading an ICMP error: %v", err)
	}
	return fmt.Sprintf("icmp %d/%d", messages[0].Data[5], messages[0].Data[6]) // of struct sock_extended_err
}

func errno(err error) string {
	if e := unix.Errno(0); errors.As(err, &e) {
		return unix.ErrnoName(e)
	}
	return err.Error()
}

// pin keeps the test on one thread and processor.
func (n *network) pin() {
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		n.t.Fatal(err)
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if before.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	})
}

// warm has all neighbours know each other.
func (n *network) warm(a addresses) {
	n.fence(a, n.client)
	n.fence(a, n.lab.Host())
	for _, where := range []string{"s1", "s2"} { // and back
		to := netip.AddrPortFrom(netip.MustParseAddr(a.clients[0]), n.nextPort())
		s := n.socket("client", n.client, to, UDP)
		defer s.close()
		if err := unix.Sendto(n.fences[a.v6][where].fd, []byte("back"), 0, sockaddr(to)); err != nil {
			n.t.Fatal(err)
		}
		fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
		if got, err := unix.Poll(fds, 5000); err != nil || got != 1 {
			n.t.Fatalf("nothing comes from %s: %v", where, err)
		}
	}
}

func (n *network) nextPort() uint16 {
	n.port++
	return n.port
}

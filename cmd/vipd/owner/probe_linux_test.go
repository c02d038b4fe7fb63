package owner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/test/lab"
	"vipd/test/wait"
)

// probePort is the port of the service on the VIPs. Each host forwards it to ownPort on all of its
// own addresses.
const (
	probePort = 9000
	ownPort   = 9001
)

// respond makes a host echo data on connections, and echo each datagram with the host's name
// appended.
func respond(t *testing.T, ns *lab.NS) {
	t.Helper()
	var c *net.UDPConn
	if err := ns.Do(func() (err error) {
		c, err = net.ListenUDP("udp", &net.UDPAddr{Port: ownPort})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	l, err := ns.Listen("tcp", fmt.Sprintf(":%d", ownPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go converse(c)
		}
	}()
	go func() {
		b := make([]byte, 200)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(append(b[:n:n], ns.Name...), from)
		}
	}()
}

// talkative is the first byte that a client sends to request a constant stream of data.
const talkative = "t"

func converse(c net.Conn) {
	defer c.Close()
	b := make([]byte, 1)
	if _, err := c.Read(b); err != nil {
		return
	}
	_, _ = c.Write(b)
	if string(b) == talkative {
		go chatter(c)
	}
	_, _ = io.Copy(c, c)
}

// chatter writes to a connection every 20 ms until a write fails.
func chatter(c net.Conn) {
	for {
		if _, err := c.Write([]byte(".")); err != nil {
			return
		}
		time.Sleep(20 * time.Millisecond) // the pause between writes
	}
}

// ask sends a single query as a client would, and returns the name of the host that answers, or "".
func ask(t *testing.T, client *lab.NS, to netip.AddrPort) string {
	t.Helper()
	c, err := client.Dial(t.Context(), "udp", to.String())
	if err != nil {
		return ""
	}
	defer c.Close()
	_, _ = c.Write([]byte("?"))
	_ = c.SetReadDeadline(time.Now().Add(wait.Scaled(200 * time.Millisecond)))
	b := make([]byte, 200)
	n, err := c.Read(b)
	if err != nil {
		return ""
	}
	return string(b[1:n])
}

// prober queries a VIP with one protocol every 5 ms. It sends queries as a client would, and also
// sends queries directly to each host's MAC address. A TCP query is a SYN from a new port. The
// client's kernel answers a SYN-ACK with a reset.
type prober struct {
	own, vip netip.Addr
	protocol byte
	hosts    map[string]string // names by MAC address
	first    uint32            // number of query 0; late answers to a previous prober have other numbers

	mu    sync.Mutex // guards the fields below
	asked map[uint32]time.Time
	// client holds the hosts that answered each query that was sent as a client would, and straight
	// the hosts that answered each direct query.
	client, straight map[uint32][]string
	lastAnswer       map[string]time.Time // when each host last answered

	stop chan struct{}
	done sync.WaitGroup
}

func newProber(own, vip netip.Addr, protocol byte) *prober {
	return &prober{
		own: own, vip: vip, protocol: protocol, hosts: map[string]string{}, first: rand.Uint32(), asked: map[uint32]time.Time{},
		client: map[uint32][]string{}, straight: map[uint32][]string{}, lastAnswer: map[string]time.Time{}, stop: make(chan struct{}),
	}
}

func probe(t *testing.T, client *lab.NS, device string, own, vip netip.Addr, protocol byte, hosts []*lab.NS) *prober {
	t.Helper()
	p := newProber(own, vip, protocol)
	for _, h := range hosts {
		if err := h.Do(func() error {
			link, err := net.InterfaceByName(device)
			if err == nil {
				p.hosts[string(link.HardwareAddr)] = h.Name
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Do(func() error { return p.start(device) }); err != nil {
		t.Fatal(err)
	}
	return p
}

// start opens the prober's sockets in the current namespace, and starts the prober.
func (p *prober) start(device string) error {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	frames, err := packets(link.Index, p.vip)
	if err != nil {
		return err
	}
	opened := []io.Closer{frames}
	if p.protocol == unix.IPPROTO_UDP {
		for _, straight := range []bool{false, true} { // without these sockets, this host would report that the ports are unreachable
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.own, p.port(0, straight))))
			if err != nil {
				return err
			}
			opened = append(opened, c)
		}
	}
	network := "ip4"
	if p.vip.Is6() {
		network = "ip6"
	}
	raw, err := net.ListenIP(fmt.Sprintf("%s:%d", network, p.protocol), &net.IPAddr{IP: p.own.AsSlice()})
	if err != nil {
		return err
	}
	p.done.Go(func() { p.listen(frames) })
	p.done.Go(func() {
		p.ask(raw, frames, link.HardwareAddr)
		for _, c := range append(opened, raw) {
			_ = c.Close()
		}
	})
	return nil
}

// packets opens a socket for Ethernet frames of the address's IP version.
func packets(device int, like netip.Addr) (*os.File, error) {
	kind := uint16(unix.ETH_P_IP)
	if like.Is6() {
		kind = unix.ETH_P_IPV6
	}
	kind = kind<<8 | kind>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20); err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: kind, Ifindex: device})
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "frames"), nil
}

// These are TCP flags.
const syn, rst = 2, 4

// ask sends queries until stop is closed.
func (p *prober) ask(usual *net.IPConn, frames *os.File, mac net.HardwareAddr) {
	for id := uint32(1); ; id++ {
		select {
		case <-p.stop:
			time.Sleep(100 * time.Millisecond) // wait for late answers
			return
		case <-time.After(5 * time.Millisecond):
		}
		p.mu.Lock()
		p.asked[id] = time.Now()
		p.mu.Unlock()
		_, _ = usual.WriteToIP(p.question(id, false), &net.IPAddr{IP: p.vip.AsSlice()})
		packet := p.packet(p.question(id, true))
		for host := range p.hosts {
			_, _ = frames.Write(slices.Concat([]byte(host), mac, packet))
		}
	}
}

// port returns a query's source port. Its lowest bit is set if the query is sent directly to a
// host.
func (p *prober) port(id uint32, straight bool) uint16 {
	if p.protocol == unix.IPPROTO_UDP {
		id = 0
	}
	port := 1024 + 2*uint16((p.first+id)%15000) // below the kernel's ephemeral ports
	if straight {
		port++
	}
	return port
}

// question returns a datagram that contains the query's number, or a SYN whose sequence number is
// the query's number.
func (p *prober) question(id uint32, straight bool) []byte {
	b := binary.BigEndian.AppendUint16(nil, p.port(id, straight))
	b = binary.BigEndian.AppendUint16(b, probePort)
	at := 6 // offset of the checksum
	if p.protocol == unix.IPPROTO_UDP {
		b = binary.BigEndian.AppendUint32(append(b, 0, 12, 0, 0), p.first+id)
	} else {
		at = 16
		b = append(binary.BigEndian.AppendUint32(b, p.first+id), 0, 0, 0, 0, 5<<4, syn, 0xff, 0xff, 0, 0, 0, 0)
	}
	pseudo := slices.Concat(p.own.AsSlice(), p.vip.AsSlice(), []byte{0, byte(len(b)), 0, p.protocol}, b)
	binary.BigEndian.PutUint16(b[at:], checksum(pseudo))
	return b
}

// packet returns a frame to the VIP with this payload. The MAC addresses are missing.
func (p *prober) packet(payload []byte) []byte {
	n := byte(len(payload))
	kind, ip := []byte{8, 0}, []byte{0x45, 0, 0, 20 + n, 0, 0, 0x40, 0, 64, p.protocol, 0, 0}
	if p.vip.Is6() {
		kind, ip = []byte{0x86, 0xdd}, []byte{0x60, 0, 0, 0, 0, n, p.protocol, 64}
	}
	if ip = slices.Concat(ip, p.own.AsSlice(), p.vip.AsSlice()); p.vip.Is4() {
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	}
	return slices.Concat(kind, ip, payload)
}

func (p *prober) listen(frames *os.File) {
	b := make([]byte, 2000)
	for {
		n, err := frames.Read(b)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err == nil {
			p.receive(b[:n])
		}
	}
}

// instant is shorter than any move of a VIP. A later answer to a direct query does not prove when
// the host had the VIP, because a busy machine may pause between a query's frames.
const instant = 5 * time.Millisecond

// receive processes a frame that may be an answer. A reset shows that a host answered even though
// it should be silent, but does not count as an answer to the client's queries.
func (p *prober) receive(frame []byte) {
	const ethernet, shortest = 14, 14
	kind, from, size := 9, 12, 20 // offsets of the protocol and source address in an IPv4 header, and its size
	if p.vip.Is6() {
		kind, from, size = 6, 8, 40
	}
	if len(frame) < ethernet+size+shortest {
		return
	}
	ip, b := frame[ethernet:], frame[ethernet+size:]
	if ip[kind] != p.protocol || string(ip[from:from+p.vip.BitLen()/8]) != string(p.vip.AsSlice()) || binary.BigEndian.Uint16(b) != probePort {
		return
	}
	number, reset := binary.BigEndian.Uint32(b[8:]), false
	if p.protocol == unix.IPPROTO_TCP {
		number, reset = number-1, b[13]&rst != 0
	}
	who, id := p.client, number-p.first
	if b[3]&1 == 1 {
		who = p.straight
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at, known := p.asked[id]
	if !known || reset && b[3]&1 == 0 {
		return
	}
	host := p.hosts[string(frame[6:12])]
	p.lastAnswer[host] = time.Now()
	if b[3]&1 == 0 || time.Since(at) < instant {
		who[id] = append(who[id], host)
	}
}

// probers holds probers for several VIPs and protocols.
type probers []*prober

// gap stops the probers. It returns how long no host answered at most for each protocol, and the
// hosts that answered each query to which two hosts answered.
func (all probers) gap() (udp, tcp time.Duration, dual [][]string) {
	for _, p := range all {
		close(p.stop)
	}
	for _, p := range all {
		one, two := p.gap()
		if dual = append(dual, two...); p.protocol == unix.IPPROTO_UDP {
			udp = max(udp, one)
		} else {
			tcp = max(tcp, one)
		}
	}
	return udp, tcp, dual
}

// gap waits until the prober has stopped. It returns how long the client's queries were not
// answered at most, and the hosts that answered each query to which two hosts answered. It ignores
// queries that a busy machine sent late.
func (p *prober) gap() (gap time.Duration, dual [][]string) {
	p.done.Wait()
	last := uint32(0)
	for id := uint32(1); id <= uint32(len(p.asked)); id++ {
		if distinct(p.straight[id]) > 1 {
			dual = append(dual, p.straight[id])
		}
		if len(p.client[id]) == 0 {
			continue
		}
		if last > 0 && id > last+1 {
			gap = max(gap, p.asked[id].Sub(p.asked[last]))
		}
		last = id
	}
	return gap, dual
}

func distinct(names []string) int {
	all := map[string]bool{}
	for _, n := range names {
		all[n] = true
	}
	return len(all)
}

// checksum returns the IP checksum of an even number of bytes.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// queryVIPs queries VIPs over UDP as a client would. It repeats queries until, for each VIP, a host
// has answered for which wanted returns true.
func (f *fleet) queryVIPs(vips []netip.Addr, what string, wanted func(host string) bool) {
	f.t.Helper()
	pc, err := f.client.ListenPacket("udp4", ":0")
	if err != nil {
		f.t.Fatal(err)
	}
	c := pc.(*net.UDPConn)
	_ = c.SetReadBuffer(4 << 20) // if answers are lost, queries are repeated
	var mu sync.Mutex            // guards left
	left := map[netip.Addr]bool{}
	for _, v := range vips {
		left[v] = true
	}
	var hearing sync.WaitGroup
	hearing.Go(func() {
		b := make([]byte, 200)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && wanted(string(b[1:n])) {
				mu.Lock()
				delete(left, from.Addr().Unmap())
				mu.Unlock()
			}
		}
	})
	defer hearing.Wait()
	defer c.Close()
	wait.For(f.t, wait.Patience, what, func() bool {
		mu.Lock()
		now := slices.Collect(maps.Keys(left))
		mu.Unlock()
		for i, v := range now {
			if i%50 == 49 {
				time.Sleep(time.Millisecond) // pauses, because a packet queue holds 1,000 packets
			}
			_, _ = c.WriteToUDPAddrPort([]byte("?"), netip.AddrPortFrom(v, probePort))
		}
		return len(now) == 0
	})
}

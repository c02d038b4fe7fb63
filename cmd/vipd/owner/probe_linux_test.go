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

// probePort is that of the service on the VIPs. Each host leads it to itself, at ownPort of all its
// addresses.
const (
	probePort = 9000
	ownPort   = 9001
)

// respond has a host answer each datagram with what it was, and its name, and converse on
// connections.
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

// talkative is the first that a client says who is told something all the time.
const talkative = "t"

// converse gives a client back what it says.
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

// chatter says something on a connection every 20 ms until that fails.
func chatter(c net.Conn) {
	for {
		if _, err := c.Write([]byte(".")); err != nil {
			return
		}
		time.Sleep(20 * time.Millisecond) // the pace of the chatter
	}
}

// ask asks once as a client does, and returns which host answers; "" means none does.
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

// prober asks for a VIP every 5 ms by one protocol: as a client does, and each host straight, by
// its MAC. By TCP a question is a SYN from another port each time, which the client's kernel resets
// when it is answered.
type prober struct {
	own, vip netip.Addr
	protocol byte
	hosts    map[string]string // their names by MAC
	first    uint32            // the number of question 0: late answers to an earlier prober have others

	mu    sync.Mutex // guards what follows
	asked map[uint32]time.Time
	// client and straight have who answered a question.
	client, straight map[uint32][]string
	said             map[string]time.Time // when each host has last answered

	stop chan struct{}
	done sync.WaitGroup
}

func newProber(own, vip netip.Addr, protocol byte) *prober {
	return &prober{
		own: own, vip: vip, protocol: protocol, hosts: map[string]string{}, first: rand.Uint32(), asked: map[uint32]time.Time{},
		client: map[uint32][]string{}, straight: map[uint32][]string{}, said: map[string]time.Time{}, stop: make(chan struct{}),
	}
}

// probe begins to ask.
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

// start opens what the prober needs in this namespace, and lets it run.
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
		for _, straight := range []bool{false, true} { // for which this host would say else that nobody is there
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

// packets reads and writes frames of IP as it is that of an address.
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

// Flags of TCP.
const syn, rst = 2, 4

// ask asks until it is told to stop.
func (p *prober) ask(usual *net.IPConn, frames *os.File, mac net.HardwareAddr) {
	for id := uint32(1); ; id++ {
		select {
		case <-p.stop:
			time.Sleep(100 * time.Millisecond) // the last answers are on their way
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

// port is where a question comes from: the last bit tells who was asked.
func (p *prober) port(id uint32, straight bool) uint16 {
	if p.protocol == unix.IPPROTO_UDP {
		id = 0
	}
	port := 1024 + 2*uint16((p.first+id)%15000) // below those that kernels choose
	if straight {
		port++
	}
	return port
}

// question is a datagram with the number of a question, or a SYN with that as its sequence number.
func (p *prober) question(id uint32, straight bool) []byte {
	b := binary.BigEndian.AppendUint16(nil, p.port(id, straight))
	b = binary.BigEndian.AppendUint16(b, probePort)
	at := 6 // of the checksum
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

// packet is a frame without its addresses: the kind, and a packet with this payload to the VIP.
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
			p.hear(b[:n])
		}
	}
}

// instant is less than a VIP needs to go from one host to another. An answer that comes later to a
// question that was put to each host does not tell when its host had the VIP: on a busy machine
// time passes between the frames of one question.
const instant = 5 * time.Millisecond

// hear takes in a frame, which may be an answer. A reset is one of a host that should be silent,
// and to a client none.
func (p *prober) hear(frame []byte) {
	const ethernet, shortest = 14, 14
	kind, from, size := 9, 12, 20 // of IPv4: where the protocol and the address are, and the size of a header
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
	p.said[host] = time.Now()
	if b[3]&1 == 0 || time.Since(at) < instant {
		who[id] = append(who[id], host)
	}
}

// probers ask for a VIP each.
type probers []*prober

// gap ends the asking, and returns the longest time of each protocol, and the questions that two
// hosts answered.
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

// gap waits for the end of the asking, and returns the longest time for which the client's
// questions had no answer, and the questions that two hosts answered. A client that asks late,
// because this machine is busy, has missed nothing.
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

// checksum returns the checksum of IP over an even number of bytes.
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

// asks asks for VIPs by UDP as a client does, each round for those that a wanted host has not
// answered for, until one has for all.
func (f *fleet) asks(vips []netip.Addr, what string, wanted func(host string) bool) {
	f.t.Helper()
	pc, err := f.client.ListenPacket("udp4", ":0")
	if err != nil {
		f.t.Fatal(err)
	}
	c := pc.(*net.UDPConn)
	_ = c.SetReadBuffer(4 << 20) // what is lost for less is asked for again
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
				time.Sleep(time.Millisecond) // a queue of packets has 1,000 places
			}
			_, _ = c.WriteToUDPAddrPort([]byte("?"), netip.AddrPortFrom(v, probePort))
		}
		return len(now) == 0
	})
}

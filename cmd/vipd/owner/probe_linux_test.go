package owner

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/test/lab"
	"vipd/test/wait"
)

// probePort is that of the service on the VIPs. Each host leads it to itself, at ownPort of all its addresses.
const (
	probePort = 9000
	ownPort   = 9001
)

// respond has a host answer each datagram with what it was, and its name, and converse on connections.
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
		time.Sleep(20 * time.Millisecond)
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

// prober asks for the VIP every 5 ms: as a client does, and each host straight, by its MAC.
type prober struct {
	mu    sync.Mutex // guards what follows
	asked map[uint64]time.Time
	// client and straight have who answered a question.
	client, straight map[uint64][]string

	stop chan struct{}
	done sync.WaitGroup
}

// probe begins to ask.
func probe(t *testing.T, client *lab.NS, device string, own, vip netip.Addr, hosts []*lab.NS) *prober {
	t.Helper()
	p := &prober{asked: map[uint64]time.Time{}, client: map[uint64][]string{}, straight: map[uint64][]string{}, stop: make(chan struct{})}
	var macs []net.HardwareAddr
	for _, h := range hosts {
		if err := h.Do(func() error {
			link, err := netlink.LinkByName(device)
			if err == nil {
				macs = append(macs, link.Attrs().HardwareAddr)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	var usual, raw *net.UDPConn
	var link netlink.Link
	fd := -1
	if err := client.Do(func() (err error) {
		at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(own, 0))
		if usual, err = net.ListenUDP("udp", at); err != nil {
			return err
		}
		if raw, err = net.ListenUDP("udp", at); err != nil {
			return err
		}
		if link, err = netlink.LinkByName(device); err != nil {
			return err
		}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	p.done.Go(func() { p.listen(usual, p.client) })
	p.done.Go(func() { p.listen(raw, p.straight) })
	p.done.Go(func() {
		defer unix.Close(fd)
		defer raw.Close()
		defer usual.Close()
		from := netip.AddrPortFrom(own, raw.LocalAddr().(*net.UDPAddr).AddrPort().Port())
		for id := uint64(1); ; id++ {
			select {
			case <-p.stop:
				time.Sleep(100 * time.Millisecond) // the last answers are on their way
				return
			case <-time.After(5 * time.Millisecond):
			}
			question := binary.BigEndian.AppendUint64(nil, id)
			p.mu.Lock()
			p.asked[id] = time.Now()
			p.mu.Unlock()
			_, _ = usual.WriteToUDPAddrPort(question, netip.AddrPortFrom(vip, probePort))
			for _, mac := range macs {
				frame := datagram(mac, link.Attrs().HardwareAddr, from, netip.AddrPortFrom(vip, probePort), question)
				_ = unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index, Halen: 6})
			}
		}
	})
	return p
}

func (p *prober) listen(c *net.UDPConn, answers map[uint64][]string) {
	b := make([]byte, 200)
	for {
		n, err := c.Read(b)
		if err != nil {
			if _, closed := err.(*net.OpError); closed && n == 0 && !isRefused(err) {
				return
			}
			continue
		}
		id := binary.BigEndian.Uint64(b)
		p.mu.Lock()
		answers[id] = append(answers[id], string(b[8:n]))
		p.mu.Unlock()
	}
}

func isRefused(err error) bool {
	e, ok := err.(*net.OpError)
	return ok && e.Err != net.ErrClosed && e.Err.Error() != "use of closed network connection"
}

// probers ask for a VIP each.
type probers []*prober

// gap ends the asking, and returns the longest time and the questions of all.
func (all probers) gap() (gap time.Duration, dual [][]string) {
	for _, p := range all {
		one, two := p.gap()
		gap, dual = max(gap, one), append(dual, two...)
	}
	return gap, dual
}

// gap ends the asking, and returns the longest time for which the client's questions had no answer, and the questions that two hosts
// answered. A client that asks late, because this machine is busy, has missed nothing.
func (p *prober) gap() (gap time.Duration, dual [][]string) {
	close(p.stop)
	p.done.Wait()
	last := uint64(0)
	for id := uint64(1); id <= uint64(len(p.asked)); id++ {
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

// datagram is an Ethernet frame with a datagram of UDP.
func datagram(to, from net.HardwareAddr, src, dst netip.AddrPort, payload []byte) []byte {
	segment := []byte{}
	for _, v := range []uint16{src.Port(), dst.Port(), uint16(8 + len(payload)), 0} {
		segment = binary.BigEndian.AppendUint16(segment, v)
	}
	segment = append(segment, payload...)
	addrs := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	pseudo := append(append([]byte{}, addrs...), 0, byte(len(segment)), 0, unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(segment[6:], checksum(append(pseudo, segment...)))

	kind, ip := []byte{8, 0}, []byte{0x45, 0, 0, byte(20 + len(segment)), 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0}
	if dst.Addr().Is6() {
		kind, ip = []byte{0x86, 0xdd}, []byte{0x60, 0, 0, 0, 0, byte(len(segment)), unix.IPPROTO_UDP, 64}
	}
	if ip = append(ip, addrs...); dst.Addr().Is4() {
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	}
	return slices.Concat(to, from, kind, ip, segment)
}

// checksum is that of IP, over an even number of bytes.
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

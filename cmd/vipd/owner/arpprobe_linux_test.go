package owner

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"vipd/test/lab"
)

// arpEvery is the interval at which an arpProbe sends requests.
const arpEvery = 5 * time.Millisecond

// arpProbe sends an ARP request for a VIP every 5 ms, to find out which host has the VIP. The
// sender address identifies the request, because replies contain it.
type arpProbe struct {
	vip  netip.Addr
	conn *packet.Conn
	mac  net.HardwareAddr

	mu    sync.Mutex // guards asked
	asked []arpRequest

	stop chan struct{}
	done sync.WaitGroup
}

// arpRequest is a request and the MAC addresses of the hosts that answered it.
type arpRequest struct {
	at    time.Time
	hosts []string
}

// newARPProbe starts a probe in a namespace whose device lan is in the network 10.9.0.0/16.
func newARPProbe(t *testing.T, client *lab.NS, vip netip.Addr) *arpProbe {
	t.Helper()
	p := &arpProbe{vip: vip, stop: make(chan struct{})}
	if err := client.Do(func() error {
		device, err := net.InterfaceByName("lan")
		if err == nil {
			p.mac = device.HardwareAddr
			p.conn, err = packet.Listen(device, packet.Raw, unix.ETH_P_ARP, nil)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	p.done.Go(p.receive)
	p.done.Go(p.send)
	t.Cleanup(func() { close(p.stop); _ = p.conn.Close(); p.done.Wait() })
	return p
}

// arpSenders is the number of sender addresses. A request accepts answers until its address is used
// again.
const arpSenders = 250

func (p *arpProbe) send() {
	ticker := time.NewTicker(arpEvery)
	defer ticker.Stop()
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for {
		p.mu.Lock()
		sender := netip.AddrFrom4([4]byte{10, 9, 1, byte(len(p.asked)%arpSenders + 1)})
		p.asked = append(p.asked, arpRequest{at: time.Now()})
		p.mu.Unlock()
		frame := slices.Concat(broadcast, p.mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, p.mac, sender.AsSlice(), make([]byte, 6), p.vip.AsSlice())
		_, _ = p.conn.WriteTo(frame, &packet.Addr{HardwareAddr: broadcast}) // a lost request is not answered
		select {
		case <-p.stop:
			return
		case <-ticker.C:
		}
	}
}

func (p *arpProbe) receive() {
	b := make([]byte, 2000)
	for {
		n, _, err := p.conn.ReadFrom(b)
		if err != nil {
			return
		}
		f := b[:n]
		const reply = 2
		if n < 42 || binary.BigEndian.Uint16(f[20:]) != reply || !bytes.Equal(f[:6], p.mac) || !bytes.Equal(f[28:32], p.vip.AsSlice()) {
			continue
		}
		p.answered(int(f[41]), net.HardwareAddr(f[22:28]).String())
	}
}

func (p *arpProbe) answered(sender int, mac string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.asked) - 1; i >= max(0, len(p.asked)-arpSenders); i-- {
		if i%arpSenders+1 == sender {
			if hosts := &p.asked[i].hosts; !slices.Contains(*hosts, mac) {
				*hosts = append(*hosts, mac)
			}
			return
		}
	}
}

// since returns the requests that were sent since the time at.
func (p *arpProbe) since(at time.Time) (all []arpRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := len(p.asked)
	for i > 0 && !p.asked[i-1].at.Before(at) {
		i--
	}
	for _, r := range p.asked[i:] {
		all = append(all, arpRequest{r.at, slices.Clone(r.hosts)})
	}
	return all
}

// first returns how long after the time after the host mac first answered, or 0 if it did not
// answer.
func (p *arpProbe) first(mac string, after time.Time) time.Duration {
	for _, r := range p.since(after) {
		if slices.Contains(r.hosts, mac) {
			return r.at.Sub(after)
		}
	}
	return 0
}

// gap returns how long neither host answered: from the last answer of the host from to the first
// answer of the host to. It ignores requests that were sent before the time after.
func (p *arpProbe) gap(from, to string, after time.Time) time.Duration {
	last := after
	for _, r := range p.since(after) {
		if slices.Contains(r.hosts, from) {
			last = r.at
		}
		if slices.Contains(r.hosts, to) {
			return r.at.Sub(last)
		}
	}
	return 0
}

// twice counts the requests since the time after that two hosts answered.
func (p *arpProbe) twice(after time.Time) (n int) {
	for _, r := range p.since(after) {
		if len(r.hosts) > 1 {
			n++
		}
	}
	return n
}

// only reports whether only the host mac has answered recently. It ignores the newest requests.
func (p *arpProbe) only(mac string) bool {
	const while, newest = 40, 10
	all := p.since(time.Now().Add(-2 * while * arpEvery))
	all = all[:max(0, len(all)-newest)]
	if len(all) < while-newest {
		return false
	}
	return !slices.ContainsFunc(all, func(r arpRequest) bool { return len(r.hosts) != 1 || r.hosts[0] != mac })
}

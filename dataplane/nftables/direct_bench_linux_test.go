package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/fake"
	"vipd/test/lab"
)

// BenchmarkForward measures the CPU time that the host needs for a packet, for services with ten
// endpoints that use nat or dr. It subtracts the "floor", the CPU time for the same frames if the
// host ignores them and has no rules, because the chain of dr sees even ignored frames. The
// sender's thread also does the receiver's work for a veth, so its CPU time includes the whole
// path.
func BenchmarkForward(b *testing.B) {
	for _, forward := range []balancer.Forward{balancer.NATForward, balancer.DRForward} {
		b.Run(string(forward), func(b *testing.B) {
			p := newForwardPath(b, forward)
			b.Run("first", func(b *testing.B) { p.measure(b, balancer.TCP, true) })
			b.Run("established", func(b *testing.B) { p.measure(b, balancer.UDP, false) }) // a UDP flow counts as established without a reply
		})
	}
}

// forwardPath sends frames from a client through the host to a device, which drops them.
type forwardPath struct {
	fd        int
	host, own net.HardwareAddr
	arrived   func() uint64
	d         *Dataplane
	floor     time.Duration // CPU time of turnPackets ignored frames, while the host has no rules
}

func newForwardPath(b *testing.B, forward balancer.Forward) *forwardPath {
	b.Helper()
	d := newBench(b)
	l := lab.New(b)
	client, sink := l.Add("client"), l.Add("sink")
	l.Link(l.Host(), client, "10.1.0.1/24", "10.1.0.2/24")
	l.Link(l.Host(), sink, "10.2.0.1/24", "10.2.0.2/24")
	l.Host().Sysctl("net.ipv4.ip_forward", "1")
	l.Host().Sysctl("net.netfilter.nf_conntrack_checksum", "0") // the frames have no valid TCP checksum
	sink.Exec("nft", `add table netdev sink; add chain netdev sink in { type filter hook ingress device "host" priority 0; policy drop; }`)
	link := func(name string) netlink.Link {
		found, err := netlink.LinkByName(name)
		if err != nil {
			b.Fatal(err)
		}
		return found
	}
	f := fake.Frontend("10.96.0.1:80", fake.Forward(forward))
	f.Scheduler, f.Backends = balancer.Random, nil
	for i := range 10 {
		a := netip.AddrFrom4([4]byte{10, 2, 0, byte(10 + i)})
		f.Backends = append(f.Backends, balancer.Backend{Addr: netip.AddrPortFrom(a, 80), State: balancer.Active, Weight: 1})
		l.Host().Exec("ip", "neigh", "replace", a.String(), "lladdr", "02:00:00:00:00:01", "dev", "sink")
	}
	datagrams := *f
	datagrams.Proto = balancer.UDP
	p := &forwardPath{d: d, host: link("client").Attrs().HardwareAddr, own: net.HardwareAddr{2, 0, 0, 0, 0, 2}}
	p.arrived = func() uint64 { return link("sink").Attrs().Statistics.TxPackets }
	err := client.Do(func() (err error) {
		p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return unix.Bind(p.fd, &unix.SockaddrLinklayer{Ifindex: index(b, client, "host")})
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = unix.Close(p.fd)
		if err := d.Close(context.Background(), false); err != nil {
			b.Error(err)
		}
	})
	p.floor = p.cheapest(b, func() []byte { return frame(net.HardwareAddr{2, 0, 0, 0, 0, 3}, p.own, balancer.UDP, 0) })
	if err := d.Apply(b.Context(), []dataplane.Change{{Key: f.Key, New: f}, {Key: datagrams.Key, New: &datagrams}}); err != nil {
		b.Fatal(err)
	}
	return p
}

func index(b *testing.B, n *lab.NS, name string) (i int) {
	b.Helper()
	if _, err := fmt.Sscanf(n.Exec("ip", "-o", "link", "show", name), "%d:", &i); err != nil {
		b.Fatal(err)
	}
	return i
}

// rounds is how often the path and the floor are measured. turnPackets is the number of packets in
// each measurement.
const rounds, turnPackets = 40, 2000

// cheapest returns the minimum CPU time for turnPackets frames. The first turn only warms up
// caches.
func (p *forwardPath) cheapest(b *testing.B, next func() []byte) time.Duration {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	least := time.Hour
	for i := range rounds + 1 {
		began := threadTime(b)
		for range turnPackets {
			if err := unix.Send(p.fd, next(), 0); err != nil {
				b.Fatal(err)
			}
		}
		if took := threadTime(b) - began; i > 0 {
			least = min(least, took)
		}
	}
	return least
}

// measure reports the minimum CPU time for a packet, minus the floor. If first is true, each packet
// opens a connection. Otherwise, all packets belong to one connection.
func (p *forwardPath) measure(b *testing.B, proto balancer.Protocol, first bool) {
	b.Helper()
	n := uint32(0)
	next := func() []byte {
		if first {
			n++
		}
		return frame(p.host, p.own, proto, n)
	}
	for b.Loop() {
		before := p.arrived()
		path := p.cheapest(b, next)
		if got := p.arrived() - before; got < rounds*turnPackets {
			b.Fatalf("forwarded packets = %d, want %d", got, rounds*turnPackets)
		}
		b.ReportMetric(float64((path-p.floor).Nanoseconds())/turnPackets, "cpu-ns/packet")
		b.ReportMetric(float64(p.floor.Nanoseconds())/turnPackets, "floor-ns")
	}
}

// threadTime returns the current thread's CPU time.
func threadTime(b *testing.B) time.Duration {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// frame returns an Ethernet frame from client number n. It contains a SYN for TCP, and a datagram
// for UDP.
func frame(to, from net.HardwareAddr, proto balancer.Protocol, n uint32) []byte {
	size := 40
	if proto == balancer.UDP {
		size = 28
	}
	b := append(append(make([]byte, 0, 60), to...), from...)
	b = append(b, 8, 0, 0x45, 0, 0, byte(size), 0, 0, 0, 0, 64, proto.Number(), 0, 0)
	b = append(b, 172, 16|byte(n>>24&15), byte(n>>16), byte(n>>8)|1, 10, 96, 0, 1)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(b[24:], ^uint16(sum+sum>>16))
	b = binary.BigEndian.AppendUint16(b, 1024+uint16(n&0x7fff))
	b = append(b, 0, 80)
	if proto == balancer.UDP {
		return append(b, 0, 8, 0, 0)
	}
	return append(b, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0)
}

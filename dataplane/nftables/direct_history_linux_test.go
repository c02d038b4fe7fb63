package nftables

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/test/lab"
	"vipd/test/wait"
)

// intact returns the reason from Intact.
func (s *segment) intact() string {
	s.Helper()
	reason, err := s.d.Intact(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return reason
}

// openTo opens connections until one reaches the named server. It returns this connection.
func (s *segment) openTo(server string, key balancer.Key) net.Conn {
	s.Helper()
	for range 100 {
		c, a, err := s.ask(key)
		if err != nil {
			s.Fatal(err)
		}
		if a.Server == server {
			s.Cleanup(func() { _ = c.Close() })
			return c
		}
		_ = c.Close()
	}
	s.Fatalf("%s: no connection reaches %s, want at least one", key, server)
	return nil
}

// echoes sends size bytes over a connection. It returns an error unless the server sends the same
// bytes back.
func echoes(c net.Conn, size int) error {
	_ = c.SetDeadline(time.Now().Add(wait.Scaled(3 * time.Second)))
	sent, got := bytes.Repeat([]byte("v"), size), make([]byte, size)
	if _, err := c.Write(sent); err != nil {
		return err
	}
	for n := 0; n < size; {
		more, err := c.Read(got[n:])
		if n += more; err != nil {
			return err
		}
	}
	if !bytes.Equal(sent, got) {
		return errors.New("the server returned other data")
	}
	return nil
}

// TestDirectDrain drains a server. An open connection to this server must continue until the drain
// ends. Then all clients must reach the other server.
func TestDirectDrain(t *testing.T) {
	s := newSegment(t, 2)
	f := s.frontend(segmentVIPs[0], balancer.TCP, 1, 2)
	s.apply(f)
	c := s.openTo("s1", f.Key)
	drained := *f
	drained.Backends = []balancer.Backend{{Addr: f.Backends[0].Addr, State: balancer.Draining}, f.Backends[1]}
	s.apply(&drained)
	if err := echoes(c, 100); err != nil {
		t.Errorf("connection to a draining server: error = %v, want nil", err)
	}
	drained.DrainTimeout = time.Nanosecond // applies only to drains that start later
	s.apply(&drained)
	if err := echoes(c, 100); err != nil {
		t.Errorf("connection after another change during the drain: error = %v, want nil", err)
	}
	s.apply(f)
	s.apply(&drained)
	if reason := s.intact(); reason != "" {
		t.Errorf("Intact = %q, want no reason", reason)
	}
	if got := s.tally(f.Key, 10); got["s2"] != 10 {
		t.Errorf("after the drain: servers that answer = %v, want only s2", got)
	}
}

// TestDirectDrainFragments drains a server of a UDP service. After the drain, the slots for
// fragments must not contain this server.
func TestDirectDrainFragments(t *testing.T) {
	s := newSegment(t, 2)
	f := s.frontend(segmentVIPs[0], balancer.UDP, 1, 2)
	s.apply(f)
	drained := *f
	drained.DrainTimeout = 100 * time.Millisecond
	drained.Backends = []balancer.Backend{{Addr: f.Backends[0].Addr, State: balancer.Draining}, f.Backends[1]}
	s.apply(&drained)
	for _, name := range []string{"counted4", "fragments4"} {
		wait.For(t, 3*time.Second, "the map "+name+" has no slots of the drained server", func() bool {
			s.intact()
			return !strings.Contains(s.lab.Host().Exec("nft", "list", "map", "netdev", "vipd", name), ": 10.4.0.11")
		})
	}
}

// TestDirectClosing drains all servers. An open connection must continue. A new connection must not
// reach any server.
func TestDirectClosing(t *testing.T) {
	s := newSegment(t, 2)
	f := s.frontend(segmentVIPs[0], balancer.TCP, 1, 2)
	s.apply(f)
	c := s.openTo("s1", f.Key)
	drained := *f
	drained.Backends = []balancer.Backend{{Addr: f.Backends[0].Addr, State: balancer.Draining}, {Addr: f.Backends[1].Addr, State: balancer.Draining}}
	s.apply(&drained)
	s.lab.Host().AddAddr("lo", "10.96.0.1/32") // the host then refuses connections that it does not forward
	if err := echoes(c, 100); err != nil {
		t.Errorf("open connection while all servers drain: error = %v, want nil", err)
	}
	if _, _, err := s.ask(f.Key); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("new connection while all servers drain: error = %v, want a refusal", err)
	}
}

// TestDirectDevices adds, renames, deletes and again adds a client's device. While the device
// exists, the client must get answers from the VIP. Intact must never report drift.
func TestDirectDevices(t *testing.T) {
	s := newSegment(t, 1)
	s.lab.Host().Sysctl("net.ipv4.ip_forward", "1")
	f := s.frontend(segmentVIPs[0], balancer.TCP, 1)
	s.apply(f)
	s.servers[0].Route("10.5.0.0/24", "10.4.0.1")
	guest := s.lab.Add("guest")
	asks := func(when string) {
		t.Helper()
		if reason := s.intact(); reason != "" {
			t.Errorf("%s: Intact = %q, want no reason", when, reason)
		}
		local := *s
		local.client = guest
		c, a, err := local.ask(f.Key)
		if err != nil || a.Local != f.Key.AddrPort() {
			t.Fatalf("%s: answer = %v, %v; want an answer from the VIP", when, a, err)
		}
		_ = c.Close()
	}
	for _, when := range []string{"after the device was added", "after it was added again"} {
		s.lab.Link(s.lab.Host(), guest, "10.5.0.1/24", "10.5.0.2/24")
		guest.Exec("ip", "route", "replace", "10.96.0.0/24", "via", "10.5.0.1")
		asks(when)
		s.lab.Host().Exec("ip", "link", "set", "guest", "name", "renamed")
		asks(when + " and renamed")
		s.lab.Host().Exec("ip", "link", "delete", "renamed")
		if reason := s.intact(); reason != "" {
			t.Errorf("after the device was deleted: Intact = %q, want no reason", reason)
		}
		s.tally(f.Key, 2)
	}
}

// TestDirectDeviceDown takes an endpoint's device down and up again, while another route also
// matches the endpoint's address. The slots must not change, and an open connection must survive.
func TestDirectDeviceDown(t *testing.T) {
	s := newSegment(t, 1)
	s.lab.Link(s.lab.Host(), s.lab.Add("router"), "10.5.0.1/24", "10.5.0.2/24")
	s.lab.Host().Default("10.5.0.2")
	f := s.frontend(segmentVIPs[0], balancer.TCP, 1)
	s.apply(f)
	c, _, err := s.ask(f.Key)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for _, state := range []string{"down", "up"} {
		s.lab.Host().Exec("ip", "link", "set", "lan", state)
		if reason := s.intact(); reason != "" {
			t.Errorf("device %s: Intact = %q, want no reason", state, reason)
		}
		if slots := s.lab.Host().Exec("nft", "list", "map", "netdev", "vipd", "slots4"); !strings.Contains(slots, "10.4.0.11") {
			t.Errorf("device %s: slots = %s, want 10.4.0.11 among them", state, slots)
		}
	}
	if err := echoes(c, 100); err != nil {
		t.Errorf("open connection: error = %v, want nil", err)
	}
}

// TestDirectFragments sends datagrams in fragments. They must arrive while all of the VIP's UDP
// services have the same servers.
func TestDirectFragments(t *testing.T) {
	s := newSegment(t, 2)
	s.apply(s.all(1, 2)...)
	for _, vip := range segmentVIPs {
		key := s.frontend(vip, balancer.UDP).Key
		c, _, err := s.ask(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := echoes(c, 3000); err != nil {
			t.Errorf("%s: datagram of 3000 bytes: error = %v, want nil", key, err)
		}
		_ = c.Close()
	}
	k := balancer.Key{Addr: segmentVIPs[0], Proto: balancer.UDP, Port: 81}
	nat := s.frontend(segmentVIPs[0], balancer.UDP, 2)
	nat.Key, nat.Forward = k, balancer.NATForward
	s.apply(nat)
	if out := s.lab.Host().Exec("nft", "list", "map", "netdev", "vipd", "fragments4"); strings.Contains(out, "elements") {
		t.Errorf("two services with different servers: slots for fragments = %s, want none", out)
	}
}

// TestDirectErrors sends ICMP messages that report a packet as too big. A server must receive a
// message about its own connection only if the message was sent to the VIP.
func TestDirectErrors(t *testing.T) {
	s := newSegment(t, 2)
	f := s.frontend(segmentVIPs[0], balancer.TCP, 1, 2)
	s.apply(f)
	other := netip.MustParseAddr("10.96.0.2")
	for _, ns := range s.servers {
		ns.AddAddr("lo", netip.PrefixFrom(other, 32).String()) // the server would count messages that reach this address
	}
	for i, name := range []string{"s1", "s2", "s1", "s2"} {
		port := netip.MustParseAddrPort(s.openTo(name, f.Key).LocalAddr().String()).Port()
		ns := s.servers[i%2]
		before := icmpReceived(s, ns)
		s.sendTooBig(other, f.Key.Addr, port) // forged
		s.sendTooBig(f.Key.Addr, f.Key.Addr, port)
		wait.For(t, 3*time.Second, name+" receives the message about its connection", func() bool { return icmpReceived(s, ns) == before+1 })
	}
}

// icmpReceived returns the number of ICMP messages that a namespace has received.
func icmpReceived(s *segment, ns *lab.NS) (n int) {
	s.Helper()
	lines := strings.Split(ns.Exec("grep", "^Icmp:", "/proc/net/snmp"), "\n")
	if _, err := fmt.Sscanf(lines[1], "Icmp: %d", &n); err != nil {
		s.Fatal(err)
	}
	return n
}

// sendTooBig sends an ICMP error to the address to. It reports that a packet from the VIP to the
// client's port was too big.
func (s *segment) sendTooBig(to, vip netip.Addr, port uint16) {
	s.Helper()
	client := s.address(vip, 2)
	b := []byte{3, 4, 0, 0, 0, 0, 5, 120} // destination unreachable, fragmentation needed, MTU 1400
	b = append(b, 0x45, 0, 5, 220, 0, 1, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0)
	b = append(append(b, vip.AsSlice()...), client.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, 80)
	b = append(binary.BigEndian.AppendUint16(b, port), 0, 0, 0, 1)
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	err := s.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		return errors.Join(unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: to.As4()}), unix.Close(fd))
	})
	if err != nil {
		s.Fatal(err)
	}
}

// TestDirectRepairs damages the table in several ways. Intact must report each kind of damage, and
// the next comparison must repair the table.
func TestDirectRepairs(t *testing.T) {
	s := newSegment(t, 2)
	s.apply(s.all(1, 2)...)
	for _, script := range []string{
		"flush chain netdev vipd arriving", "insert rule netdev vipd tcp-port-4 drop", "flush map netdev vipd slots4",
		"flush map netdev vipd fragments4", "flush map netdev vipd services6", "delete table netdev vipd", "flush ruleset",
	} {
		load(t, script+"\n")
		wait.For(t, 3*time.Second, fmt.Sprintf("Intact reports the damage of %q", script), func() bool { return s.intact() != "" })
		s.repair()
		if reason := s.intact(); reason != "" {
			t.Errorf("after the repair of %q: Intact = %q, want no reason", script, reason)
		}
		for key := range s.applied {
			s.tally(key, 2)
		}
	}
}

// TestDirectRestart closes a dataplane but keeps its tables, and starts a second dataplane. A
// connection must continue, and the second dataplane must be able to remove the service.
func TestDirectRestart(t *testing.T) {
	s := newSegment(t, 2)
	s.apply(s.all(1, 2)...)
	key := s.frontend(segmentVIPs[0], balancer.TCP).Key
	c := s.openTo("s2", key)
	if err := s.d.Close(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	s.tally(key, 2)
	s.start()
	if reason := s.intact(); reason != "" {
		t.Errorf("after the restart: Intact = %q, want no reason", reason)
	}
	if err := echoes(c, 100); err != nil {
		t.Errorf("connection after the restart: error = %v, want nil", err)
	}
	var gone []dataplane.Change
	for k := range s.applied {
		gone = append(gone, dataplane.Change{Key: k})
	}
	if err := s.d.Apply(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if out := s.lab.Host().Exec("nft", "list", "tables"); strings.Contains(out, "netdev vipd") {
		t.Errorf("tables without services = %s, want no table netdev vipd", out)
	}
}

// TestDirectPartialRestart starts a second dataplane, and first applies a nat service, then some of
// the dr services. All services must answer throughout.
func TestDirectPartialRestart(t *testing.T) {
	s := newSegment(t, 2)
	all := s.all(1, 2)
	all[0].Sources = []netip.Prefix{netip.MustParsePrefix("10.4.0.0/24")}
	s.apply(all...)
	if err := s.d.Close(context.Background(), true); err != nil {
		t.Fatal(err)
	}
	held := s.applied
	s.applied = map[balancer.Key]*balancer.Frontend{}
	d, err := New(s.options())
	if err != nil {
		t.Fatal(err)
	}
	s.d = d
	if _, err := d.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	nat := s.frontend(segmentVIPs[0], balancer.TCP, 1)
	nat.Key.Port, nat.Forward = 81, balancer.NATForward
	s.apply(nat)
	for i := range all {
		for key := range held {
			s.tally(key, 2)
		}
		s.apply(all[i])
	}
	if reason := s.intact(); reason != "" {
		t.Errorf("Intact = %q, want no reason", reason)
	}
	s.apply(s.frontend(segmentVIPs[0], balancer.TCP, 1, 2))
	if out := s.lab.Host().Exec("nft", "list", "chains", "netdev"); strings.Contains(out, "restricted") {
		t.Errorf("chains at the end = %s, want no unused chain", out)
	}
}

// TestDirectHopLimit sends datagrams with hop limits of 1 and 2. The server must receive only the
// datagram with a hop limit of 2.
func TestDirectHopLimit(t *testing.T) {
	s := newSegment(t, 1)
	f := s.frontend(segmentVIPs[0], balancer.UDP, 1)
	s.apply(f)
	for _, ttl := range []int{1, 2} {
		c, err := s.client.Dial(t.Context(), "udp", f.Key.AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, ttl) }); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("v")); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		counts := s.lab.Host().Exec("nft", "list", "map", "netdev", "vipd", "counted4")
		if got := strings.Contains(counts, "packets 1 "); got != (ttl == 2) {
			t.Errorf("hop limit %d: forwarded = %v, want %v", ttl, got, ttl == 2)
		}
	}
}

// TestDirectCounts opens connections, and then removes a server. Each server's connections must be
// counted, including the removed server's.
func TestDirectCounts(t *testing.T) {
	s := newSegment(t, 2)
	f := s.frontend(segmentVIPs[0], balancer.TCP, 1, 2)
	s.apply(f)
	got := s.tally(f.Key, 20)
	s.apply(s.frontend(segmentVIPs[0], balancer.TCP, 2)) // the removed server must keep its count
	counts := s.d.Counters()
	if len(counts) != 1 || counts[0].Connections != 20 {
		t.Fatalf("counts = %+v, want 20 connections in total", counts)
	}
	for _, b := range counts[0].Backends {
		name := "s1"
		if b.Backend.Addr() == s.address(segmentVIPs[0], 12) {
			name = "s2"
		}
		if b.Connections != uint64(got[name]) {
			t.Errorf("connections to %s = %d, want %d", name, b.Connections, got[name])
		}
	}
}

// TestDirectSources restricts a service to the client's network. The client must get answers. The
// host itself, whose connections use NAT, must also get answers.
func TestDirectSources(t *testing.T) {
	s := newSegment(t, 1)
	s.servers[0].Echo("tcp", "s1", netip.AddrPortFrom(s.address(segmentVIPs[0], 11), 80))
	f := s.frontend(segmentVIPs[0], balancer.TCP, 1)
	f.Sources = []netip.Prefix{netip.MustParsePrefix("10.4.0.0/24")}
	s.apply(f)
	s.tally(f.Key, 2)
	s.lab.Host().Exec("ip", "route", "add", "10.96.0.1/32", "dev", "lan")
	s.client = s.lab.Host()
	if _, a, err := s.ask(f.Key); err != nil || a.Local.Addr() != s.address(segmentVIPs[0], 11) {
		t.Errorf("answer to the host = %v, error = %v; want an answer from the server's own address", a, err)
	}
}

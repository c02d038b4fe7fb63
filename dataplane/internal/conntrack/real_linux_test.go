package conntrack

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/test/lab"
	"vipd/test/wait"
)

// crossing is a network with a client, a server, and a router between them. The router translates
// packets, and records the flows' counts and timestamps.
type crossing struct {
	*table
	client, server *lab.NS
}

func newCrossing(t *testing.T) *crossing {
	l := lab.New(t)
	lab.Need(t, "iptables", "ip6tables")
	c := &crossing{client: l.Add("client"), server: l.Add("server")}
	router := l.Add("router")
	l.Link(router, c.client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	l.Link(router, c.server, "10.2.0.1/24", "10.2.0.2/24", "fd02::1/64", "fd02::2/64")
	c.client.Default("10.1.0.1", "fd01::1")
	c.server.Default("10.2.0.1", "fd02::1")
	for name, value := range map[string]string{
		"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1",
		"net.netfilter.nf_conntrack_acct": "1", "net.netfilter.nf_conntrack_timestamp": "1",
		"net.netfilter.nf_conntrack_udp_timeout": "25",
		// By default, the kernel removes new associations after three or ten seconds, which may be
		// too short on a busy machine.
		"net.netfilter.nf_conntrack_sctp_timeout_closed": "25", "net.netfilter.nf_conntrack_sctp_timeout_cookie_wait": "25",
	} {
		router.Sysctl(name, value)
	}
	for tool, a := range map[string][2]string{"iptables": {"10.96.0.1", "10.2.0.2"}, "ip6tables": {"fd96::1", "[fd02::2]"}} {
		for _, proto := range []string{"tcp", "udp", "sctp"} {
			router.Exec(tool, "-t", "nat", "-A", "PREROUTING", "-d", a[0], "-p", proto, "-j", "DNAT", "--to-destination", a[1]+":8080")
		}
		c.server.Exec(tool, "-A", "INPUT", "-p", "sctp", "-j", "DROP") // prevents the server's kernel from aborting every association
		router.Exec(tool, "-t", "nat", "-A", "POSTROUTING", "-p", "udp", "--dport", "8080", "-j", "MASQUERADE")
	}
	c.table = newTable(t, router)
	return c
}

func (c *crossing) dial(t *testing.T, network, to string) net.Conn {
	t.Helper()
	conn, err := c.client.Dial(t.Context(), network, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// associate sends the first packet of an SCTP association.
func (c *crossing) associate(t *testing.T, network, to string, from, port uint16) {
	t.Helper()
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, port)
	b = append(b, 0, 0, 0, 0) // verification tag, still unknown
	b = append(b, 0, 0, 0, 0) // checksum
	b = append(b, 1, 0, 0, 20, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	if _, err := c.dial(t, network+":132", to).Write(b); err != nil {
		t.Fatal(err)
	}
}

// one returns the only flow that matches the filter. It fails the test unless there is exactly one
// such flow.
func (c *crossing) one(t *testing.T, f Filter) Flow {
	t.Helper()
	flows := c.all(t, f)
	if len(flows) != 1 {
		t.Fatalf("flows that match %+v = %v, want one", f, identities(flows))
	}
	return flows[0]
}

// TestReadsRealFlows sends packets of several protocols. The flows that the kernel has created must
// be decoded correctly.
func TestReadsRealFlows(t *testing.T) {
	c := newCrossing(t)
	for _, a := range []struct {
		family                    inet.Family
		raw, client, vip, backend string
	}{
		{inet.IPv4, "ip4", "10.1.0.2", "10.96.0.1", "10.2.0.2"},
		{inet.IPv6, "ip6", "fd01::2", "fd96::1", "fd02::2"},
	} {
		began := time.Now()
		vip, backend := netip.MustParseAddr(a.vip), netip.MustParseAddr(a.backend)
		at := func(addr netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }
		c.server.Echo("tcp", "s", at(backend, 8080))
		c.server.Echo("udp", "s", at(backend, 8080))
		ask := func(conn net.Conn) net.Conn {
			if _, err := lab.Ask(conn); err != nil {
				t.Fatal(err)
			}
			return conn
		}
		tcp := ask(c.dial(t, "tcp", at(vip, 80).String()))
		udp := ask(c.dial(t, "udp", at(vip, 53).String()))
		plain := ask(c.dial(t, "tcp", at(backend, 8080).String()))
		silent := c.dial(t, "udp", at(backend, 9).String())
		if _, err := silent.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		c.associate(t, a.raw, a.vip, 3000, 3868)

		port := func(conn net.Conn) uint16 { return netip.MustParseAddrPort(conn.LocalAddr().String()).Port() }
		client := netip.MustParseAddr(a.client)
		for _, want := range []struct {
			key     balancer.Key
			client  netip.AddrPort
			backend netip.AddrPort
			status  Status
			state   string
		}{
			{
				balancer.Key{Addr: vip, Port: 80, Proto: balancer.TCP}, at(client, port(tcp)), at(backend, 8080),
				SeenReply | Assured | DstNAT, "established",
			},
			{
				balancer.Key{Addr: vip, Port: 53, Proto: balancer.UDP}, at(client, port(udp)), at(backend, 8080),
				SeenReply | DstNAT | srcNAT, "replied",
			},
			{
				balancer.Key{Addr: vip, Port: 3868, Proto: balancer.SCTP}, at(client, 3000), at(backend, 8080),
				DstNAT, "closed",
			},
			{
				balancer.Key{Addr: backend, Port: 8080, Proto: balancer.TCP}, at(client, port(plain)), at(backend, 8080),
				SeenReply | Assured, "established",
			},
			{
				balancer.Key{Addr: backend, Port: 9, Proto: balancer.UDP}, at(client, port(silent)), at(backend, 9),
				0, "unreplied",
			},
		} {
			got := c.one(t, Filter{Proto: want.key.Proto, Dst: want.key.Addr, Port: want.key.AddrPort().Port()})
			const known = confirmed | SeenReply | Assured | DstNAT | srcNAT
			if got.Frontend() != want.key || got.Client() != want.client || got.Backend() != want.backend || got.Orig.Src != want.client {
				t.Errorf("%s: flow = %v, want a flow from %s to %s", want.key, identityOf(&got), want.client, want.backend)
			}
			if masqueraded := got.Reply.Dst.Addr() != client; masqueraded != want.status.Has(srcNAT) {
				t.Errorf("%s: destination of replies = %s, want the client's address unless it is masqueraded", want.key, got.Reply.Dst)
			}
			if want.state == "closed" && got.State == "cookie-wait" {
				got.State = want.state // some kernels already report this state after the first packet
			}
			if got.Status&known != want.status|confirmed || got.State != want.state {
				t.Errorf("%s: status = %#x, %q; want %#x, %q", want.key, got.Status, got.State, want.status, want.state)
			}
			if got.Start.Before(began.Add(-time.Second)) || got.Start.After(time.Now().Add(time.Second)) {
				t.Errorf("%s: start = %s, want about %s", want.key, got.Start, began)
			}
			if got.In < 20 || got.Status.Has(SeenReply) != (got.Out > 20) {
				t.Errorf("%s: bytes from the client = %d, bytes to the client = %d; want at least 20 from the client, and bytes to the client only after a reply", want.key, got.In, got.Out)
			}
		}
	}
}

// TestDeletesRealFlows sends packets to create flows of all protocols, families and zones, with and
// without NAT. Each deletion must delete exactly one flow.
func TestDeletesRealFlows(t *testing.T) {
	c := newCrossing(t)
	for tool, vip := range map[string]string{"iptables": "10.96.0.1", "ip6tables": "fd96::1"} {
		c.ns.Exec(tool, "-t", "raw", "-A", "PREROUTING", "-d", vip, "-p", "udp", "--dport", "54", "-j", "CT", "--zone", "9")
		c.ns.Exec(tool, "-t", "raw", "-A", "PREROUTING", "-d", vip, "-p", "udp", "--dport", "55", "-j", "CT", "--zone-orig", "10")
	}
	for _, backend := range []string{"10.2.0.2:8080", "[fd02::2]:8080"} {
		c.server.Echo("tcp", "s", netip.MustParseAddrPort(backend))
	}
	want := 0
	for raw, vip := range map[string]string{"ip4": "10.96.0.1", "ip6": "fd96::1"} {
		for port := uint16(52); port < 57; port++ {
			to := netip.AddrPortFrom(netip.MustParseAddr(vip), port)
			if _, err := c.dial(t, "udp", to.String()).Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			c.dial(t, "tcp", to.String())
			c.associate(t, raw, vip, port, port)
			want += 3
		}
	}
	left := c.all(t, Filter{})
	if len(left) != want {
		t.Fatalf("flows = %v, want %d", identities(left), want)
	}
	for len(left) > 0 {
		if err := c.delete(&left[0]); err != nil {
			t.Fatal(err)
		}
		left = left[1:]
		c.want(t, Filter{}, left)
	}
}

// TestTellsTheEnds deletes flows, and waits until other flows time out. Each ended flow must be
// reported with its counts.
func TestTellsTheEnds(t *testing.T) {
	c := newCrossing(t)
	c.ns.Sysctl("net.netfilter.nf_conntrack_udp_timeout", "1")
	backend := netip.MustParseAddrPort("10.2.0.2:8080")
	c.server.Echo("tcp", "s", backend)
	ended := watch(t, c.table)
	conn := c.dial(t, "tcp", "10.96.0.1:80")
	if _, err := lab.Ask(conn); err != nil {
		t.Fatal(err)
	}
	f := c.one(t, Filter{Proto: balancer.TCP})
	if err := c.delete(&f); err != nil {
		t.Fatal(err)
	}
	if _, err := c.dial(t, "udp", "10.96.0.1:53").Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	wait.For(t, 30*time.Second, "the ends of both flows", func() bool {
		c.all(t, Filter{}) // listing flows makes the kernel remove expired entries
		return len(ended.flows()) == 2
	})
	got := ended.flows()
	if identityOf(&got[0]) != identityOf(&f) || got[0].In < f.In || got[0].Out < f.Out || !got[0].Start.Equal(f.Start) {
		t.Errorf("first ended flow = %+v, want %+v", got[0], f)
	}
	if got[1].Proto != balancer.UDP || got[1].Backend() != backend || got[1].In == 0 {
		t.Errorf("second ended flow = %+v, want the UDP flow", got[1])
	}
	if n := ended.lost.Load(); n != 0 {
		t.Errorf("reports of dropped events = %d, want 0", n)
	}
}

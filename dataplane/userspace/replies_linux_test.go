package userspace

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/replies"
	"vipd/test/lab"
	"vipd/test/wait"
)

// gateway is a lab in which the host routes between a client and a server. The host filters packets
// by reverse path, both in the kernel and with rules like firewalld's and NixOS's.
type gateway struct {
	*lab.Lab
	client, server *lab.NS
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	l := lab.New(t)
	w := &gateway{l, l.Add("client"), l.Add("server")}
	l.Link(l.Host(), w.client, "10.1.0.1/24", "10.1.0.2/24", "fd00:1::1/64", "fd00:1::2/64")
	l.Link(l.Host(), w.server, "10.2.0.1/24", "10.2.0.2/24", "fd00:2::1/64", "fd00:2::2/64")
	for _, n := range []*lab.NS{w.client, w.server} {
		n.Sysctl("net.ipv4.conf.all.rp_filter", "1")
	}
	w.client.Default("10.1.0.1", "fd00:1::1")
	w.server.Default("10.2.0.1", "fd00:2::1")
	l.Host().Sysctl("net.ipv4.conf.all.rp_filter", "1")
	l.Host().Sysctl("net.ipv4.ip_forward", "1")
	for name, priority := range map[string]string{"early": "-140", "late": "10"} {
		l.Host().Exec("sh", "-c", "nft add table inet firewall; nft add chain inet firewall "+name+" '{ type filter hook prerouting priority "+priority+"; }'; "+
			"nft add rule inet firewall "+name+" 'iifname != lo meta l4proto { tcp, udp } fib saddr . mark . iif oif missing drop'")
	}
	l.Host().AddAddr("lo", "10.96.0.1/32")
	l.Host().AddAddr("lo", "fd00:96::1/128")
	for _, network := range []string{"tcp", "udp"} {
		for _, at := range []string{"10.2.0.2:7000", "[fd00:2::2]:7000"} {
			w.server.Echo(network, "s", netip.MustParseAddrPort(at))
		}
	}
	t.Cleanup(func() { w.wantNothing(t) }) // runs after the dataplane was closed
	return w
}

// wantNothing checks that the dataplane has left no reply rules, routes or tables on the host.
func (w *gateway) wantNothing(t *testing.T) {
	t.Helper()
	const state = "ip rule; ip -6 rule; ip route show table 118118; ip -6 route show table 118118; nft list tables"
	out := w.Host().Exec("sh", "-c", state+" 2>/dev/null || true")
	if strings.Contains(out, "118118") || strings.Contains(out, "local default") || strings.Contains(out, "vipd-replies") {
		t.Errorf("rules, routes and tables =\n%s\nwant no rule, route or table of vipd", out)
	}
}

// fromClients returns frontends for both families and protocols. source determines whether the
// dataplane connects to their endpoints from the clients' addresses.
func (w *gateway) fromClients(source balancer.SourceAddress) (all []*balancer.Frontend) {
	for _, proto := range []string{"tcp", "udp"} {
		for vip, backend := range map[string]string{"10.96.0.1": "10.2.0.2:7000", "[fd00:96::1]": "[fd00:2::2]:7000"} {
			f := frontendAt(vip+":80/"+proto, netip.MustParseAddrPort(backend))
			f.Source = source
			all = append(all, f)
		}
	}
	return all
}

// open opens a connection from a namespace, and sends one request. It returns the connection and
// the answer.
func (w *gateway) open(t *testing.T, from *lab.NS, network, to string) (net.Conn, lab.Answer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	c, err := from.Dial(ctx, network, to)
	if err != nil {
		t.Fatalf("connection from %s to %s/%s: error = %v, want nil", from.Name, to, network, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	a, err := lab.AskWithin(c, wait.Patience)
	if err != nil {
		t.Fatalf("request to %s/%s from %s: error = %v, want nil\n%s", to, network, from.Name, err, w.Host().Exec("sh", "-c", "nft list ruleset; ip rule; ip -6 rule; ss -Hantup"))
	}
	return c, a
}

// wantMore sends data on an open connection, and checks the echo.
func wantMore(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(wait.Patience))
	got := make([]byte, 4)
	_, err := io.WriteString(c, "more")
	if err == nil {
		_, err = io.ReadFull(c, got)
	}
	if string(got) != "more" {
		t.Errorf("open connection: echo = %q, error = %v; want %q", got, err, "more")
	}
}

// wantFragments sends a datagram that is larger than the MTU, and checks the echo.
func wantFragments(t *testing.T, c net.Conn) {
	t.Helper()
	large := make([]byte, 4000)
	_ = c.SetDeadline(time.Now().Add(wait.Patience))
	if _, err := c.Write(large); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 5000)); n != len(large) {
		t.Errorf("large datagram: echo = %d bytes, error = %v; want %d bytes", n, err, len(large))
	}
}

// wantClients connects to each frontend from a namespace. The server must see the client address v4
// or v6.
func (w *gateway) wantClients(t *testing.T, step string, from *lab.NS, v4, v6 string) {
	t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		for vip, want := range map[string]string{"10.96.0.1:80": v4, "[fd00:96::1]:80": v6} {
			c, a := w.open(t, from, network, vip)
			if a.Client.Addr().String() != want {
				t.Errorf("%s: connection to %s/%s from %s: client at the server = %s, want %s", step, vip, network, from.Name, a.Client.Addr(), want)
			}
			_ = c.Close()
		}
	}
}

// TestClientSource connects to endpoints from the clients' addresses. The server must see these
// addresses, but the node's address for clients on the node and in the server's network. Open
// connections must survive changes to the setting, and no rules or routes may be left at the end.
func TestClientSource(t *testing.T) {
	for _, intercept := range []Interception{Bind, Redirect} {
		t.Run(string(intercept), func(t *testing.T) {
			w := newGateway(t)
			d := start(t, Options{Intercept: intercept})
			if !d.Capabilities().ClientSource {
				t.Fatal("ClientSource = false, want true for root")
			}
			d.apply(w.fromClients(balancer.ClientSource)...)
			w.wantClients(t, "on", w.client, "10.1.0.2", "fd00:1::2")
			w.wantClients(t, "on", w.Host(), "10.2.0.1", "fd00:2::1")
			w.wantClients(t, "on", w.server, "10.2.0.1", "fd00:2::1")
			if _, a := w.open(t, w.client, "tcp", "10.2.0.2:7000"); a.Client.Addr().String() != "10.1.0.2" {
				t.Errorf("forwarded connection: client at the server = %s, want 10.1.0.2", a.Client)
			}
			c, _ := w.open(t, w.client, "udp", "10.96.0.1:80")
			wantFragments(t, c)
			c, _ = w.open(t, w.client, "tcp", "10.96.0.1:80")
			d.apply(w.fromClients(balancer.NodeSource)...)
			w.wantClients(t, "off", w.client, "10.2.0.1", "fd00:2::1")
			if damage, err := d.Observe(t.Context()); err != nil || len(damage.Damage) > 0 {
				t.Errorf("Observe = %+v, %v; want no damage", damage, err)
			}
			wantMore(t, c)
			_ = c.Close()
			eventually(t, "the end of the last use", func() error {
				if n := d.replies.users.Load(); n > 0 {
					for _, f := range d.list() { // UDP flows would continue until they are idle
						f.mu.Lock()
						f.flows.each(f.endFlowLocked)
						f.mu.Unlock()
					}
					return fmt.Errorf("sockets with clients' addresses = %d, want 0", n)
				}
				return nil
			})
			if _, err := d.Observe(t.Context()); err != nil {
				t.Error(err)
			}
			w.wantNothing(t)
			d.apply(w.fromClients(balancer.ClientSource)...)
			w.wantClients(t, "on again", w.client, "10.1.0.2", "fd00:1::2")
		})
	}
}

// TestClientSourceDamage removes parts of the reply path. Intact must report each missing part, and
// the next Apply must add it again.
func TestClientSourceDamage(t *testing.T) {
	w := newGateway(t)
	d := start(t, Options{})
	d.apply(w.fromClients(balancer.ClientSource)...)
	for _, damage := range []string{
		"ip rule del pref 118", "ip -6 route flush table 118118", "nft delete table ip vipd-replies", "nft flush chain ip6 vipd-replies prerouting",
		"ip -6 rule del pref 118",
	} {
		w.Host().Exec("sh", "-c", damage)
		eventually(t, "a report of "+damage, func() error { // vipd reads a table at most once a second
			if reason, err := d.Intact(t.Context()); reason == "" || err != nil {
				return fmt.Errorf("Intact = %q, %v; want a reason", reason, err)
			}
			return nil
		})
		if seen, err := d.Observe(t.Context()); err != nil || len(seen.Damage) != 1 {
			t.Errorf("after %s: damage = %q, %v; want a reason", damage, seen.Damage, err)
		}
		d.apply(w.fromClients(balancer.ClientSource)...)
		w.wantClients(t, damage, w.client, "10.1.0.2", "fd00:1::2")
	}
}

// TestClientSourceUnchecked makes the check of a reply path fail. Intact must return the error, but
// no damage.
func TestClientSourceUnchecked(t *testing.T) {
	w := newGateway(t)
	d := start(t, Options{})
	d.apply(w.fromClients(balancer.ClientSource)...)
	d.replies.paths[inet.IPv4].Close()
	if damage, err := d.Intact(t.Context()); damage != "" || err == nil {
		t.Errorf("Intact = %q, %v; want an error and no damage", damage, err)
	}
	w.Host().Exec("ip", "-6", "rule", "del", "pref", "118")
	if damage, _ := d.Intact(t.Context()); !strings.Contains(damage, "ipv6") {
		t.Errorf("Intact = %q after the IPv6 rule was removed, want damage of ipv6", damage)
	}
	if _, err := replies.Cleanup(false); err != nil { // the closed path can't be removed
		t.Error(err)
	}
	d.replies.leave()
}

// TestClientSourceHandover hands over open connections to a process in which the setting is off.
// The connections must continue. Then this process is killed, and the next one, which has no such
// connections, must remove the reply path.
func TestClientSourceHandover(t *testing.T) {
	w := newGateway(t)
	d := start(t, Options{})
	d.apply(w.fromClients(balancer.ClientSource)...)
	c, _ := w.open(t, w.client, "tcp", "[fd00:96::1]:80")
	u, _ := w.open(t, w.client, "udp", "10.96.0.1:80")
	next := d.takenOver()
	if _, err := next.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	next.apply(w.fromClients(balancer.NodeSource)...)
	next.Discard(false)
	if reason, err := next.Intact(t.Context()); reason != "" || err != nil {
		t.Fatal(reason, err)
	}
	if _, err := next.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := next.replies.users.Load(); n != 2 {
		t.Errorf("inherited sockets with clients' addresses = %d, want 2", n)
	}
	wantMore(t, c)
	wantMore(t, u)
	_ = c.Close()
	next.replies.leave() // simulates a kill
	done, err := Cleanup(t.Context(), true)
	if err != nil || len(done) == 0 {
		t.Errorf("dry run of Cleanup = %q, %v; want at least one step", done, err)
	}
	last := start(t, Options{})
	if _, err := last.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantNothing(t)
}

// TestClientSourceOfTwo uses two dataplanes that share the reply paths, and closes one of them. The
// other must continue to serve, and must remove the paths when it is closed.
func TestClientSourceOfTwo(t *testing.T) {
	w := newGateway(t)
	shared := NewReplies()
	former, next := start(t, Options{Replies: shared}), start(t, Options{Replies: shared})
	former.apply(w.fromClients(balancer.ClientSource)...)
	f := frontendAt("10.96.0.1:81/tcp", netip.MustParseAddrPort("10.2.0.2:7000"))
	f.Source = balancer.ClientSource
	next.apply(f)
	c, _ := w.open(t, w.client, "tcp", "10.96.0.1:81")
	if err := former.Close(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	wantMore(t, c)
	if reason, err := next.Intact(t.Context()); reason != "" || err != nil {
		t.Errorf("Intact = %q, %v; want no reason", reason, err)
	}
	_ = c.Close()
	if err := next.Close(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	w.wantNothing(t)
}

// TestClientSourceOfHeader sends a PROXY header that names a client. The server must see this
// client's address.
func TestClientSourceOfHeader(t *testing.T) {
	w := newGateway(t)
	d := start(t, Options{})
	f := frontendAt("10.96.0.1:80/tcp", netip.MustParseAddrPort("10.2.0.2:7000"))
	f.Source, f.AcceptProxyProtocol, f.Sources = balancer.ClientSource, true, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	d.apply(f)
	c, err := w.client.Dial(t.Context(), "tcp", "10.96.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte(headerOf(t, balancer.ProxyProtocolV1, "203.0.113.7:4711", f.AddrPort()))); err != nil {
		t.Fatal(err)
	}
	if a, err := lab.AskWithin(c, wait.Patience); err != nil || a.Client.Addr() != netip.MustParseAddr("203.0.113.7") {
		t.Errorf("client at the server = %v, error = %v; want 203.0.113.7", a.Client, err)
	}
}

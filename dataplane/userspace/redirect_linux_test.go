package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
	"vipd/test/lab"
	"vipd/test/wait"
)

// twoHosts is a lab with two hosts: the test's own host, whose VIPs are on lo, and a remote host
// with a client and servers.
type twoHosts struct {
	*lab.Lab
	remote *lab.NS
}

func newTwoHosts(t *testing.T) *twoHosts {
	t.Helper()
	l := lab.New(t)
	lab.Need(t, "iptables", "ip6tables")
	remote := l.Add("remote")
	l.Link(l.Host(), remote, "10.9.0.1/24", "10.9.0.2/24", "fd00:9::1/64", "fd00:9::2/64")
	remote.Default("10.9.0.1", "fd00:9::1")
	l.Host().AddAddr("lo", "10.96.0.1/32")
	l.Host().AddAddr("lo", "fd00:96::1/128")
	t.Cleanup(func() {
		for _, tool := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
			l.Host().Exec("sh", "-c", tool+" -t nat -F; "+tool+" -t nat -X")
		}
	})
	return &twoHosts{l, remote}
}

// frontendsAt returns a frontend for each family and protocol, on the specified port. Each has one
// backend.
func (w *twoHosts) frontendsAt(t *testing.T, port int) []*balancer.Frontend {
	t.Helper()
	var all []*balancer.Frontend
	for _, vip := range []string{"10.96.0.1:%d/tcp", "10.96.0.1:%d/udp", "[fd00:96::1]:%d/tcp", "[fd00:96::1]:%d/udp"} {
		k, err := balancer.ParseKey(fmt.Sprintf(vip, port))
		if err != nil {
			t.Fatal(err)
		}
		at := netip.MustParseAddrPort("10.9.0.2:7000")
		if k.Addr.Is6() {
			at = netip.MustParseAddrPort("[fd00:9::2]:7000")
		}
		all = append(all, frontendAt(k.String(), at))
	}
	return all
}

func (w *twoHosts) serve() {
	for _, network := range []string{"tcp", "udp"} {
		for _, at := range []string{"10.9.0.2:7000", "[fd00:9::2]:7000"} {
			w.remote.Echo(network, "s", netip.MustParseAddrPort(at))
		}
	}
}

func wantServed(t *testing.T, w *twoHosts, all ...*balancer.Frontend) {
	t.Helper()
	for _, f := range all {
		for _, from := range []*lab.NS{w.Host(), w.remote} {
			if err := try(t, from, f.Key); err != nil {
				t.Errorf("request to %s from %s: error = %v, want nil", f.Key, from.Name, err)
				t.Log(w.Host().Exec("sh", "-c", "conntrack -L; iptables-legacy-save; ip6tables-legacy-save; nft list ruleset; ss -Hltn"))
			}
		}
	}
}

func wantRefused(t *testing.T, w *twoHosts, all ...*balancer.Frontend) {
	t.Helper()
	for _, f := range all {
		for _, from := range []*lab.NS{w.Host(), w.remote} {
			if err := try(t, from, f.Key); err == nil || !strings.Contains(err.Error(), "refused") {
				t.Errorf("request to %s from %s: error = %v, want connection refused", f.Key, from.Name, err)
			}
		}
	}
}

// redirecting starts a dataplane that uses redirects. Like the engine, it calls Observe before the
// first Apply.
func redirecting(t *testing.T) *rig {
	t.Helper()
	d := start(t, Options{Intercept: Redirect})
	if d.Traits().Detail != "redirect" {
		t.Fatalf("Detail = %q, want redirect", d.Traits().Detail)
	}
	if _, err := d.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

// wantEcho checks that an echo server returns the data that is sent on an established connection.
func wantEcho(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(wait.Patience))
	if _, err := c.Write([]byte("x")); err != nil {
		t.Errorf("established connection: error = %v, want nil", err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("established connection: error = %v, want nil", err)
	}
}

// TestRedirectedConnectionsDrain removes redirected frontends, and closes the dataplane. Their
// connections must continue until the drain ends.
func TestRedirectedConnectionsDrain(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := redirecting(t)
	all := w.frontendsAt(t, 80)
	d.apply(all...)
	var held []net.Conn
	for _, f := range []*balancer.Frontend{all[0], all[2]} {
		for _, from := range []*lab.NS{w.Host(), w.remote} {
			c, err := from.Dial(t.Context(), "tcp", f.AddrPort().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := lab.Ask(c); err != nil {
				t.Fatal(err)
			}
			held = append(held, c)
		}
	}
	d.remove(all[0].Key, all[1].Key, all[2].Key, all[3].Key)
	for _, c := range held {
		wantEcho(t, c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	closed := make(chan error)
	d.apply(all...)
	go func() { closed <- d.Close(ctx, false) }()
	eventually(t, "the closed port", func() error {
		if err := tryFor(t, w.remote, all[0].Key, silence); err == nil || !strings.Contains(err.Error(), "refused") {
			return fmt.Errorf("error = %w, want connection refused", err)
		}
		return nil
	})
	for _, c := range held {
		wantEcho(t, c)
	}
	cancel()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	wantRefused(t, w, all...)
	if saved := w.Host().Exec("nft", "list", "ruleset"); strings.Contains(saved, "vipd-redirect") {
		t.Errorf("rules after Close, want no table vipd-redirect:\n%s", saved)
	}
}

// TestConnectionsStraightToTheSharedPortAreReset connects directly to the port to which the
// redirects lead. These connections must be reset.
func TestConnectionsStraightToTheSharedPortAreReset(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := redirecting(t)
	d.apply(w.frontendsAt(t, 80)...)
	for _, y := range d.tables.(*redirect).families {
		port := y.shared.Addr().(*net.TCPAddr).Port
		for _, address := range []string{"10.9.0.1", "10.96.0.1", "fd00:9::1", "fd00:96::1"} {
			if strings.Contains(address, ":") != (y.name == inet.IPv6) {
				continue
			}
			c, err := w.remote.Dial(t.Context(), "tcp", net.JoinHostPort(address, fmt.Sprint(port)))
			if err != nil {
				continue // the connection was reset during the dial
			}
			_ = c.SetDeadline(time.Now().Add(wait.Patience))
			wantReset(t, c)
			c.Close()
		}
	}
}

// TestRedirectsReplaceThoseOfAnEarlierVersion starts a dataplane while an earlier version's rules
// exist in iptables-nft and iptables-legacy. The rules must be removed, and all clients must reach
// the backends, including those whose conntrack flows lead to the earlier version's ports.
func TestRedirectsReplaceThoseOfAnEarlierVersion(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	lab.Need(t, "iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft")
	tools := map[string]string{"iptables-legacy": "10.96.0.1", "iptables-nft": "10.96.0.1", "ip6tables-legacy": "fd00:96::1", "ip6tables-nft": "fd00:96::1"}
	for tool, vip := range tools { // these rules redirect to ports that nothing uses
		w.Host().Exec("sh", "-ec", fmt.Sprintf(`%[1]s -t nat -N VIPD-US
			%[1]s -t nat -A VIPD-US -d %[2]s -p tcp --dport 80 -j REDIRECT --to-ports 9
			%[1]s -t nat -A VIPD-US -d %[2]s -p udp --dport 80 -j REDIRECT --to-ports 9
			%[1]s -t nat -A VIPD-US -d %[2]s -p tcp --dport 81 -j REDIRECT --to-ports 9
			for hook in PREROUTING OUTPUT; do %[1]s -t nat -I $hook -j VIPD-US; %[1]s -t nat -I $hook -j VIPD-US; done`, tool, vip))
	}
	all := w.frontendsAt(t, 80)
	// conntrack sends these flows' packets to the earlier version's ports until the flows are
	// deleted.
	sockets := map[balancer.Key]net.Conn{}
	for _, f := range all {
		if f.Proto == balancer.UDP {
			c, err := w.remote.Dial(t.Context(), "udp", f.AddrPort().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = lab.AskWithin(c, 50*time.Millisecond)
			sockets[f.Key] = c
		}
	}
	d := redirecting(t)
	d.apply(all...)
	wantServed(t, w, all...)
	for k, c := range sockets { // the client may still be refused at first
		eventually(t, fmt.Sprintf("an answer to a client of %s that goes on", k), func() error {
			_, err := lab.AskWithin(c, 5*time.Second)
			return err
		})
	}
	for tool := range tools {
		if saved := w.Host().Exec(tool+"-save", "-t", "nat"); strings.Contains(saved, "VIPD-US") {
			t.Errorf("%s-save = %s, want no chain VIPD-US", tool, saved)
		}
	}
}

// TestRedirectRepairsDamage damages redirects in several ways. All damage must be detected and
// repaired.
func TestRedirectRepairsDamage(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := redirecting(t)
	all := w.frontendsAt(t, 80)
	d.apply(all...)
	w.wantRepaired(t, d, all, []string{
		"nft flush ruleset",
		"nft delete table ip vipd-redirect",
		"nft flush chain ip6 vipd-redirect output",
		"nft flush map ip vipd-redirect ports",
		"nft delete element ip6 vipd-redirect ports '{ fd00:96::1 . udp . 80 }'",
		"nft insert rule ip vipd-redirect prerouting accept",
		"nft add table ip vipd-redirect '{ flags dormant; }'",
	})
	c, err := w.remote.Dial(t.Context(), "tcp", all[0].AddrPort().String()) // this connection must remain on its frontend until it is closed
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := lab.Ask(c); err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		d.remove(f.Key)
	}
	w.Host().Exec("nft", "flush", "ruleset")
	if seen, err := d.Observe(t.Context()); err != nil || len(seen.Damage) > 0 {
		t.Errorf("damage without frontends = %q, %v; want none because nothing would repair it", seen.Damage, err)
	}
	d.apply(all...)
	wantServed(t, w, all...)
}

// TestATrialLeavesRedirects opens and closes a second dataplane without frontends, as the trial of
// vipctl doctor does. The first dataplane's redirects must remain.
func TestATrialLeavesRedirects(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := start(t, Options{Intercept: Redirect})
	all := w.frontendsAt(t, 80)
	d.apply(all...)
	trial, err := New(Options{Intercept: Redirect})
	if err != nil {
		t.Fatal(err)
	}
	if err := trial.Close(t.Context(), true); err != nil {
		t.Error(err)
	}
	wantServed(t, w, all...)
	if reason, err := d.Intact(t.Context()); reason != "" || err != nil {
		t.Errorf("Intact = %q, %v; want no reason", reason, err)
	}
}

// wantRepaired damages the redirects of applied frontends in several ways. All damage must be
// detected. Calls like the engine's must then repair it.
func (w *twoHosts) wantRepaired(t *testing.T, d *rig, all []*balancer.Frontend, damages []string) {
	t.Helper()
	for _, damage := range damages {
		if reason, err := d.Intact(t.Context()); reason != "" || err != nil {
			t.Fatalf("Intact before = %q, %v; want no reason", reason, err)
		}
		w.Host().Exec("sh", "-c", damage)
		eventually(t, damage+" is seen", func() error { // one of several checks must detect the damage
			reason, err := d.Intact(t.Context())
			if reason == "" {
				return fmt.Errorf("Intact: no reason, error = %v; want a reason", err)
			}
			return err
		})
		for range 2 { // the first report is lost if the other family's table can't be read
			if seen, err := d.Observe(t.Context()); err != nil || len(seen.Damage) == 0 {
				t.Fatalf("damage after %s = %q, %v; want a reason", damage, seen.Damage, err)
			}
		}
		d.apply(all...)
		wantServed(t, w, all...)
	}
}

// TestCleanupRemovesOursOnly runs Cleanup while other programs have rules. It must remove vipd's
// tables, as the dry run has announced, and must not change other programs' rules.
func TestCleanupRemovesOursOnly(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	for _, tool := range []string{"iptables", "ip6tables"} {
		w.Host().Exec("sh", "-ec", fmt.Sprintf(`%[1]s -t nat -N FOREIGN; %[1]s -t nat -A FOREIGN -p tcp --dport 1 -j RETURN; %[1]s -t nat -A PREROUTING -j FOREIGN`, tool))
	}
	save := func() string { return w.Host().Exec("nft", "-s", "list", "ruleset") }
	before := save()
	d := redirecting(t)
	d.apply(w.frontendsAt(t, 80)...)
	if during := save(); !strings.Contains(during, "vipd-redirect") {
		t.Errorf("vipd's tables are missing from\n%s", during)
	}
	during := save()
	would, err := Cleanup(t.Context(), true)
	if err != nil || len(would) != 2 || save() != during { // a table for IPv4 and one for IPv6
		t.Errorf("dry run = %q, %v; want 2 actions; rules changed = %v, want false", would, err, save() != during)
	}
	if did, err := Cleanup(t.Context(), false); err != nil || !slices.Equal(did, would) {
		t.Fatalf("Cleanup = %q, %v; want %q as in the dry run", did, err, would)
	}
	if after := save(); after != before {
		t.Errorf("rules after Cleanup =\n%s\nwant\n%s", after, before)
	}
	d.apply(w.frontendsAt(t, 81)...)
	if err := d.Close(shortly(t), true); err != nil {
		t.Error(err)
	}
	if after := save(); after != before {
		t.Errorf("rules after Close =\n%s\nwant\n%s", after, before)
	}
}

// TestAutoFallsBackToBind selects the interception "auto". The dataplane must use redirects if they
// work. Otherwise, it must bind, and its detail must give the reason.
func TestAutoFallsBackToBind(t *testing.T) {
	newTwoHosts(t)
	if d := start(t, Options{Intercept: Auto}); d.Traits().Detail != "redirect" {
		t.Errorf("Detail = %q, want redirect", d.Traits().Detail)
	}
	t.Setenv("PATH", t.TempDir())
	if d := start(t, Options{Intercept: Auto}); d.Traits().Detail != "redirect" {
		t.Errorf("Detail = %q, want redirect because it needs no external program", d.Traits().Detail)
	}
	claimTrials(t)
	d := start(t, Options{Intercept: Auto})
	if !strings.HasPrefix(d.Traits().Detail, "bind, because redirecting ipv4 by nf_tables: ") {
		t.Errorf("Detail = %q, want bind and the reason", d.Traits().Detail)
	}
	if _, err := New(Options{Intercept: Redirect}); err == nil || !strings.Contains(err.Error(), "operation not permitted") {
		t.Errorf("error = %v, want an error that names the missing feature", err)
	}
	a := serveAt(t, "127.0.0.1:0", named("a"))
	f := frontendAt("127.77.6.1:9000", a.addr)
	d.apply(f)
	if _, err := askOnce(f.AddrPort(), ""); err != nil {
		t.Error(err)
	}
	if _, err := New(Options{Intercept: "tproxy"}); err == nil || !strings.Contains(err.Error(), "auto, redirect or bind") {
		t.Errorf("error = %v, want an error that lists the possible values", err)
	}
}

// claimTrials makes the trials of redirects fail until the test ends, because another program owns
// the trials' tables.
func claimTrials(t *testing.T) {
	t.Helper()
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	var claim, free nft.Tx
	for _, of := range []nft.TableFamily{nft.IPv4, nft.IPv6} {
		claim.ClaimTable(nft.Table{Family: of, Name: "vipd-redirect-trial"})
		free.DeleteTable(nft.Table{Family: of, Name: "vipd-redirect-trial"})
	}
	if err := conn.Commit(&claim); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(conn.Commit(&free), conn.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestRedirectWithLinkLocalAddresses uses an interface that has only link-local addresses, as with
// unnumbered BGP. Clients must be redirected to these addresses.
func TestRedirectWithLinkLocalAddresses(t *testing.T) {
	l := lab.New(t)
	remote := l.Add("remote")
	l.Link(l.Host(), remote)
	l.Host().AddAddr("lo", "fd00:96::1/128")
	l.Host().AddAddr("lo", "fd00:97::1/128")
	remote.AddAddr("lo", "fd00:77::2/128")
	linkLocal := func(n *lab.NS, dev string) string {
		addr, _, _ := strings.Cut(strings.Fields(n.Exec("ip", "-6", "-o", "addr", "show", "dev", dev, "scope", "link"))[3], "/")
		return addr
	}
	l.Host().Exec("ip", "-6", "route", "add", "fd00:77::2", "via", linkLocal(remote, "host"), "dev", "remote")
	remote.Exec("ip", "-6", "route", "add", "fd00:96::1", "via", linkLocal(l.Host(), "remote"), "dev", "host", "src", "fd00:77::2")
	at := netip.MustParseAddrPort("[fd00:97::1]:7000")
	d := redirecting(t)
	for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		l.Host().Echo(string(proto), "s", at)
		f := frontendAt("[fd00:96::1]:80/"+string(proto), at)
		d.apply(f)
		for _, from := range []*lab.NS{l.Host(), remote} {
			if err := tryFor(t, from, f.Key, wait.Bound(time.Second)); err != nil {
				t.Errorf("request to %s from %s: error = %v, want nil", f.Key, from.Name, err)
			}
		}
	}
}

// flow connects a client to a UDP frontend, and waits for the first answer. It returns the client's
// socket.
func (w *twoHosts) flow(t *testing.T, f *balancer.Frontend) net.Conn {
	t.Helper()
	c, err := w.remote.Dial(t.Context(), "udp", f.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := lab.Ask(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRedirectedFlowsDrain drains an endpoint that has UDP clients. Their flows must continue, even
// if this endpoint was the last active one.
func TestRedirectedFlowsDrain(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := redirecting(t)
	for _, f := range w.frontendsAt(t, 80) {
		if f.Proto != balancer.UDP {
			continue
		}
		d.apply(f)
		c := w.flow(t, f)
		d.apply(with(f, func(f *balancer.Frontend) { f.Backends[0].State, f.Backends[0].Weight = balancer.Draining, 0 }))
		if _, err := lab.Ask(c); err != nil {
			t.Errorf("%s: flow to a draining endpoint: error = %v, want nil", f.Key, err)
		}
	}
}

// TestClosedPortsReceiveNoFlows drains a UDP frontend's last endpoint, so vipd closes the
// frontend's socket. Another program then binds the port. It must not receive datagrams from a
// client that continues to send.
func TestClosedPortsReceiveNoFlows(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := redirecting(t)
	for _, f := range w.frontendsAt(t, 80) {
		if f.Proto != balancer.UDP {
			continue
		}
		d.apply(f)
		c := w.flow(t, f)
		port := func() int {
			of := d.frontends[f.Key]
			of.mu.Lock()
			defer of.mu.Unlock()
			return int(of.packetsPortLocked())
		}
		at := port()
		d.apply(with(f, func(f *balancer.Frontend) {
			f.Backends[0].State, f.Backends[0].Weight, f.Backends[0].Until = balancer.Draining, 0, time.Now().Add(100*time.Millisecond)
		}))
		wait.For(t, 0, "the end of the drain", func() bool { return port() == 0 })
		other, err := net.ListenUDP("udp", &net.UDPAddr{Port: at})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		wait.For(t, 0, "the end of the way to "+other.LocalAddr().String(), func() bool {
			_, _ = c.Write([]byte("secret")) // this datagram must be refused
			_ = other.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, err := other.Read(make([]byte, 10))
			return errors.Is(err, os.ErrDeadlineExceeded)
		})
	}
}

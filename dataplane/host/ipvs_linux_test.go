package host

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
	testwait "vipd/test/wait"
)

// virtual has commit make virtual servers for TCP and UDP with one endpoint, forwarded to in ipvsadm's way how; none where
// to is "". Of those that are there only the weight changes.
func (r *router) virtual(at, to, how string, weight int) {
	for _, proto := range []string{"-t", "-u"} {
		server := proto + " " + at
		endpoint := fmt.Sprintf("%s -r %s %s -w %d", server, to, how, weight)
		old, exists := r.servers[server]
		switch {
		case exists && old == to:
			r.lines = append(r.lines, "-e "+endpoint)
			continue
		case exists:
			r.lines = append(r.lines, "-D "+server)
			delete(r.servers, server)
		}
		if to != "" {
			r.lines = append(r.lines, "-A "+server+" -s rr", "-a "+endpoint)
			r.servers[server] = to
		}
	}
}

// commit makes what virtual was asked for: to start a program takes long on an emulated machine.
func (r *router) commit() {
	r.t.Helper()
	if len(r.lines) == 0 {
		return
	}
	restore := exec.Command("ipvsadm", "-R")
	restore.Stdin = strings.NewReader(strings.Join(r.lines, "\n") + "\n")
	if out, err := restore.CombinedOutput(); err != nil || len(out) > 0 {
		r.t.Fatalf("making virtual servers %q: %v: %s", r.lines, err, out)
	}
	r.lines = nil
}

// closedOut makes the policy of OUTPUT DROP, too.
func (r *router) closedOut() {
	for _, family := range []string{"", "6"} {
		r.rule(family, "-P OUTPUT DROP")
		if family == "6" {
			r.rule(family, "-A OUTPUT -p ipv6-icmp -m icmp6 --icmpv6-type neighbour-solicitation -j ACCEPT")
			r.rule(family, "-A OUTPUT -p ipv6-icmp -m icmp6 --icmpv6-type neighbour-advertisement -j ACCEPT")
		}
	}
}

// locals lets out, or not, what programs of the host begin, and what it refuses.
func (r *router) locals(let bool) {
	r.t.Helper()
	how := map[bool]string{true: "-A", false: "-D"}[let]
	for _, family := range []string{"", "6"} {
		r.rule(family, how+" INPUT -i lo -j ACCEPT")
		r.rule(family, how+" OUTPUT -m addrtype --src-type LOCAL -m conntrack --ctstate NEW,RELATED -j ACCEPT")
	}
}

// TestIPVSGuard has virtual servers forward in every way, through policies DROP, on a real device for VIPs. Making the
// network takes longer than most of what happens in it, so that it is made once.
func TestIPVSGuard(t *testing.T) {
	lab.NeedIPVS(t)
	lab.Need(t, "ipvsadm", "ip", "iptables-nft", "iptables-legacy", "ipset")
	r := newRouter(t, xtables.NFT)
	r.servers = map[string]string{}
	t.Cleanup(func() { _ = exec.Command("ipvsadm", "-C").Run() })
	for _, at := range []string{"10.2.0.2:80", "[fd02::2]:80"} {
		r.server.Echo("tcp", "server", netip.MustParseAddrPort(at))
	}
	t.Run("sysctls", func(t *testing.T) { testVirtualSysctls(t, r.Lab) })
	for _, backend := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		t.Run(string(backend), func(t *testing.T) {
			if backend == xtables.Legacy {
				testwait.ShownElsewhere(t, "TestSNAT/legacy")
			}
			r.opened()
			// Rules of testSNAT mark what there is still of the connections before them, too.
			must(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
			r.backend = backend
			r.closed()
			r.closedOut()
			r.locals(true)
			testVirtual(t, r)
		})
	}
}

func testVirtual(t *testing.T, r *router) {
	t.Helper()
	o := options(t, r.backend)
	o.Mode = dataplane.Needs{Forward: true, LocalIn: true}
	h, err := New(o) // newHost's Cleanup starts a hundred programs, and there is nothing left for it
	must(t, err)
	t.Cleanup(func() { _ = h.Close() })
	t.Run("snat", func(t *testing.T) { testSNAT(t, r, h) })
	if r.backend == xtables.NFT { // the rules are the same
		t.Run("no endpoints", func(t *testing.T) { testNoEndpoints(t, r, h) })
		t.Run("source ranges", func(t *testing.T) { testSourceRanges(t, r, h) })
	}
	r.locals(false)
	t.Run("dr", func(t *testing.T) { testDirect(t, r, h, balancer.DRForward, "10.96.0.20:80", "[fd00:96::20]:80") })
	if r.backend == xtables.NFT {
		t.Run("tunnel", func(t *testing.T) {
			testDirect(t, r, h, balancer.TunnelForward, "10.96.0.21:80", "[fd00:96::21]:80")
		})
	}
	finishNothing(t, h)
	for _, family := range []string{"", "6"} {
		tool := "ip" + family + "tables-" + string(r.backend) + "-save"
		if out := r.Host().Exec(tool); strings.Contains(out, "VIPD") {
			t.Errorf("%s: there is still\n%s", tool, out)
		}
	}
}

// goesOn sends over a connection to an echo server that has answered before, and reads it back.
func goesOn(t *testing.T, c net.Conn, size int) error {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(testwait.Bound(0))))
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write([]byte(strings.Repeat("x", size)))
		sent <- err
	}()
	_, err := io.ReadFull(c, make([]byte, size))
	if err != nil {
		_ = c.Close()
	}
	if sendErr := <-sent; err == nil {
		err = sendErr
	}
	return err
}

// talk opens a connection to an echo server.
func talk(t *testing.T, from *lab.NS, to string) (net.Conn, lab.Answer) {
	t.Helper()
	c, err := from.Dial(t.Context(), "tcp", to)
	if err != nil {
		t.Fatalf("%s to %s: %v", from.Name, to, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	answer, err := lab.Ask(c)
	if err != nil {
		t.Fatalf("%s to %s: %v", from.Name, to, err)
	}
	return c, answer
}

// testNoEndpoints takes endpoints from virtual servers by and by, while programs of the host listen on the same ports:
// what is new is refused or dropped, for others and the host itself, what is established goes on.
func testNoEndpoints(t *testing.T, r *router, h *Host) {
	listen(t, 80)
	listen(t, 22)
	places := []string{"10.96.0.10:80", "[fd00:96::10]:80", "10.1.0.1:80"}
	endpoints := []string{"10.2.0.2:80", "[fd02::2]:80", "10.2.0.2:80"}
	var established []net.Conn
	for _, c := range []struct {
		name string
		edit func(*balancer.Frontend)
		// weight is that of the endpoint; none: there is no virtual server.
		weight, none int
		want         outcome
	}{
		{"serving", func(*balancer.Frontend) {}, 1, 0, open},
		{"draining", func(f *balancer.Frontend) { f.Backends[0].State = balancer.Draining }, 0, 0, refused},
		{"draining, and dropping", func(f *balancer.Frontend) {
			f.Backends[0].State, f.NoEndpoints = balancer.Draining, balancer.DropClients
		}, 0, 0, silence},
		{"serving again", func(*balancer.Frontend) {}, 1, 0, open},
		{"rejecting", func(f *balancer.Frontend) { f.Backends = nil }, 0, 1, refused},
		{"dropping", dropping, 0, 1, silence},
		{"serving in the end", func(*balancer.Frontend) {}, 1, 0, open},
	} {
		var frontends []*balancer.Frontend
		for i, p := range places {
			f := frontend(p, c.edit)
			f.NodePort = p == "10.1.0.1:80"
			frontends = append(frontends, f, udp(f))
			to := endpoints[i]
			if c.none > 0 {
				to = ""
			}
			r.virtual(p, to, "-m", c.weight)
		}
		r.commit()
		apply(t, h, frontends...)
		for _, from := range []*lab.NS{r.client, r.Host()} {
			for _, p := range places {
				if c.want == open {
					conn, answer := talk(t, from, p)
					if answer.Server != "server" {
						t.Errorf("%s: %s to %s: %q answers", c.name, from.Name, p, answer.Server)
					}
					if c.name == "serving" {
						established = append(established, conn)
					}
					continue
				}
				checkOutcome(t, c.name, from, p, c.want)
			}
			checkOutcome(t, c.name, from, "10.96.0.10:22", refused)
			checkOutcome(t, c.name, from, "[fd00:96::10]:22", refused)
		}
		if c.want == refused {
			checkUDPRefused(t, r.client, "10.96.0.10:80")
			checkUDPRefused(t, r.client, "[fd00:96::10]:80")
		}
		checkUDPRefused(t, r.client, "10.96.0.10:22")
		if c.none > 0 { // without the virtual server there are no connections through it
			established = nil
		}
		for _, conn := range established {
			if err := goesOn(t, conn, 1<<10); err != nil {
				t.Errorf("%s: the connection from %s to %s: %v", c.name, conn.LocalAddr(), conn.RemoteAddr(), err)
			}
		}
		checkIntact(t, h)
		if p := h.Problems(); len(p) != 0 {
			t.Errorf("%s: problems: %v", c.name, p)
		}
	}
}

func checkOutcome(t *testing.T, when string, from *lab.NS, to string, want outcome) {
	t.Helper()
	if got := attempt(t, from, to, want); got != want {
		t.Errorf("%s: %s to %s: got %s, want %s", when, from.Name, to, got, want)
	}
}

// testSourceRanges holds virtual servers on VIPs and node ports to who may connect; the node itself always may.
func testSourceRanges(t *testing.T, r *router, h *Host) {
	var frontends []*balancer.Frontend
	for at, to := range map[string]string{"10.96.0.10:80": "10.2.0.2:80", "[fd00:96::10]:80": "[fd02::2]:80", "10.1.0.1:81": "10.2.0.2:80"} {
		frontends = append(frontends, frontend(at, sources("10.3.0.0/24", "fd03::/64"), func(f *balancer.Frontend) { f.NodePort = f.Key.Port == 81 }))
		r.virtual(at, to, "-m", 1)
	}
	r.commit()
	apply(t, h, frontends...)
	for _, f := range frontends {
		at := netip.AddrPortFrom(f.Addr, f.Key.Port).String()
		checkAttempt(t, r.near, at, open)
		checkAttempt(t, r.Host(), at, open)
		checkAttempt(t, r.client, at, silence)
	}
	checkIntact(t, h)
}

// testDirect passes packets on as they are: the endpoint on the client's LAN holds the VIPs, and answers past this node.
// Nothing of it is tracked.
func testDirect(t *testing.T, r *router, h *Host, how balancer.Forward, vip4, vip6 string) {
	flag := map[balancer.Forward]string{balancer.DRForward: "-g", balancer.TunnelForward: "-i"}[how]
	vips := map[string]string{vip4: "10.3.0.3:80", vip6: "[fd03::3]:80"}
	clients := map[string]string{vip4: "10.3.0.2", vip6: "fd03::2"}
	r.far.Sysctl("net.ipv4.conf.all.arp_ignore", "1")
	r.far.Sysctl("net.ipv4.conf.all.arp_announce", "2")
	if how == balancer.TunnelForward {
		for device, module := range map[string]string{"tunl0": "ipip", "ip6tnl0": "ip6_tunnel"} {
			if out, err := exec.Command("modprobe", module).CombinedOutput(); err != nil {
				t.Fatalf("modprobe %s: %v: %s", module, err, out)
			}
			r.far.Exec("ip", "link", "set", device, "up")
		}
	}
	for at := range vips {
		vip := netip.MustParseAddrPort(at)
		loopback := netip.PrefixFrom(vip.Addr(), vip.Addr().BitLen()).String()
		r.far.Exec("ip", "addr", "add", loopback, "dev", "lo")
		t.Cleanup(func() { r.far.Exec("ip", "addr", "del", loopback, "dev", "lo") })
		t.Cleanup(r.far.Echo("tcp", "far", vip).Close)
		t.Cleanup(r.far.Echo("udp", "far", vip).Close)
	}
	stage := func(weight int, edits ...func(*balancer.Frontend)) {
		t.Helper()
		var frontends []*balancer.Frontend
		for at, to := range vips {
			f := frontend(at, append([]func(*balancer.Frontend){forward(how), snat(balancer.AlwaysSNAT)}, edits...)...)
			for i := range f.Backends {
				f.Backends[i].Addr = netip.MustParseAddrPort(to)
			}
			if f.Backends == nil {
				to = ""
			}
			frontends = append(frontends, f, udp(f))
			r.virtual(at, to, flag, weight)
		}
		r.commit()
		apply(t, h, frontends...)
		checkIntact(t, h)
		if p := h.Problems(); len(p) != 0 {
			t.Errorf("problems: %v", p)
		}
	}
	var conns []net.Conn
	served := func() {
		t.Helper()
		for at := range vips {
			conn, answer := talk(t, r.near, at)
			conns = append(conns, conn)
			if answer.Client.Addr().String() != clients[at] || answer.Local.String() != at {
				t.Errorf("%s: the endpoint sees %s to %s", at, answer.Client, answer.Local)
			}
			u, err := r.near.Dial(t.Context(), "udp", at)
			must(t, err)
			if answer, err := lab.Ask(u); err != nil || answer.Client.Addr().String() != clients[at] {
				t.Errorf("UDP to %s: %+v, %v", at, answer, err)
			}
			_ = u.Close()
		}
	}
	going := func(when string) {
		t.Helper()
		for _, c := range conns {
			if err := goesOn(t, c, 100<<10); err != nil {
				t.Errorf("%s: the connection to %s: %v", when, c.RemoteAddr(), err)
			}
		}
	}
	refusing := func(when string, want outcome) {
		t.Helper()
		for at := range vips {
			checkOutcome(t, when, r.near, at, want)
		}
	}
	stage(1)
	served()
	going("serving")
	for at := range vips {
		if n := tracked(t, netip.MustParseAddrPort(at).Addr()); n > 0 {
			t.Errorf("%d connections to %s are tracked", n, at)
		}
	}
	stage(0, func(f *balancer.Frontend) { f.Backends[0].State = balancer.Draining })
	refusing("draining", refused)
	going("draining")
	stage(1, sources("10.1.0.0/24", "fd01::/64"))
	refusing("restricted", silence)
	going("restricted")
	stage(1)
	served()
	stage(0, func(f *balancer.Frontend) { f.Backends = nil })
	refusing("rejecting", refused)
	checkUDPRefused(t, r.near, vip4)
	checkUDPRefused(t, r.near, vip6)
	stage(0, dropping)
	refusing("dropping", silence)
	stage(1)
	served()
}

// testVirtualSysctls sets what the kernel's virtual servers need, leaves it while there are others' virtual servers, and
// sets it back in the end.
func testVirtualSysctls(t *testing.T, l *lab.Lab) {
	names := []string{"net.ipv4.vs.conntrack", "net.ipv4.vs.expire_nodest_conn", "net.ipv4.vs.expire_quiescent_template"}
	check := func(want string) {
		t.Helper()
		for _, name := range names {
			checkSysctl(t, l, name, want)
		}
	}
	for _, name := range names {
		l.Host().Sysctl(name, "0")
	}
	foreign := true
	o := options(t, xtables.NFT)
	o.Mode, o.ForeignServers = dataplane.Needs{Forward: true, LocalIn: true}, func() bool { return foreign }
	t.Cleanup(func() { check("0") }) // after newHost's Cleanup
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	check("0")
	for _, name := range names {
		if p := fmt.Sprint(h.Problems()); !strings.Contains(p, "sysctl -w "+name+"=1") {
			t.Errorf("problems: %s; want one with %s", p, name)
		}
	}
	foreign = false
	checkIntact(t, h)
	check("1")
	if p := h.Problems(); len(p) != 0 {
		t.Errorf("problems: %v", p)
	}
	h.SetMode(dataplane.Needs{Forward: true, Marked: true})
	apply(t, h, frontend("10.96.0.10:80"))
	finishNothing(t, h)
	check("1") // until Cleanup: connections outlive frontends
}

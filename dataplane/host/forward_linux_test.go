package host

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// router is a host between a client, a server, and a LAN on which there are a client and a server as well. Its policies
// in FORWARD and INPUT are DROP.
type router struct {
	*lab.Lab
	t                         *testing.T
	backend                   xtables.Variant
	client, server, near, far *lab.NS
	// odd is behind an interface for which there can be no rule.
	odd *lab.NS
	// servers are the virtual servers that stand for frontends, with their endpoints; nil means rules translate. lines are what
	// ipvsadm is to do.
	servers map[string]string
	lines   []string
}

func newRouter(t *testing.T, backend xtables.Variant) *router {
	t.Helper()
	l := lab.New(t)
	// Connections of tests before have marks, too. The kernel forgets those of a device that goes only when it finds the time.
	must(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	r := &router{Lab: l, t: t, backend: backend, client: l.Add("client"), server: l.Add("server"), near: l.Add("near"), far: l.Add("far"), odd: l.Add("odd+")}
	l.Link(l.Host(), r.client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	l.Link(l.Host(), r.server, "10.2.0.1/24", "10.2.0.2/24", "fd02::1/64", "fd02::2/64")
	l.Link(l.Host(), r.odd, "10.4.0.1/24", "10.4.0.2/24", "fd04::1/64", "fd04::2/64")
	lan := l.Bridge("lan")
	lan.Join(l.Host(), "10.3.0.1/24", "fd03::1/64")
	lan.Join(r.near, "10.3.0.2/24", "fd03::2/64")
	lan.Join(r.far, "10.3.0.3/24", "fd03::3/64")
	r.client.Default("10.1.0.1", "fd01::1")
	r.server.Default("10.2.0.1", "fd02::1")
	r.odd.Default("10.4.0.1", "fd04::1")
	r.near.Default("10.3.0.1", "fd03::1")
	r.far.Default("10.3.0.1", "fd03::1")
	l.Host().Sysctl("net.ipv6.conf.all.forwarding", "1")
	l.Host().Sysctl("net.ipv4.ip_forward", "0")
	r.closed()
	t.Cleanup(r.opened)
	return r
}

// closed makes the policies DROP.
func (r *router) closed() {
	for _, family := range []string{"", "6"} {
		r.rule(family, "-P FORWARD DROP")
		r.rule(family, "-P INPUT DROP")
		r.rule(family, "-A INPUT -p udp --dport 9 -j ACCEPT")
		if family == "6" {
			r.rule(family, "-A INPUT -p ipv6-icmp -j ACCEPT")
		}
	}
}

// opened undoes closed, and whatever rules there are besides.
func (r *router) opened() {
	for _, family := range []string{"", "6"} {
		for _, line := range []string{"-F", "-P FORWARD ACCEPT", "-P INPUT ACCEPT", "-P OUTPUT ACCEPT", "-t nat -F", "-t mangle -F"} {
			r.rule(family, line)
		}
	}
}

// rule runs iptables, or ip6tables.
func (r *router) rule(family, args string) {
	r.t.Helper()
	tool := "ip" + family + "tables-" + string(r.backend)
	if out, err := exec.Command(tool, append([]string{"-w"}, strings.Fields(args)...)...).CombinedOutput(); err != nil {
		r.t.Fatalf("%s %s: %v: %s", tool, args, err, out)
	}
}

// translate sends what is for a frontend to an endpoint, as a mode does.
func (r *router) translate(from, to string) {
	r.t.Helper()
	if r.servers != nil {
		r.virtual(from, to, "-m", 1)
		return
	}
	at := netip.MustParseAddrPort(from)
	family := ""
	if at.Addr().Is6() {
		family = "6"
	}
	for _, chain := range []string{"PREROUTING", "OUTPUT"} {
		for _, proto := range []string{"tcp", "udp"} {
			r.rule(family, fmt.Sprintf("-t nat -A %s -d %s -p %s --dport %d -j DNAT --to-destination %s", chain, at.Addr(), proto, at.Port(), to))
		}
	}
}

// source sends a datagram to a frontend, and returns where the server says that it came from. "" means it did not arrive.
func (r *router) source(from *lab.NS, to string, server net.PacketConn) string {
	r.t.Helper()
	c, err := from.Dial(r.t.Context(), "udp", to)
	must(r.t, err)
	defer func() { _ = c.Close() }()
	question := fmt.Sprintf("from %s to %s at %d", from.Name, to, time.Now().UnixNano())
	_, err = c.Write([]byte(question))
	must(r.t, err)
	buf := make([]byte, 200)
	for {
		must(r.t, server.SetReadDeadline(deadline()))
		n, sender, err := server.ReadFrom(buf)
		if err != nil {
			return ""
		}
		if string(buf[:n]) == question {
			return sender.(*net.UDPAddr).AddrPort().Addr().Unmap().String()
		}
	}
}

func snat(s balancer.SNAT) func(*balancer.Frontend) {
	return func(f *balancer.Frontend) { f.SNAT = s }
}

func udp(f *balancer.Frontend) *balancer.Frontend {
	g := *f
	g.Proto = balancer.UDP
	return &g
}

// TestSNAT sends from every kind of client to every kind of frontend, in both families, through policies DROP, and looks
// which source the endpoints see.
func TestSNAT(t *testing.T) {
	bothBackends(t, func(t *testing.T, backend xtables.Variant) {
		for name, mode := range map[string]dataplane.Needs{"one mode": {Forward: true}, "while ipvs takes over": {Forward: true, LocalIn: true}} {
			t.Run(name, func(t *testing.T) {
				o := options(t, backend)
				o.Interface, o.Mode = "lo", mode
				r := newRouter(t, backend)
				testSNAT(t, r, newHost(t, o))
			})
		}
	})
}

func testSNAT(t *testing.T, r *router, h *Host) {
	t.Helper()
	kinds := []struct {
		port int
		edit func(*balancer.Frontend)
	}{{80, snat(balancer.AutoSNAT)}, {81, snat(balancer.AlwaysSNAT)}, {82, snat(balancer.NeverSNAT)}}
	var frontends []*balancer.Frontend
	servers := map[string]net.PacketConn{}
	place := func(vip string, ns *lab.NS, at string) {
		for _, k := range kinds {
			key := net.JoinHostPort(vip, fmt.Sprint(k.port))
			f := frontend(key, k.edit, func(f *balancer.Frontend) { f.NodePort = strings.HasSuffix(vip, "1.0.1") || vip == "fd01::1" })
			frontends = append(frontends, f, udp(f))
			to := net.JoinHostPort(at, fmt.Sprint(8000+k.port))
			r.translate(key, to)
			pc, err := ns.ListenPacket("udp", to)
			must(t, err)
			t.Cleanup(func() { _ = pc.Close() })
			servers[key] = pc
			t.Cleanup(ns.Echo("tcp", at, netip.MustParseAddrPort(to)).Close)
		}
	}
	place("10.96.0.10", r.server, "10.2.0.2")
	place("10.96.0.11", r.far, "10.3.0.3")
	place("10.1.0.1", r.client, "10.1.0.2") // a node port
	place("10.96.0.12", r.odd, "10.4.0.2")
	place("fd00:96::12", r.odd, "fd04::2")
	place("fd00:96::10", r.server, "fd02::2")
	place("fd00:96::11", r.far, "fd03::3")
	place("fd01::1", r.client, "fd01::2")
	r.commit()
	apply(t, h, frontends...)
	checkSysctl(t, r.Lab, "net.ipv4.ip_forward", "1")
	if p := h.Problems(); len(p) != 0 {
		t.Fatalf("problems: %v", p)
	}
	for _, c := range []struct {
		from                *lab.NS
		vip                 string
		auto, always, never string
	}{
		{r.client, "10.96.0.10", "10.1.0.2", "10.2.0.1", "10.1.0.2"},
		{r.near, "10.96.0.10", "10.3.0.2", "10.2.0.1", "10.3.0.2"},
		{r.server, "10.96.0.10", "10.2.0.1", "10.2.0.1", ""},       // hairpin: without SNAT it gets what is from itself
		{r.near, "10.96.0.11", "10.3.0.1", "10.3.0.1", "10.3.0.2"}, // one-arm
		{r.far, "10.96.0.11", "10.3.0.1", "10.3.0.1", ""},
		{r.odd, "10.96.0.12", "10.4.0.1", "10.4.0.1", ""},
		{r.odd, "fd00:96::12", "fd04::1", "fd04::1", ""},
		{r.client, "10.96.0.11", "10.1.0.2", "10.3.0.1", "10.1.0.2"},
		{r.Host(), "10.96.0.10", "10.2.0.1", "10.2.0.1", "10.2.0.1"},
		{r.near, "10.1.0.1", "10.1.0.1", "10.1.0.1", "10.3.0.2"}, // a node port
		{r.client, "fd00:96::10", "fd01::2", "fd02::1", "fd01::2"},
		{r.server, "fd00:96::10", "fd02::1", "fd02::1", ""},
		{r.near, "fd00:96::11", "fd03::1", "fd03::1", "fd03::2"},
		{r.far, "fd00:96::11", "fd03::1", "fd03::1", ""},
		{r.near, "fd01::1", "fd01::1", "fd01::1", "fd03::2"},
	} {
		for i, want := range []string{c.auto, c.always, c.never} {
			key := net.JoinHostPort(c.vip, fmt.Sprint(80+i))
			if want == "" {
				continue // what it would be is up to the client's kernel
			}
			got := r.source(c.from, key, servers[key])
			if c.from == r.Host() && got != "" && strings.Contains("10.1.0.1 10.2.0.1 10.3.0.1", got) {
				continue // any address of the node
			}
			if got != want {
				t.Errorf("%s to %s: the endpoint sees %q, want %s", c.from.Name, key, got, want)
			}
		}
		conn, err := c.from.Dial(t.Context(), "tcp", net.JoinHostPort(c.vip, "80"))
		if err != nil {
			t.Errorf("%s to %s: %v", c.from.Name, c.vip, err)
			continue
		}
		if _, err := lab.Ask(conn); err != nil {
			t.Errorf("%s to %s: %v", c.from.Name, c.vip, err)
		}
		_ = conn.Close()
	}
	// What is no service's is still dropped.
	checkAttempt(t, r.client, "10.2.0.2:8080", silence)
	checkIntact(t, h)
	checkMarks(t, r, servers["10.96.0.10:81"])
}

// checkMarks holds other bits of marks to what others have made them.
func checkMarks(t *testing.T, r *router, server net.PacketConn) {
	t.Helper()
	r.rule("", "-t mangle -A PREROUTING -j MARK --set-xmark 0x2/0x2")
	r.rule("", "-t mangle -A PREROUTING -j CONNMARK --set-xmark 0x1/0x1")
	const both = uint32(0x1 | 0x8000 | 0x4000)
	// To the endpoint's port for this alone: connections of before, with other marks, may end only now.
	r.rule("", "-t mangle -A POSTROUTING -p udp --dport 8081 -m mark --mark 0x2/0xffffffff -j ACCEPT")
	if got := r.source(r.client, "10.96.0.10:81", server); got != "10.2.0.1" {
		t.Errorf("with marks of others the endpoint sees %q", got)
	}
	seen := r.Host().Exec("iptables-"+string(r.backend), "-t", "mangle", "-vxnL", "POSTROUTING")
	if !strings.Contains(seen, "       1 ") {
		t.Errorf("no packet with both marks has passed:\n%s", seen)
	}
	for _, conn := range connectionMarks(t, "10.96.0.10", 81) {
		if conn&0x1 != 0 && conn != both {
			t.Errorf("a connection's mark is %#x, want %#x", conn, both)
		}
	}
}

// TestPolicyDrop has programs of the host serve VIPs, own addresses and node ports while INPUT's policy is DROP, and
// the host itself be an endpoint: what userspace modes and endpoints on the node need.
func TestPolicyDrop(t *testing.T) {
	bothBackends(t, func(t *testing.T, backend xtables.Variant) {
		r := newRouter(t, backend)
		o := options(t, backend)
		o.Interface = "lo"
		h := newHost(t, o)
		listen(t, 80)
		listen(t, 22)
		r.translate("10.96.0.12:80", "10.2.0.1:22")
		refusing := func(f *balancer.Frontend) { f.Backends = nil }
		frontends := []*balancer.Frontend{
			frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80"), frontend("10.1.0.1:80", nodePort), frontend("10.96.0.12:80"),
			frontend("10.96.0.13:80", refusing), frontend("10.1.0.1:81", nodePort, refusing), udp(frontend("10.1.0.1:81", nodePort, refusing)),
			frontend("10.2.0.2:81", nodePort, refusing), udp(frontend("10.2.0.2:81", nodePort, refusing)),
		}
		checkAttempt(t, r.client, "10.1.0.1:80", silence)
		r.Host().Sysctl("net.ipv4.ip_forward", "1")
		apply(t, h, frontends...)
		for at, want := range map[string]outcome{
			"10.96.0.10:80": open, "[fd00:96::10]:80": open, "10.1.0.1:80": open, "10.96.0.12:80": open,
			"10.96.0.10:22": refused, "[fd00:96::10]:22": refused, "10.1.0.1:22": silence,
			"10.96.0.13:80": refused, "10.1.0.1:81": refused, "10.2.0.2:81": refused,
		} {
			if got := attempt(t, r.client, at, want); got != want {
				t.Errorf("the client to %s: got %s, want %s", at, got, want)
			}
		}
		checkUDPRefused(t, r.client, "10.2.0.2:81")
		checkUDPRefused(t, r.client, "10.1.0.1:81")
		checkAttempt(t, r.Host(), "10.2.0.2:81", refused)
		checkIntact(t, h)
	})
}

// TestForwarding holds the sysctls to what forwarding needs, for as long as it is needed.
func TestForwarding(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	both := []*balancer.Frontend{frontend("10.96.0.10:80"), frontend("[fd00:96::10]:80")}
	apply(t, h, both...)
	checkSysctl(t, l, forward4, "0")
	rules := func() string { return l.Host().Exec("nft", "list", "table", "ip", "vipd-guard") }
	if out := rules(); strings.Contains(out, "masquerade") {
		t.Fatalf("it masquerades for a mode that does not forward:\n%s", out)
	}
	h.SetMode(dataplane.Needs{Forward: true})
	apply(t, h, both...)
	checkSysctl(t, l, forward4, "1")
	checkSysctl(t, l, forward6, "0")
	if p := fmt.Sprint(h.Problems()); !strings.Contains(p, "sysctl -w net.ipv6.conf.all.forwarding=1") || !strings.Contains(p, "router advertisements") {
		t.Fatalf("problems: %v", p)
	}
	if out := rules(); strings.Count(out, "masquerade fully-random") != 3 || !strings.Contains(out, `"client" . "client"`) {
		t.Fatalf("it does not masquerade:\n%s", out)
	}
	checkIntact(t, h)
	if told := h.Mended(); len(told) > 0 {
		t.Errorf("nothing was changed, and %v is mended", told)
	}
	if _, err := os.Stat("/proc/sys/net/ipv6/conf/lo/force_forwarding"); err == nil {
		l.Host().Sysctl(forced6("client"), "1")
		checkIntact(t, h)
		if p := h.Problems(); len(p) != 0 {
			t.Errorf("a device forwards, and the problems are %v", p)
		}
	}
	l.Host().Sysctl(forward6, "1") // as the problem says
	for range 2 {
		l.Host().Sysctl(forward4, "0") // as somebody else may
		checkIntact(t, h)
		checkSysctl(t, l, forward4, "1")
		if told := h.Mended(); !slices.Equal(told, []string{"sysctl net.ipv4.ip_forward was 0"}) {
			t.Errorf("told of what was mended: %q", told)
		}
	}
	if p := h.Problems(); len(p) != 0 {
		t.Fatalf("problems: %v", p)
	}
	h.SetMode(dataplane.Needs{})
	apply(t, h, both...)
	if out := rules(); strings.Contains(out, "masquerade") || strings.Contains(out, `"client"`) {
		t.Fatalf("it still masquerades:\n%s", out)
	}
	checkIntact(t, h)
	finishNothing(t, h)
	checkSysctl(t, l, forward4, "1") // until Cleanup
	must(t, h.Close())
	_, err := Cleanup(t.Context(), o, false)
	must(t, err)
	checkSysctl(t, l, forward4, "0")

	o.ManageSysctls, o.Mode.Forward, o.StrictARP = false, true, false
	h = newHost(t, o)
	apply(t, h, both...)
	checkSysctl(t, l, forward4, "0")
	if p := fmt.Sprint(h.Problems()); !strings.Contains(p, "sysctl -w net.ipv4.ip_forward=1") {
		t.Fatalf("problems: %v", p)
	}
}

// oneArm lists the interfaces by which a connection may come in and go out with the node's address for a source.
func oneArm(t *testing.T, l *lab.Lab) []string {
	t.Helper()
	var names []string
	for _, pair := range samePair.FindAllStringSubmatch(l.Host().Exec("nft", "list", "set", "ip", "vipd-guard", "onearm"), -1) {
		if pair[1] == pair[2] {
			names = append(names, pair[1])
		}
	}
	slices.Sort(names)
	return names
}

// TestInterfaces has links come, go, be renamed, and join a bridge: the guard follows, and takes it for no drift.
func TestInterfaces(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface, o.Mode.Forward = "lo", true
	h := newHost(t, o)
	apply(t, h, frontend("10.96.0.10:80"))
	before := oneArm(t, l)
	if !slices.Contains(before, "client") || slices.Contains(before, "lo") {
		t.Fatalf("rules for %q", before)
	}
	for _, c := range []struct {
		do   string
		want []string
	}{
		{"link add web0 type veth peer name web1", []string{"web0", "web1"}},
		{"link set web1 name db1", []string{"db1", "web0"}},
		{"link add br0 type bridge", []string{"br0", "db1", "web0"}},
		{"link set web0 master br0", []string{"br0", "db1"}},
		{"link set web0 nomaster", []string{"br0", "db1", "web0"}},
		{"link del br0", []string{"db1", "web0"}},
		{"link set web0 name odd+", []string{"db1", "odd+"}},
		{"link del db1", nil},
	} {
		ip(t, c.do)
		want := slices.Sorted(slices.Values(slices.Concat(before, c.want)))
		lab.Eventually(t, deadlineIn, "rules for "+fmt.Sprint(want)+" after "+c.do, func() error {
			checkIntact(t, h)
			if got := oneArm(t, l); !slices.Equal(got, want) {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
	}
}

var samePair = regexp.MustCompile(`"([^"]+)" \. "([^"]+)"`)

package netfilter

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vipd/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// TestLikeTheKernel sends packets through random rules, in the kernel and here, and wants the same to become of them.
func TestLikeTheKernel(t *testing.T) {
	lab.Need(t, "iptables", "ipset")
	n := newNetwork(t)
	n.pin()
	const sets = 40 // of rules, for each backend and family
	for _, backend := range []string{"nft", "legacy"} {
		for _, a := range []addresses{ipv4(), ipv6()} {
			tool := map[bool]string{false: "iptables", true: "ip6tables"}[a.v6] + "-" + backend + "-restore"
			t.Run(tool, func(t *testing.T) {
				lab.Need(t, strings.TrimSuffix(tool, "-restore"))
				n.t = t
				n.warm(a)
				t.Cleanup(func() {
					n.run(noRules(), tool)
					n.run("", "ipset", "destroy")
				})
				seen := map[string]int{}
				for seed := range uint64(sets) {
					n.compare(a, tool, seed, seen)
				}
				for _, want := range []Fate{Delivered, Forwarded, Dropped, Rejected, Unrouted} {
					if seen[string(want)] < sets/4 {
						t.Errorf("only %d packets were %s: %v", seen[string(want)], want, seen)
					}
				}
				t.Log(seen)
			})
		}
	}
}

func (n *network) run(input, tool string, args ...string) {
	n.t.Helper()
	cmd := exec.Command(tool, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("%s %q: %v\n%s\n%s", tool, args, err, out, number(input))
	}
}

func number(text string) string {
	var b strings.Builder
	for i, line := range strings.Split(text, "\n") {
		fmt.Fprintf(&b, "%3d %s\n", i+1, line)
	}
	return b.String()
}

// compare makes up rules from a seed and sends packets through them. seen counts what became of them.
func (n *network) compare(a addresses, tool string, seed uint64, seen map[string]int) {
	n.t.Helper()
	g := &generator{Rand: rand.New(rand.NewPCG(seed, uint64(a.bits))), addresses: a, chance: seed%4 == 3, answers: seed%4 == 1}
	g.set = fmt.Sprintf("t%d-%d-", os.Getpid(), n.nextPort())
	sets, rules := g.sets(), g.rules()
	text := [2]string{rules, ""}
	if a.v6 {
		text = [2]string{"", rules}
	}
	sim, err := Parse(text[0], text[1], sets)
	if err != nil {
		n.t.Fatalf("seed %d: %v\n%s", seed, err, number(rules))
	}
	n.run(sets, "ipset", "restore")
	n.run(rules, tool)
	var history []string
	for range 12 {
		p, from := n.packet(g)
		s, got := n.send(a, from, p)
		note := fmt.Sprintf("%s %s -> %s in %q: got %s", p.Proto, p.Src, p.Dst, p.In, got)
		history = append(history, note)
		want := n.wanted(g, sim, p, got)
		seen[string(want.Fate)]++
		if expected := n.expected(a, want, p.Proto); got != expected && !(want.Fate == Unrouted && unrouted(got)) {
			n.t.Fatalf("seed %d: got %s, want %s, by way of\n%s\nafter\n%s\n%s%s",
				seed, got, expected, strings.Join(want.Path, "\n"), strings.Join(history, "\n"), sets, number(rules))
		}
		wrong := n.goOn(g, sim, s, want)
		s.close() // before it asks again
		if wrong != "" {
			n.t.Fatalf("seed %d: %s\nafter\n%s\n%s%s", seed, wrong, strings.Join(history, "\n"), sets, number(rules))
		}
	}
}

// unrouted: of what has no route, the kernel tells its senders sometimes.
func unrouted(got string) bool {
	return slices.Contains([]string{"nothing", "icmp 3/0", "icmp 3/1", "icmp 1/0", "ENETUNREACH", "EHOSTUNREACH"}, got)
}

// packet makes up a packet of the client or the host.
func (n *network) packet(g *generator) (Packet, *lab.NS) {
	from, src, in := n.client, pick(g, g.clients...), "client"
	if g.IntN(3) == 0 {
		from, src, in = n.lab.Host(), g.host, ""
	}
	dst := pick(g, g.held, g.held, g.held, g.unrouted, g.servers[1], g.host)
	proto := pick(g, UDP, UDP, TCP)
	if g.answers {
		proto = UDP
	}
	return Packet{
		Src: netip.AddrPortFrom(netip.MustParseAddr(src), n.nextPort()), Dst: netip.AddrPortFrom(netip.MustParseAddr(dst), 80), Proto: proto, In: in,
	}, from
}

// wanted is the verdict that the kernel should come to; where there is chance, the one among all that fits what it did.
func (n *network) wanted(g *generator, sim *Ruleset, p Packet, got string) Verdict {
	if !g.chance {
		return sim.Send(p, n.host(), func(float64) bool { panic("a coin is tossed") })
	}
	all := sim.Outcomes(p, n.host())
	for _, o := range all {
		if expected := n.expected(g.addresses, o.Verdict, p.Proto); o.Probability > 0 && (expected == got || o.Fate == Unrouted && unrouted(got)) {
			return o.Verdict
		}
	}
	return all[0].Verdict
}

// goOn has the server that a datagram reached answer, and the client send again. It says what is wrong.
func (n *network) goOn(g *generator, sim *Ruleset, s *sent, first Verdict) string {
	if !g.answers || s.arrived == nil || s.arrived.where == "host" {
		return ""
	}
	if err := unix.Sendto(s.arrived.fd, []byte("answer"), 0, sockaddr(s.as)); err != nil {
		n.t.Fatal(err)
	}
	n.fence(g.addresses, n.servers[s.arrived.where])
	_, heard := receive(s.socket)
	coin := func(float64) bool { panic("a coin is tossed") }
	reply := sim.Send(first.Reply(), n.host(), coin)
	if want := reply.Fate == Forwarded || reply.Fate == Delivered; heard != want {
		return fmt.Sprintf("an answer arrives: %v, want %v (%s) by way of\n%s", heard, want, reply, strings.Join(reply.Path, "\n"))
	}
	if !heard {
		return ""
	}
	next := first.Next()
	next.Conn.Mark = reply.Connmark
	got := n.follow(g.addresses, s)
	v := sim.Send(next, n.host(), coin)
	if want := n.expected(g.addresses, v, v.sent.Proto); got != want {
		return fmt.Sprintf("the packet after the answer: got %s, want %s, by way of\n%s", got, want, strings.Join(v.Path, "\n"))
	}
	return ""
}

// expected is what the lab would say of a verdict.
func (n *network) expected(a addresses, v Verdict, proto Protocol) string {
	switch v.Fate {
	case Dropped:
		return "nothing"
	case Unrouted:
		return "unrouted"
	case Delivered:
		return arrival("host", v.Dst.Port(), netip.Addr{})
	case Rejected:
		kind := rejections()[v.RejectWith]
		if proto == TCP {
			return kind.errno
		}
		return "icmp " + kind.icmp
	}
	for i, s := range a.servers {
		if v.Dst.Addr() == netip.MustParseAddr(s) {
			return arrival(fmt.Sprint("s", i+1), v.Dst.Port(), v.Src.Addr())
		}
	}
	return v.String()
}

type rejection struct{ icmp, errno string }

// rejections are type and code of each kind (include/uapi/linux/icmp.h, icmpv6.h), and what connect says to it
// (icmp_err_convert of net/ipv4/icmp.c, tab_unreach of net/ipv6/icmp.c).
func rejections() map[string]rejection {
	return map[string]rejection{
		"tcp-reset":              {"", "ECONNREFUSED"},
		"icmp-net-unreachable":   {"3/0", "ENETUNREACH"},
		"icmp-host-unreachable":  {"3/1", "EHOSTUNREACH"},
		"icmp-proto-unreachable": {"3/2", "ENOPROTOOPT"},
		"icmp-port-unreachable":  {"3/3", "ECONNREFUSED"},
		"icmp-net-prohibited":    {"3/9", "ENETUNREACH"},
		"icmp-host-prohibited":   {"3/10", "EHOSTUNREACH"},
		"icmp-admin-prohibited":  {"3/13", "EHOSTUNREACH"},
		"icmp6-no-route":         {"1/0", "ENETUNREACH"},
		"icmp6-adm-prohibited":   {"1/1", "EACCES"},
		"icmp6-addr-unreachable": {"1/3", "EHOSTUNREACH"},
		"icmp6-port-unreachable": {"1/4", "ECONNREFUSED"},
	}
}

package packetflow

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/dataplane/host"
	"vipd/dataplane/iptables"
	"vipd/test/netfilter"
)

// rendering is a mode whose rules can be printed, with those of the guard.
type rendering struct {
	mode         string
	capabilities balancer.Capabilities
	// render prints the rules for a node that forwards between these interfaces.
	render func(frontends []*balancer.Frontend, interfaces []string) (string, error)
}

// renderings are the modes whose traffic the kernel forwards by rules alone.
func renderings() []rendering {
	return []rendering{{"iptables", iptables.Capabilities(), func(frontends []*balancer.Frontend, interfaces []string) (string, error) {
		o := host.DefaultOptions()
		o.Mode = host.Mode{Forward: true, Marked: true}
		text, err := iptables.Render(frontends, host.Mark(o))
		return host.Render(o, frontends, interfaces) + text, err
	}}}
}

// deepest is how many chains may lead to each other below a hook; nft takes no more.
const deepest = 15

// TestRules holds the text of rules to the tables: on a host that has no rules besides, and on one that drops what
// nobody asks for.
func TestRules(t *testing.T) {
	for _, m := range renderings() {
		for _, s := range readSections(t) {
			t.Run(m.mode+"/"+s.name, func(t *testing.T) {
				d := s.compile(m.capabilities)
				text := m.mustRender(t, d)
				for again := range 3 {
					if m.mustRender(t, d) != text {
						t.Fatalf("rendered %d times, the rules differ", again+2)
					}
				}
				for _, policy := range []string{"ACCEPT", "DROP"} {
					u := newUnderTest(t, text, policy, d)
					for _, r := range s.rows {
						if _, literal := netip.ParseAddrPort(r.to); literal == nil && policy == "DROP" {
							continue // what is no service's is dropped then, as it should be
						}
						for _, proto := range []netfilter.Protocol{netfilter.TCP, netfilter.UDP} {
							for _, wrong := range u.check(r, proto) {
								t.Errorf("%s, %s, policy %s: %s", r, proto, policy, wrong)
							}
						}
					}
				}
				if t.Failed() {
					t.Logf("the rules are\n%s", text)
				}
			})
		}
	}
}

func (m rendering) mustRender(t *testing.T, d balancer.Desired) string {
	t.Helper()
	var frontends []*balancer.Frontend
	for _, f := range d.Frontends.All() {
		frontends = append(frontends, f)
	}
	var devices []string
	for _, l := range links() {
		devices = append(devices, l.dev)
	}
	text, err := m.render(frontends, devices)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// underTest is a node with rules.
type underTest struct {
	rules *netfilter.Ruleset
	held  []netip.Addr
	coin  *rand.Rand
	port  uint16 // of the last packet
}

func newUnderTest(t *testing.T, text, policy string, d balancer.Desired) *underTest {
	t.Helper()
	host := "*filter\n:INPUT " + policy + "\n:FORWARD " + policy + "\nCOMMIT\n"
	rules4, rules6, sets, err := split(text)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := netfilter.Parse(host+rules4, host+rules6, sets)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if lost := rules.Unreferenced("VIPD-"); len(lost) > 0 {
		t.Errorf("nothing leads to %v", lost)
	}
	if n := rules.Depth(); n > deepest {
		t.Errorf("chains lead %d deep, want at most %d", n, deepest)
	}
	u := &underTest{rules: rules, coin: rand.New(rand.NewPCG(1, 2)), port: 40000}
	for a := range d.Addresses.All() {
		u.held = append(u.held, a)
	}
	return u
}

// split sorts a plan by what reads it.
func split(text string) (rules4, rules6, sets string, err error) {
	var to *string
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "# iptables-restore"):
			to = &rules4
		case strings.HasPrefix(line, "# ip6tables-restore"):
			to = &rules6
		case strings.HasPrefix(line, "# ipset restore"):
			to = &sets
		case strings.Contains(line, " -j TCPMSS "): // packets have no size here
		case to == nil:
			return "", "", "", fmt.Errorf("nobody reads %q", line)
		default:
			*to += line
		}
	}
	return rules4, rules6, sets, nil
}

// host is the node's routing, with its VIPs held.
func (u *underTest) host() netfilter.Host {
	return netfilter.Host{
		Route: func(dst netip.Addr) (bool, string) {
			if dst.IsLoopback() || slices.Contains(ownAddresses(), dst) || slices.Contains(u.held, dst) {
				return true, ""
			}
			if l := linkTo(dst); l != nil {
				return false, l.dev
			}
			return false, ""
		},
		Address: func(dev string, v6 bool) netip.Addr {
			for _, l := range links() {
				for _, n := range l.own {
					if l.dev == dev && n.Addr().Is6() == v6 {
						return n.Addr()
					}
				}
			}
			return netip.Addr{}
		},
	}
}

// packet opens a connection as the row says.
func (u *underTest) packet(r row, proto netfilter.Protocol) netfilter.Packet {
	dst, err := r.destination()
	if err != nil {
		panic(err) // readRow has seen it
	}
	u.port++
	p := netfilter.Packet{Src: netip.AddrPortFrom(addressOf(r.client, dst.Addr()), u.port), Dst: dst, Proto: proto}
	if r.client != "local" {
		p.In = linkTo(p.Src.Addr()).dev
	}
	return p
}

// check says what is wrong with all ways that a row's packet can go.
func (u *underTest) check(r row, proto netfilter.Protocol) (wrong []string) {
	p := u.packet(r, proto)
	if r.stays {
		return u.checkStays(r, p)
	}
	shares, total := map[string]float64{}, 0
	for _, share := range r.answers {
		total += share
	}
	for _, o := range u.rules.Outcomes(p, u.host()) {
		if o.Probability == 0 {
			continue
		}
		server, why := u.judge(r, p, o.Verdict)
		if why != "" {
			wrong = append(wrong, fmt.Sprintf("%s, by way of\n\t%s", why, strings.Join(o.Path, "\n\t")))
		}
		shares[server] += o.Probability
	}
	for name, share := range r.answers {
		if want := float64(share) / float64(total); math.Abs(shares[name]-want) > 1e-6 {
			wrong = append(wrong, fmt.Sprintf("%s answers with probability %v, want %v", name, shares[name], want))
		}
	}
	return wrong
}

// checkStays has a client come once, and again: it can only go where it went.
func (u *underTest) checkStays(r row, p netfilter.Packet) (wrong []string) {
	first := u.rules.Send(p, u.host(), func(probability float64) bool { return u.coin.Float64() < probability })
	want, why := u.judge(r, p, first)
	if why != "" {
		return []string{why}
	}
	for range 5 {
		p = u.packet(r, p.Proto)
		for _, o := range u.rules.Outcomes(p, u.host()) {
			if got, why := u.judge(r, p, o.Verdict); o.Probability > 0 && (why != "" || got != want) {
				wrong = append(wrong, fmt.Sprintf("%s answers after %s with probability %v %s", got, want, o.Probability, why))
			}
		}
	}
	return wrong
}

// judge says which server answers a packet that this became of, and what is wrong with it.
func (u *underTest) judge(r row, p netfilter.Packet, v netfilter.Verdict) (server, why string) {
	switch r.verdict {
	case dropped:
		if v.Fate != netfilter.Dropped {
			return "", fmt.Sprintf("%s, want it dropped", v)
		}
		return "", ""
	case refused:
		kinds := map[netfilter.Protocol][]string{netfilter.TCP: {"tcp-reset"}, netfilter.UDP: {"icmp-port-unreachable", "icmp6-port-unreachable"}}
		closed := v.Fate == netfilter.Delivered && nameOf(p.Dst.Addr()) == "node" && r.to == p.Dst.String() // no program listens there
		if !closed && (v.Fate != netfilter.Rejected || !slices.Contains(kinds[p.Proto], v.RejectWith)) {
			return "", fmt.Sprintf("%s, want it refused", v)
		}
		return "", ""
	}
	server = nameOf(v.Dst.Addr())
	if r.verdict == lost {
		if v.Fate != netfilter.Forwarded || v.Src != p.Src || u.judgeReply(p, v) == "" {
			return "", fmt.Sprintf("%s seen from %s, want a reply that is lost", v, v.Src)
		}
		return "", ""
	}
	switch {
	case v.Fate != netfilter.Forwarded || r.answers[server] == 0 || v.Dst.Port() != 8080:
		return server, fmt.Sprintf("%s, want an answer by %v", v, r.names())
	case r.client == "local":
		if nameOf(v.Src.Addr()) != "node" {
			return server, fmt.Sprintf("%s sees %s, want an address of the node's", server, v.Src)
		}
	case r.seesNode(server) != (nameOf(v.Src.Addr()) == "node") || !r.seesNode(server) && v.Src != p.Src:
		return server, fmt.Sprintf("%s sees %s; an address of the node's: want %v", server, v.Src, r.seesNode(server))
	}
	return server, u.judgeReply(p, v)
}

// judgeReply says what is wrong with the answer to a packet that reached a server.
func (u *underTest) judgeReply(p netfilter.Packet, v netfilter.Verdict) string {
	if v.Dst == p.Dst && v.Src == p.Src {
		return "" // nothing has to be undone
	}
	at := v.Src.Addr()
	if at == v.Dst.Addr() || linkTo(at) != nil && nameOf(at) != "node" && linkTo(at).dev == linkTo(v.Dst.Addr()).dev {
		return fmt.Sprintf("the reply of %s goes to %s, and misses the node", v.Dst, at)
	}
	want := netfilter.Forwarded
	if p.In == "" {
		want = netfilter.Delivered
	}
	back := u.rules.Send(v.Reply(), u.host(), func(float64) bool { return false })
	if back.Fate != want || back.Src != p.Dst || back.Dst != p.Src {
		return fmt.Sprintf("the reply is %s from %s, want it from %s to %s", back, back.Src, p.Dst, p.Src)
	}
	return ""
}

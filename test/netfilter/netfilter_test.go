package netfilter

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// host has 10.0.0.1 and the VIPs on lo; everything else in 10/8 is behind eth1, clients in 192.168/16 behind eth0.
func host() Host {
	return Host{
		Route: func(dst netip.Addr) (bool, string) {
			switch a := dst.String(); {
			case a == "10.0.0.1", a == "fd00::1", dst.IsLoopback(), strings.HasPrefix(a, "10.96."), strings.HasPrefix(a, "fd00:96:"):
				return true, ""
			case strings.HasPrefix(a, "10."), strings.HasPrefix(a, "fd00:"):
				return false, "eth1"
			case strings.HasPrefix(a, "192.168."), strings.HasPrefix(a, "fd01:"):
				return false, "eth0"
			}
			return false, ""
		},
		Address: func(dev string, v6 bool) netip.Addr {
			if v6 {
				return netip.MustParseAddr("fd00::1")
			}
			return netip.MustParseAddr("10.0.0.1")
		},
	}
}

func packet(src, dst string, proto Protocol, in string) Packet {
	return Packet{Src: netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst), Proto: proto, In: in}
}

func client() Packet { return packet("192.168.0.2:5000", "10.96.0.10:80", TCP, "eth0") }

func mustParse(t *testing.T, rules4, rules6, sets string) *Ruleset {
	t.Helper()
	r, err := Parse(rules4, rules6, sets)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// always is a coin for rules without chance.
func always(p float64) bool { panic(fmt.Sprintf("a coin of %v is tossed", p)) }

// TestRuleSets holds one packet to one line each.
func TestRuleSets(t *testing.T) {
	nat := func(rules string) string { return "*nat\n:A - [0:0]\n:B - [0:0]\n:C - [0:0]\n" + rules + "\nCOMMIT\n" }
	filter := func(rules string) string { return "*filter\n:A - [0:0]\n:B - [0:0]\n" + rules + "\nCOMMIT\n" }
	dnat := "-A PREROUTING -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.1.0.1:8080\n"
	for _, c := range []struct {
		name, rules, sets string
		packet            Packet
		want              string
	}{
		{name: "no rules", packet: client(), want: "delivered to 10.96.0.10:80"},
		{name: "dnat", rules: nat(dnat), packet: client(), want: "forwarded to 10.1.0.1:8080"},
		{name: "dnat keeps the port", rules: nat("-A PREROUTING -j DNAT --to-destination 10.1.0.1"), packet: client(), want: "forwarded to 10.1.0.1:80"},
		{name: "prerouting is not for the host's own", rules: nat(dnat), packet: packet("10.0.0.1:5000", "10.96.0.10:80", TCP, ""), want: "delivered to 10.96.0.10:80"},
		{name: "no route", packet: packet("192.168.0.2:5000", "8.8.8.8:80", TCP, "eth0"), want: "unrouted"},
		{
			name: "goto does not come back", rules: nat("-A PREROUTING -g A\n-A PREROUTING -p tcp -j DNAT --to-destination 10.1.0.1:1\n-A A -j B\n-A A -p tcp -j DNAT --to-destination 10.1.0.2:2\n-A B -j RETURN"),
			packet: client(), want: "forwarded to 10.1.0.2:2",
		},
		{
			name: "the end of a chain gone to is the caller's", rules: nat("-A PREROUTING -j A\n-A PREROUTING -p tcp -j DNAT --to-destination 10.1.0.1:1\n-A A -g B\n-A A -p tcp -j DNAT --to-destination 10.1.0.2:2\n-A B -g C"),
			packet: client(), want: "forwarded to 10.1.0.1:1",
		},
		{
			name: "returning from a chain gone to from a base chain is its policy", rules: "*filter\n:INPUT DROP [0:0]\n:A - [0:0]\n-A INPUT -g A\n-A INPUT -j ACCEPT\n-A A -j RETURN\nCOMMIT\n",
			packet: client(), want: "dropped",
		},
		{name: "policy", rules: "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n" + nat(dnat), packet: client(), want: "dropped"},
		{name: "reject", rules: filter("-A INPUT -p tcp -j REJECT --reject-with tcp-reset"), packet: client(), want: "rejected with tcp-reset"},
		{name: "reject by default", rules: filter("-A INPUT -j A\n-A A -j REJECT"), packet: client(), want: "rejected with icmp-port-unreachable"},
		{name: "not", rules: filter("-A INPUT ! -s 192.168.0.0/16 -j DROP\n-A INPUT ! -i eth0 -j DROP"), packet: client(), want: "delivered to 10.96.0.10:80"},
		{name: "filter sees the new destination", rules: nat(dnat) + filter("-A FORWARD -d 10.1.0.1/32 -p tcp -m tcp --dport 8080:8090 -m conntrack --ctstate DNAT -j DROP"), packet: client(), want: "dropped"},
		{name: "mangle sees the old one", rules: nat(dnat) + "*mangle\n-A PREROUTING -d 10.96.0.10/32 -m conntrack --ctstate NEW -j DROP\nCOMMIT\n", packet: client(), want: "dropped"},
		{
			name:   "set of ports, and one of sources, with a network",
			rules:  "*mangle\n-A PREROUTING -m set --match-set r dst,dst -m set ! --match-set a dst,dst,src -j DROP\nCOMMIT\n",
			sets:   "create r hash:ip,port family inet\nadd r 10.96.0.10,tcp:80\ncreate a hash:ip,port,net family inet\nadd a 10.96.0.10,tcp:80,192.168.0.0/30",
			packet: client(), want: "delivered to 10.96.0.10:80",
		},
		{
			name:   "outside of the network",
			rules:  "*mangle\n-A PREROUTING -m set --match-set r dst,dst -m set ! --match-set a dst,dst,src -j DROP\nCOMMIT\n",
			sets:   "create r hash:ip,port family inet\nadd r 10.96.0.10,80\ncreate a hash:ip,port,net family inet\nadd a 10.96.0.10,tcp:80,192.168.0.0/31",
			packet: client(), want: "dropped",
		},
		{
			name: "marks", rules: "*mangle\n-A PREROUTING -j MARK --set-xmark 0x4000/0x4000\n-A PREROUTING -m mark --mark 0x4000/0x4000 -j CONNMARK --set-xmark 0x8000/0xc000\nCOMMIT\n" +
				nat(dnat+"-A POSTROUTING -m mark --mark 0x4000/0x4000 -m connmark --mark 0x8000/0xc000 -j MASQUERADE --random-fully"),
			packet: client(), want: "forwarded to 10.1.0.1:8080 masqueraded",
		},
		{name: "local addresses", rules: nat("-A PREROUTING -m addrtype --dst-type LOCAL -m addrtype ! --src-type LOCAL -p tcp -j REDIRECT --to-ports 9000"), packet: client(), want: "delivered to 10.0.0.1:9000"},
		{
			name: "output is rerouted, but shows where it was to go", rules: nat("-A OUTPUT -o lo -p tcp -j DNAT --to-destination 10.1.0.1:8080\n-A POSTROUTING -o eth1 -j MASQUERADE") + filter("-A OUTPUT -o eth1 -j DROP"),
			packet: packet("10.0.0.1:5000", "10.96.0.10:80", TCP, ""), want: "forwarded to 10.1.0.1:8080 masqueraded",
		},
		{name: "redirected output", rules: nat("-A OUTPUT -p tcp -j REDIRECT --to-ports 9000\n-A PREROUTING -p tcp -j DNAT --to-destination 10.1.0.1:8080"), packet: packet("10.0.0.1:5000", "10.96.0.10:80", TCP, ""), want: "delivered to 127.0.0.1:9000"},
		{
			name: "bytecode: the source is the destination", rules: nat("-A PREROUTING -p tcp -j DNAT --to-destination 10.1.0.1:8080\n-A POSTROUTING -m bpf --bytecode \"6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 1,6 0 0 0\" -j MASQUERADE"),
			packet: packet("10.1.0.1:5000", "10.96.0.10:80", TCP, "eth1"), want: "forwarded to 10.1.0.1:8080 masqueraded",
		},
		{
			name: "bytecode: it is not", rules: nat("-A PREROUTING -p tcp -j DNAT --to-destination 10.1.0.1:8080\n-A POSTROUTING -m bpf --bytecode \"6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 1,6 0 0 0\" -j MASQUERADE"),
			packet: client(), want: "forwarded to 10.1.0.1:8080",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := mustParse(t, c.rules, "", c.sets).Send(c.packet, host(), always)
			if v.String() != c.want {
				t.Errorf("%s, want %s, by way of\n%s", v, c.want, strings.Join(v.Path, "\n"))
			}
		})
	}
}

func TestIPv6(t *testing.T) {
	rules := `*nat
-A PREROUTING -d fd00:96::10/128 -p udp -m udp --dport 53 -j DNAT --to-destination [fd00:1::1]:5353
-A POSTROUTING -m bpf --bytecode "3,32 0 0 8,21 0 1 4244701185,6 0 0 1,6 0 0 0" -j MASQUERADE
COMMIT`
	rules = strings.Replace(rules, "3,32 0 0 8,21 0 1 4244701185", "4,32 0 0 8,21 0 1 4244701184", 1) // fd01:0000
	v := mustParse(t, "", rules, "").Send(packet("[fd01::2]:5000", "[fd00:96::10]:53", UDP, "eth0"), host(), always)
	if got, want := v.String(), "forwarded to [fd00:1::1]:5353 masqueraded"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if want := netip.MustParseAddrPort("[fd00::1]:5000"); v.Src != want {
		t.Errorf("from %s, want %s", v.Src, want)
	}
}

// TestConnections: later packets are rewritten as the first was, in both directions, and ask nat no more.
func TestConnections(t *testing.T) {
	rules := `*nat
-A PREROUTING -p tcp -j DNAT --to-destination 10.1.0.1:8080
-A POSTROUTING -j MASQUERADE
COMMIT
*filter
:FORWARD DROP [0:0]
-A FORWARD -m conntrack --ctstate NEW -d 10.1.0.1/32 -j CONNMARK --set-xmark 0x1/0x1
-A FORWARD -m connmark --mark 0x1/0x1 -s 10.1.0.1/32 -d 192.168.0.2/32 -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A FORWARD -m connmark --mark 0x1/0x1 -d 10.1.0.1/32 -j ACCEPT
COMMIT`
	r := mustParse(t, rules, "", "")
	first := r.Send(client(), host(), always)
	for i, c := range []struct {
		v        Verdict
		src, dst string
		nat      bool
	}{
		{first, "10.0.0.1:5000", "10.1.0.1:8080", true},
		{r.Send(first.Reply(), host(), always), "10.96.0.10:80", "192.168.0.2:5000", false},
		{r.Send(first.Next(), host(), always), "10.0.0.1:5000", "10.1.0.1:8080", false},
	} {
		asked := slices.ContainsFunc(c.v.Path, func(s string) bool { return strings.HasPrefix(s, "nat/") })
		if c.v.Fate != Forwarded || c.v.Src.String() != c.src || c.v.Dst.String() != c.dst || asked != c.nat {
			t.Errorf("packet %d: %s from %s, asked nat %v; want forwarded %s -> %s, nat %v\n%v", i, c.v, c.v.Src, asked, c.src, c.dst, c.nat, c.v.Path)
		}
	}
	if back := first.Reply().In; back != "eth1" {
		t.Errorf("a reply comes in by %q, want eth1", back)
	}
}

func TestProbabilities(t *testing.T) {
	var b strings.Builder
	b.WriteString("*nat\n")
	for i := 7; i > 1; i-- {
		fmt.Fprintf(&b, "-A PREROUTING -p tcp -m statistic --mode random --probability %.10f -j DNAT --to-destination 10.1.0.%d:80\n", 1/float64(i), i)
	}
	b.WriteString("-A PREROUTING -p tcp -j DNAT --to-destination 10.1.0.1:80\nCOMMIT\n")
	out := mustParse(t, b.String(), "", "").Outcomes(client(), host())
	shares, sum := Shares(out), 0.0
	for to, share := range shares {
		sum += share
		if math.Abs(share-1.0/7) > 7.0/(1<<31) { // what the kernel's 31 bits leave
			t.Errorf("%s has %v, want a seventh", to, share)
		}
	}
	if len(shares) != 7 || math.Abs(sum-1) > 1e-12 {
		t.Errorf("%d destinations with %v in all, want 7 with 1", len(shares), sum)
	}
	if first := out[0]; first.Rules != 1 || out[6].Rules != 7 {
		t.Errorf("%d and %d rules to the first and the last, want 1 and 7", first.Rules, out[6].Rules)
	}
}

// TestRoundRobin: nth counts in sequences, and is a share otherwise.
func TestRoundRobin(t *testing.T) {
	rules := `*nat
-A PREROUTING -p tcp -m statistic --mode nth --every 3 --packet 0 -j DNAT --to-destination 10.1.0.1:80
-A PREROUTING -p tcp -m statistic --mode nth --every 2 --packet 1 -j DNAT --to-destination 10.1.0.2:80
-A PREROUTING -p tcp -j DNAT --to-destination 10.1.0.3:80
COMMIT`
	r := mustParse(t, rules, "", "")
	for to, share := range Shares(r.Outcomes(client(), host())) {
		if math.Abs(share-1.0/3) > 1e-12 {
			t.Errorf("%s has %v, want a third", to, share)
		}
	}
	var got []byte
	for range 7 {
		a := r.Send(client(), host(), always).Dst.Addr().As4()
		got = append(got, '0'+a[3])
	}
	if want := "1321321"; string(got) != want {
		t.Errorf("packets go to %s, want %s", got, want)
	}
}

// TestAffinity: what a rule adds to a set is there for the next packet, until its time is over.
func TestAffinity(t *testing.T) {
	rules := `*nat
:E1 - [0:0]
:E2 - [0:0]
-A PREROUTING -m set --match-set a1 dst,dst,src -g E1
-A PREROUTING -m set --match-set a2 dst,dst,src -g E2
-A PREROUTING -m statistic --mode random --probability 0.5 -g E1
-A PREROUTING -g E2
-A E1 -j SET --add-set a1 dst,dst,src --exist --timeout 10
-A E1 -p tcp -j DNAT --to-destination 10.1.0.1:80
-A E2 -j SET --add-set a2 dst,dst,src --exist --timeout 10
-A E2 -p tcp -j DNAT --to-destination 10.1.0.2:80
COMMIT`
	r := mustParse(t, rules, "", "create a1 hash:ip,port,ip family inet timeout 0\ncreate a2 hash:ip,port,ip family inet timeout 0")
	if n := len(r.Outcomes(client(), host())); n != 2 {
		t.Fatalf("%d outcomes at first, want 2", n)
	}
	never := func(float64) bool { return false }
	if v := r.Send(client(), host(), never); v.Dst.String() != "10.1.0.2:80" {
		t.Fatalf("the first packet is %s", v)
	}
	r.Elapse(6 * time.Second)
	if v := r.Send(client(), host(), always); v.Dst.String() != "10.1.0.2:80" { // which refreshes it
		t.Errorf("a later packet is %s", v)
	}
	r.Elapse(6 * time.Second)
	if out := r.Outcomes(client(), host()); len(out) != 1 || out[0].Dst.String() != "10.1.0.2:80" {
		t.Errorf("6 s later the outcomes are %v", out)
	}
	r.Elapse(4 * time.Second)
	if n := len(r.Outcomes(client(), host())); n != 2 {
		t.Errorf("%d outcomes after the time is over, want 2", n)
	}
	other := packet("192.168.0.3:5000", "10.96.0.10:80", TCP, "eth0")
	if n := len(r.Outcomes(other, host())); n != 2 {
		t.Errorf("%d outcomes for another client, want 2", n)
	}
}

func TestStructure(t *testing.T) {
	r := mustParse(t, `*nat
:VIPD-A - [0:0]
:VIPD-B - [0:0]
:VIPD-LOST - [0:0]
:OTHER - [0:0]
-A PREROUTING -j VIPD-A
-A VIPD-A -p tcp -g VIPD-B
-A VIPD-B -p tcp -j ACCEPT
-A VIPD-LOST -j VIPD-B
COMMIT`, "*filter\n:VIPD-C - [0:0]\nCOMMIT", "")
	if got := fmt.Sprint(r.Unreferenced("VIPD-")); got != "[nat/VIPD-LOST 6filter/VIPD-C]" {
		t.Errorf("unreferenced: %s", got)
	}
	if r.Depth() != 2 || r.Rules("VIPD-") != 3 {
		t.Errorf("depth %d, want 2; %d rules, want 3", r.Depth(), r.Rules("VIPD-"))
	}
}

// TestRefusals: what the kernel refuses, and what is not known here, is an error that says where.
func TestRefusals(t *testing.T) {
	const sets = "create s hash:ip,port family inet\ncreate s6 hash:ip family inet6\ncreate n hash:ip,port,net family inet"
	for _, c := range []struct{ table, rule, want string }{
		{"filter", "-A INPUT -j NOWHERE", "there is no chain NOWHERE"},
		{"filter", "-A X -j Y\n-A Y -g X", "lead round"},
		{"filter", "-A X -j X", "lead round"},
		{"filter", "-A INPUT -j DNAT --to-destination 10.0.0.1", "for the table nat"},
		{"nat", "-A POSTROUTING -j X\n-A X -j DNAT --to-destination 10.0.0.1", "not allowed under POSTROUTING"},
		{"nat", "-A PREROUTING -j MASQUERADE", "not allowed under PREROUTING"},
		{"nat", "-A PREROUTING -j DROP", "not for filtering"},
		{"nat", "-A PREROUTING -j DNAT --to-destination 10.0.0.1:80", "needs -p"},
		{"nat", "-A PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1-10.0.0.2", "no address"},
		{"nat", "-A PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:80 --random", "--random is not known"},
		{"filter", "-A INPUT -j REJECT --reject-with tcp-reset", "needs -p tcp"},
		{"filter", "-A INPUT -p icmp --dport 80 -j DROP", "protocol that has ports"},
		{"filter", "-A INPUT -m tcp --dport 80 -j DROP", "needs -p tcp"},
		{"filter", "-A INPUT -p tcp -m multiport --dports 80 -j DROP", "multiport is not known"},
		{"filter", "-A INPUT --ctstate NEW -j DROP", "needs -m conntrack"},
		{"filter", "-A INPUT -m conntrack -j DROP", "has no option"},
		{"filter", "-A INPUT -m set --match-set t dst -j DROP", "no set t"},
		{"filter", "-A INPUT -m set --match-set s dst -j DROP", "2 parts, not 1"},
		{"filter", "-A INPUT -m set --match-set s6 dst -j DROP", "other family"},
		{"filter", "-A INPUT -m set --match-set s dst,up -j DROP", "neither src nor dst"},
		{"filter", "-A INPUT -d fd00::1 -j DROP", "other family"},
		{"filter", "-A INPUT -o eth0 -j DROP", "no outgoing interface"},
		{"filter", "-A INPUT -j LOG", "LOG is not known"},
		{"filter", "-A INPUT -j X -j Y", "option -j is not known|two targets"},
		{"filter", "-A INPUT -m statistic --mode nth --every 2 --packet 2 -j DROP", "is less"},
		{"filter", "-A INPUT -m bpf --bytecode \"2,6 0 0 1\" -j DROP", "has 1"},
		{"filter", "-A INPUT -m bpf --bytecode \"1,40 0 0 4294963200\" -j DROP", "loading the bytecode"},
		{"filter", "-D INPUT -j DROP", "-D is not known"},
		{"filter", ":X DROP", "only the kernel's chains"},
		{"filter", ":A2345678901234567890123456789 -", "29 characters"},
		{"mangle", "-A PREROUTING -j SET --add-set n dst,dst,src", "holds networks"},
		{"mangle", "-A PREROUTING -j SET --add-set s dst,dst --timeout 5", "has to be one with timeouts"},
		{"raw", "", "table raw is not known"},
	} {
		rules := "*" + c.table + "\n:X - [0:0]\n:Y - [0:0]\n" + c.rule + "\nCOMMIT\n"
		_, err := Parse(rules, "", sets)
		if err == nil || !slices.ContainsFunc(strings.Split(c.want, "|"), func(want string) bool { return strings.Contains(err.Error(), want) }) {
			t.Errorf("%s: %s: %v, want %q", c.table, c.rule, err, c.want)
		}
	}
	for _, sets := range []string{
		"create s bitmap:port", "create s hash:ip family inet4", "create s hash:ip nomatch", "add s 10.0.0.1",
		"create s hash:ip\nadd s 10.0.0.1,tcp:80", "create s hash:net\nadd s 0.0.0.0/0", "create s hash:ip family inet6\nadd s 10.0.0.1",
		"create s hash:ip\nadd s 10.0.0.1 timeout 5", "create s hash:ip\ncreate s hash:ip", "flush s x",
	} {
		if _, err := Parse("", "", sets); err == nil {
			t.Errorf("%q is taken", sets)
		}
	}
	if _, err := Parse("*nat\n-A PREROUTING -j ACCEPT\n", "", ""); err == nil {
		t.Error("a table without COMMIT is taken")
	}
}

package netfilter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// The world of random rule sets, IPv4 and IPv6: a client, and two servers behind the host, which holds one of the two
// VIPs that it is asked for and has no route to the other.
type addresses struct {
	v6                              bool
	bits                            int
	clients                         []string
	clientNet, host, held, unrouted string
	vips                            string
	servers                         [2]string
	icmp                            string
	rejections                      []string
}

func ipv4() addresses {
	return addresses{
		bits: 32, clients: []string{"10.1.0.2", "10.1.0.3"}, clientNet: "10.1.0.2/31", host: "10.1.0.1", held: "10.96.0.10", unrouted: "10.96.0.11",
		vips: "10.96.0.0/16", servers: [2]string{"10.2.1.2", "10.2.2.2"}, icmp: "icmp",
		rejections: []string{"icmp-port-unreachable", "icmp-net-unreachable", "icmp-host-unreachable", "icmp-proto-unreachable", "icmp-net-prohibited", "icmp-host-prohibited", "icmp-admin-prohibited"},
	}
}

func ipv6() addresses {
	return addresses{
		v6: true, bits: 128, clients: []string{"fd01::2", "fd01::3"}, clientNet: "fd01::2/127", host: "fd01::1", held: "fd00:96::10", unrouted: "fd00:96::11",
		vips: "fd00:96::/64", servers: [2]string{"fd02:1::2", "fd02:2::2"}, icmp: "ipv6-icmp",
		rejections: []string{"icmp6-port-unreachable", "icmp6-no-route", "icmp6-adm-prohibited", "icmp6-addr-unreachable"},
	}
}

// generator makes up rules that both iptables and Parse take.
type generator struct {
	*rand.Rand
	addresses
	// chance: rules with --mode random, and nothing that a packet leaves behind for the next.
	chance bool
	// answers: replies meet rules too.
	answers bool
	set     string // the start of names of sets
}

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

// sets are one of each kind.
func (g *generator) sets() string {
	family := "inet"
	if g.v6 {
		family = "inet6"
	}
	var b strings.Builder
	for name, kind := range setKinds() {
		timeout := ""
		if name == "sticky" {
			timeout = " timeout 0"
		}
		fmt.Fprintf(&b, "create %s%s hash:%s family %s%s\n", g.set, name, kind, family, timeout)
	}
	add := func(name, format string, args ...any) {
		if g.IntN(3) > 0 {
			fmt.Fprintf(&b, "add %s%s %s\n", g.set, name, fmt.Sprintf(format, args...))
		}
	}
	for _, a := range []string{g.held, g.unrouted, g.servers[0], g.host} {
		add("ip", "%s", a)
		add("port", "%s,udp:80", a)
		add("port", "%s,tcp:80", a)
		add("sticky", "%s,udp:80,%s", a, g.clients[0])
		add("net", "%s,udp:80,%s", a, g.clientNet)
		add("net", "%s,tcp:80,%s/%d", a, g.clients[1], g.bits)
	}
	return b.String()
}

func setKinds() map[string]string {
	return map[string]string{"ip": "ip", "port": "ip,port", "sticky": "ip,port,ip", "net": "ip,port,net"}
}

// rules are the three tables, with chains that lead to later ones only.
func (g *generator) rules() string {
	var b strings.Builder
	for _, t := range tableNames() {
		groups := [][]string{baseChains(t)}
		if t == "nat" { // targets are tied to hooks there
			groups = [][]string{{"PREROUTING", "OUTPUT"}, {"POSTROUTING"}}
		}
		fmt.Fprintf(&b, "*%s\n", t)
		var body strings.Builder
		for i, bases := range groups {
			var chains []string
			for n := range 1 + g.IntN(4) {
				chains = append(chains, fmt.Sprintf("C%d-%d", i, n))
				fmt.Fprintf(&b, ":%s - [0:0]\n", chains[n])
			}
			for _, base := range bases {
				policy := "ACCEPT"
				if t != "nat" && g.IntN(6) == 0 {
					policy = "DROP"
				}
				fmt.Fprintf(&b, ":%s %s [0:0]\n", base, policy)
				g.escapes(&body, t, base)
				g.chain(&body, t, base, base, chains)
			}
			for n, name := range chains {
				g.chain(&body, t, bases[0], name, chains[n+1:])
			}
		}
		b.WriteString(body.String() + "COMMIT\n")
	}
	return b.String()
}

// escapes let through what shows the test what became of a packet.
func (g *generator) escapes(b *strings.Builder, table, base string) {
	fmt.Fprintf(b, "-A %s -p udp -m udp --dport %d -j ACCEPT\n", base, fencePort)
	if table == "nat" {
		return
	}
	fmt.Fprintf(b, "-A %s -p %s -j ACCEPT\n", base, g.icmp)
	if !g.answers {
		fmt.Fprintf(b, "-A %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n", base)
	}
}

// noRules takes all rules away.
func noRules() string {
	var b strings.Builder
	for _, t := range tableNames() {
		b.WriteString("*" + t + "\n")
		for _, base := range baseChains(t) {
			b.WriteString(":" + base + " ACCEPT [0:0]\n")
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// chain makes up the rules of a chain, which belongs under a hook and may lead to others.
func (g *generator) chain(b *strings.Builder, table, hook, name string, others []string) {
	for range g.IntN(5) {
		proto := pick(g, "", "udp", "udp", "tcp")
		rule := "-A " + name
		if proto != "" {
			rule += " -p " + proto
		}
		seen := map[string]bool{}
		for range g.IntN(3) {
			m := g.match(name, proto)
			if kind := strings.Join(slices.DeleteFunc(strings.Fields(m), func(w string) bool { return w == "!" })[:1], ""); kind == "-m" || !seen[kind] {
				seen[kind] = true
				rule += " " + m
			}
		}
		fmt.Fprintf(b, "%s %s\n", rule, g.target(table, hook, proto, others))
	}
}

func (g *generator) match(chain, proto string) string {
	not := pick(g, "", "", "! ")
	all := []string{
		not + "-d " + pick(g, g.vips, fmt.Sprintf("%s/%d", g.held, g.bits), fmt.Sprintf("%s/%d", g.servers[0], g.bits), g.host),
		not + "-s " + pick(g, g.clientNet, fmt.Sprintf("%s/%d", g.clients[0], g.bits), g.host),
		"-m set " + not + "--match-set " + g.set + pick(g, "ip dst", "ip src", "port dst,dst", "sticky dst,dst,src", "net dst,dst,src"),
		"-m conntrack " + not + "--ctstate " + pick(g, "NEW", "DNAT", "NEW,ESTABLISHED", "ESTABLISHED", "SNAT", "INVALID,DNAT"),
		"-m mark " + not + "--mark " + pick(g, "0x1/0x1", "0x2/0x3", "0x0/0x2"),
		"-m connmark " + not + "--mark " + pick(g, "0x1/0x1", "0x2/0x3", "0x0/0x2"),
		"-m bpf --bytecode " + g.bytecode(),
		"-m addrtype " + not + pick(g, "--dst-type LOCAL", "--src-type LOCAL"),
		`-m comment --comment "` + pick(g, "words", "it's \\\"so\\\"") + `"`,
	}
	if chain != "OUTPUT" && chain != "POSTROUTING" {
		all = append(all, not+"-i "+pick(g, "client", "lo", "cl+", "s1"))
	}
	if chain != "PREROUTING" && chain != "INPUT" {
		all = append(all, not+"-o "+pick(g, "s1", "s2", "lo", "s+"))
	}
	if proto != "" {
		all = append(all, fmt.Sprintf("-m %s %s", proto, not+pick(g, "--dport 80", "--dport 8000:9000", "--dport :79", "--sport 10000:", "--dport 8080")))
	}
	if g.chance {
		all = append(all, "-m statistic --mode random --probability "+pick(g, "0.5", "0.3333333333", "1.0", "0.0"))
	} else {
		n := 1 + g.IntN(4)
		all = append(all, fmt.Sprintf("-m statistic --mode nth %s--every %d --packet %d", not, n, g.IntN(n)))
	}
	return pick(g, all...)
}

// bytecode compares the last four bytes of the source or the destination's port.
func (g *generator) bytecode() string {
	source, port := 12, 22
	if g.v6 {
		source, port = 20, 42
	}
	return pick(g,
		fmt.Sprintf(`"4,32 0 0 %d,21 0 1 %d,6 0 0 65535,6 0 0 0"`, source, pick(g, 0x0a010002, 2)),
		fmt.Sprintf(`"4,40 0 0 %d,21 0 1 80,6 0 0 1,6 0 0 0"`, port),
	)
}

func (g *generator) target(table, hook, proto string, others []string) string {
	all := []string{"-j ACCEPT", "-j RETURN", "-j MARK --set-xmark " + pick(g, "0x1/0x1", "0x2/0x3", "0x3/0x0"), "-j CONNMARK --set-xmark " + pick(g, "0x1/0x1", "0x2/0x3"), "-j MARK --or-mark 0x2", "-j MARK --and-mark 0x1"}
	for _, c := range others {
		all = append(all, "-j "+c, "-g "+c, "-j "+c)
	}
	if !g.chance {
		all = append(all, "-j SET --add-set "+g.set+"sticky dst,dst,src --timeout 600"+pick(g, "", " --exist"))
	}
	switch {
	case table == "filter":
		all = append(all, "-j DROP", "-j REJECT --reject-with "+pick(g, g.rejections...), "-j REJECT")
		if proto == "tcp" {
			all = append(all, "-j REJECT --reject-with tcp-reset")
		}
	case table == "mangle":
		if g.IntN(3) == 0 {
			all = append(all, "-j DROP")
		}
	case hook == "POSTROUTING":
		all = append(all, "-j MASQUERADE", "-j MASQUERADE --random-fully", "-j MASQUERADE")
	case proto != "":
		for _, s := range g.servers {
			if g.v6 {
				s = "[" + s + "]"
			}
			to := "-j DNAT --to-destination " + s + ":8080"
			all = append(all, to, to, to, to)
		}
		all = append(all, "-j REDIRECT --to-ports 9000", "-j DNAT --to-destination "+pick(g, g.servers[0], g.host))
	}
	return pick(g, all...)
}

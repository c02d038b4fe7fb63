package doctor

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

func TestFindingsOfFirewalls(t *testing.T) {
	examineEach(t, newFakeHost, []findingCase{
		{name: "no iptables", change: func(m *fakeHost) {
			for line := range m.prints {
				if strings.Contains(line, "tables-") || strings.Contains(line, "--version") {
					delete(m.prints, line)
				}
			}
		}, want: []string{"tools: warning: iptables is not installed", "tools: warning: ip6tables is not installed"}},
		{name: "both backends", change: func(m *fakeHost) {
			m.files["/proc/thread-self/net/ip_tables_names"] = "filter\n"
			m.prints["iptables-nft-save"] = "*filter\n:FORWARD ACCEPT [0:0]\n:VIPD-GUARD - [0:0]\n-A VIPD-GUARD -j RETURN\nCOMMIT\n"
			m.prints["iptables-legacy-save -t filter"] = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -i eth1 -j ACCEPT\nCOMMIT\n"
		}, want: []string{
			"tools: warning: other programs also have rules in the legacy tables (iptables, rules: 1), and vipd uses nft",
			"firewall: problem: FORWARD of iptables-legacy drops packets that no rule accepts, and vipd uses the other backend",
		}},
		{name: "follows the others' backend", change: func(m *fakeHost) {
			m.files["/proc/thread-self/net/ip_tables_names"] = "filter\n"
			m.prints["iptables-legacy-save -t filter"] = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -i eth1 -j ACCEPT\nCOMMIT\n"
		}, want: []string{"firewall: note: FORWARD of iptables-legacy drops packets that no rule accepts, and vipd has no rule there now"}},
		{name: "drops before vipd", change: func(m *fakeHost) {
			m.prints["iptables-nft-save"] = "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n:VIPD-INPUT - [0:0]\n:VIPD-FORWARD - [0:0]\n" +
				":BLOCK - [0:0]\n-A BLOCK -s 10.0.0.0/8 -j REJECT --reject-with icmp-port-unreachable\n" +
				"-A INPUT -m conntrack --ctstate INVALID -j DROP\n-A INPUT -p icmp -j DROP\n-A INPUT -j BLOCK\n-A INPUT -j VIPD-INPUT\n-A INPUT -j DROP\n" +
				"-A FORWARD -i eth1 -j ACCEPT\n-A FORWARD -m comment --comment \"no more\" -j DROP\n-A FORWARD -j VIPD-FORWARD\nCOMMIT\n"
		}, want: []string{
			"firewall: warning: in INPUT of iptables-nft, other programs' rules come before vipd's and drop some packets: -j BLOCK",
			"firewall: problem: in FORWARD of iptables-nft, another program's rule comes before vipd's and drops everything: -m comment --comment \"no more\" -j DROP",
		}},
		{name: "what drops forwarded packets does not matter", change: func(m *fakeHost) {
			m.Status.Mode = api.Mode{InUse: "userspace", Wanted: "userspace"}
			m.prints["iptables-nft-save"] = "*filter\n:FORWARD DROP [0:0]\n:VIPD-FORWARD - [0:0]\n-A FORWARD -j DROP\n-A FORWARD -j VIPD-FORWARD\nCOMMIT\n"
			m.prints["nft -j list chains"] = `{"nftables": [{"chain": {"family": "inet", "table": "fw", "name": "f", "type": "filter", "hook": "forward", "policy": "drop"}}]}`
			m.prints["nft -j list chain inet fw f"] = `{"nftables": []}`
		}},
		{name: "the fast path bypasses rules", change: func(m *fakeHost) {
			m.Config.FastPath = []string{"auto"}
			m.prints["iptables-nft-save"] = "*filter\n:FORWARD ACCEPT [0:0]\n:VIPD-FORWARD - [0:0]\n-A FORWARD -j VIPD-FORWARD\n-A FORWARD -i eth7 -j ACCEPT\nCOMMIT\n"
			m.prints["nft -j list chains"] = `{"nftables": [{"chain": {"family": "ip", "table": "vipd-guard", "name": "fast-path", "type": "filter", "hook": "forward", "policy": "accept"}},
				{"chain": {"family": "inet", "table": "fw", "name": "f", "type": "filter", "hook": "forward", "policy": "accept"}}]}`
			m.prints["nft -j list chain ip vipd-guard fast-path"] = `{"nftables": []}`
			m.prints["nft -j list chain inet fw f"] = `{"nftables": []}`
		}, want: []string{
			"firewall: note: other programs' rules see only the first packets of connections in fast_path: FORWARD of iptables-nft, the nft chain inet fw f",
		}},
		{name: "rules that name an endpoint", change: func(m *fakeHost) {
			m.Frontends = []Frontend{{Service: "web", Key: balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: 80, Proto: balancer.TCP},
				Backends: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:8080"), netip.MustParseAddrPort("192.0.2.4:8080"), netip.MustParseAddrPort("192.0.2.5:8080")}}}
			m.prints["nft -j list chains"] = `{"nftables": [{"chain": {"family": "inet", "table": "fw", "name": "f", "type": "filter", "hook": "forward", "policy": "accept"}}]}`
			rule := func(handle int, to, port, verdict string) string {
				return fmt.Sprintf(`{"rule": {"handle": %d, "expr": [{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": %s}},
					{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": %s}}, {"counter": {"packets": 1}}, {"%s": null}]}}`,
					handle, to, port, verdict)
			}
			m.prints["nft -j list chain inet fw f"] = `{"nftables": [` + strings.Join([]string{
				rule(1, `"192.0.2.2"`, "9999", "drop"), rule(2, `"192.0.2.3"`, "8080", "drop"), rule(3, `"192.0.2.4"`, "8080", "accept"), rule(3, `"192.0.2.4"`, "8080", "drop"),
				rule(4, `"192.0.2.2"`, "8080", "drop"), rule(5, `{"set": ["192.0.2.9", {"prefix": {"addr": "10.96.0.0", "len": 16}}]}`, "80", "reject"),
				rule(6, `{"prefix": {"addr": "192.0.2.0", "len": 24}}`, "8080", "drop"),
			}, ",") + `]}`
		}, want: []string{
			"firewall: warning: a rule of the nft chain inet fw f (hook forward) drops or rejects packets to the endpoint 192.0.2.2:8080 of web",
			"firewall: warning: a rule of the nft chain inet fw f (hook forward) drops or rejects packets to 10.96.0.10:80/tcp (web)",
			"firewall: warning: a rule of the nft chain inet fw f (hook forward) drops or rejects packets to the endpoint 192.0.2.2:8080 of web, the endpoint 192.0.2.5:8080 of web",
		}},
		{name: "rules that name a port of a range", change: func(m *fakeHost) {
			m.Frontends = []Frontend{{Service: "ftp", Key: balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: balancer.NewPortRange(8000, 8009), Proto: balancer.TCP},
				Backends: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:9000"), netip.MustParseAddrPort("192.0.2.4:9000"), netip.MustParseAddrPort("192.0.2.5:9000")}}}
			m.prints["nft -j list chains"] = `{"nftables": [{"chain": {"family": "inet", "table": "fw", "name": "f", "type": "filter", "hook": "forward", "policy": "accept"}}]}`
			m.prints["nft -j list chain inet fw f"] = `{"nftables": [` + strings.Join([]string{
				dropRule(1, "192.0.2.2", "8005"), dropRule(2, "192.0.2.2", "9010"), dropRule(3, "10.96.0.10", `{"range": [8009, 8100]}`), dropRule(4, "192.0.2.2", `{"set": [22, 9005]}`),
			}, ",") + `]}`
			m.prints["iptables-nft-save"] = "*filter\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -d 192.0.2.2/32 -p tcp -m tcp --dport 9010 -j DROP\n-A OUTPUT -d 192.0.2.4/32 -p tcp -m tcp --dport 9005 -j DROP\n" +
				"-A OUTPUT -d 192.0.2.5/32 -p tcp -m tcp --dport 9000:9008 -j ACCEPT\n-A OUTPUT -d 192.0.2.5/32 -j REJECT\nCOMMIT\n"
		}, want: []string{
			"firewall: warning: OUTPUT of iptables-nft drops packets that this host sends to 192.0.2.4:9000-9009 of ftp: -d 192.0.2.4/32 -p tcp -m tcp --dport 9005 -j DROP",
			"firewall: warning: OUTPUT of iptables-nft drops packets that this host sends to 192.0.2.5:9000-9009 of ftp: -d 192.0.2.5/32 -j REJECT",
			"firewall: warning: a rule of the nft chain inet fw f (hook forward) drops or rejects packets to 10.96.0.10:8000-8009/tcp (ftp)",
			"firewall: warning: a rule of the nft chain inet fw f (hook forward) drops or rejects packets to the endpoint 192.0.2.2:9000-9009 of ftp",
		}},
	})
}

// dropRule returns nft's JSON of a rule that drops packets to an address and port.
func dropRule(handle int, to, port string) string {
	return fmt.Sprintf(`{"rule": {"handle": %d, "expr": [{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "%s"}},
		{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": %s}}, {"drop": null}]}}`, handle, to, port)
}

// TestJudge judges rules that precede vipd's jump. The result must say whether the rules drop no,
// some or all connections to VIPs.
func TestJudge(t *testing.T) {
	o := observe(t.Context(), newFakeHost().Host)
	b := &iptablesRules{tables: map[string]map[string]*chain{"filter": {
		"ALL":    {rules: []string{"-p tcp -j ACCEPT", "-j DROP"}},
		"MOST":   {rules: []string{"-s 10.0.0.0/8 -j RETURN", "-j DROP"}},
		"SOME":   {rules: []string{"-p udp -j DROP", "-j RETURN", "-j DROP"}},
		"EMPTY":  {},
		"NESTED": {rules: []string{"-j EMPTY", "-g ALL"}},
		"LOOP":   {rules: []string{"-j LOOP"}},
	}}}
	for _, test := range []struct {
		rules []string
		want  reach
	}{
		{nil, nothing},
		{[]string{"-j DROP"}, all},
		{[]string{"-m comment --comment word -j REJECT --reject-with tcp-reset"}, all},
		{[]string{"-m comment --comment \"-j ACCEPT, not\" -j REJECT"}, all},
		{[]string{"-i eth1 -j DROP"}, some},
		{[]string{"-m comment --comment \"a b\" -i eth1 -j DROP"}, some},
		{[]string{"-j ACCEPT", "-j DROP"}, nothing},
		{[]string{"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-j DROP"}, all},
		{[]string{"-m conntrack --ctstate DNAT -j ACCEPT", "-j DROP"}, nothing},
		{[]string{"-m connmark --mark 0x8000/0x8000 -j ACCEPT", "-j DROP"}, nothing},
		{[]string{"-m connmark --mark 0x4000/0x4000 -j ACCEPT", "-j DROP"}, all},
		{[]string{"-m conntrack --ctstate INVALID -j DROP"}, nothing},
		{[]string{"-m conntrack ! --ctstate INVALID -j DROP"}, some},
		{[]string{"-p ipv6-icmp -j DROP"}, nothing},
		{[]string{"-p tcp -j LOG", "-j EMPTY", "-m limit --limit 3/min"}, nothing},
		{[]string{"-j ALL"}, all},
		{[]string{"-p tcp -j ALL"}, some},
		{[]string{"-j MOST"}, some},
		{[]string{"-j SOME"}, some},
		{[]string{"-j NESTED"}, all},
		{[]string{"-j LOOP"}, nothing},
	} {
		if got := judge(o, b, test.rules, 0).drops; got != test.want {
			t.Errorf("judge(%q): drops = %d, want %d", test.rules, got, test.want)
		}
	}
}

package doctor

import (
	"net/netip"
	"testing"

	"vipd/balancer"
)

func TestFindingsOfPrograms(t *testing.T) {
	examineEach(t, newFakeHost, []findingCase{
		{name: "kube-proxy, ufw and firewalld", change: func(m *fakeHost) {
			m.prints["iptables-nft-save"] = "*nat\n:KUBE-SERVICES - [0:0]\n:ufw-user-input - [0:0]\nCOMMIT\n"
			m.prints["systemctl is-active firewalld"] = "active\n"
		}, want: []string{"others: note: kube-proxy has rules here (KUBE-SERVICES)", "others: note: firewalld is running", "others: note: ufw is enabled"}},
		{name: "saved rules", change: func(m *fakeHost) {
			m.files["/etc/iptables/rules.v4"] = "*filter\n:VIPD-INPUT - [0:0]\n-A INPUT -j VIPD-INPUT\nCOMMIT\n"
			m.files["/etc/iptables/rules.v6"] = "*filter\n-A INPUT -j ACCEPT\nCOMMIT\n"
			m.files["/etc/nftables.conf"] = "table inet filter {\n}\ntable ip vipd-guard {\n}\n"
		}, want: []string{
			"others: warning: rules that are loaded at boot contain vipd's: VIPD- in /etc/iptables/rules.v4",
			"others: warning: rules that are loaded at boot contain vipd's: table ip vipd in /etc/nftables.conf",
		}},
		{name: "translations of others", change: func(m *fakeHost) {
			m.prints["iptables-nft-save"] = "*nat\n:PREROUTING ACCEPT [0:0]\n:VIPD-X - [0:0]\n-A PREROUTING -d 10.96.0.10/32 -j DNAT --to-destination 1.1.1.1\n" +
				"-A PREROUTING ! -d 10.96.0.10/32 -j DNAT --to-destination 1.1.1.1\n" +
				"-A PREROUTING -d 10.96.0.10/32 -j ACCEPT\n-A PREROUTING -j VIPD-X\n-A PREROUTING -d 10.96.0.0/16 -j DNAT --to-destination 1.1.1.1\n" +
				"-A VIPD-X -d 10.96.0.10/32 -j DNAT --to-destination 1.1.1.1\nCOMMIT\n"
		}, want: []string{
			"firewall: problem: another program's rule translates connections to 10.96.0.10:80/tcp (web) before vipd (iptables-nft, table nat, chain PREROUTING: -d 10.96.0.10/32 -j DNAT --to-destination 1.1.1.1)",
		}},
		{name: "untracked ports of a range", change: func(m *fakeHost) {
			m.Frontends = []Frontend{{Service: "ftp", Key: balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: balancer.NewPortRange(8000, 8009), Proto: balancer.TCP},
				Backends: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:9000")}}}
			m.prints["iptables-nft-save"] = "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -m tcp --dport 8010 -j NOTRACK\n" +
				"-A PREROUTING -p tcp -m tcp --dport 8005 -j NOTRACK\n-A PREROUTING -p tcp -m tcp --sport 9009 -j NOTRACK\nCOMMIT\n"
		}, want: []string{
			"firewall: problem: another program's rule excludes connections to 10.96.0.10:8000-8009/tcp (ftp) from tracking (iptables-nft, table raw, chain PREROUTING: -p tcp -m tcp --dport 8005 -j NOTRACK)",
			"firewall: problem: another program's rule excludes connections to 10.96.0.10:8000-8009/tcp (ftp) from tracking (iptables-nft, table raw, chain PREROUTING: -p tcp -m tcp --sport 9009 -j NOTRACK)",
		}},
	})
}

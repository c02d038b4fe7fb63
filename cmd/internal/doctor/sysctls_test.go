package doctor

import (
	"net/netip"
	"testing"

	"vipd/cmd/internal/api"
)

func TestFindingsOfSysctls(t *testing.T) {
	examineEach(t, newFakeHost, []findingCase{
		{name: "a match is missing", change: func(m *fakeHost) {
			m.files["/proc/thread-self/net/ip_tables_matches"] = "conntrack\nset\nstatistic\nbpf\n"
		}, want: []string{"kernel: warning: the kernel does not list the match xt_connmark"}},
		{name: "conntrack is near full", change: func(m *fakeHost) { m.files["/proc/sys/net/netfilter/nf_conntrack_count"] = "801" }, want: []string{"kernel: warning: connection tracking has 801 of 1000 entries in use"}},
		{name: "forwarding is off", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/ip_forward"], m.files["/proc/sys/net/ipv6/conf/all/forwarding"] = "0", "0"
			m.frontend("[fd00::9]:80/tcp", false)
		}, want: []string{"sysctls: problem: IPv4 packets are not forwarded", "sysctls: warning: IPv6 packets are not forwarded"}},
		{name: "forwarding of IPv6 is on for a device", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv6/conf/all/forwarding"], m.files["/proc/sys/net/ipv6/conf/eth0/force_forwarding"] = "0", "1"
			m.frontend("[fd00::9]:80/tcp", false)
		}},
		{name: "forwarding is off for a device", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/conf/eth0/forwarding"], m.files["/proc/sys/net/ipv4/conf/lo/forwarding"] = "0", "0"
		}, want: []string{"sysctls: warning: IPv4 packets that arrive on eth0 are not forwarded"}},
		{name: "forwarding is to come", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/ip_forward"], m.Status, m.NoDaemon = "0", nil, "no vipd answers"
		}, want: []string{"vipd: note: no vipd answers"}},
		{name: "forwarding does not matter", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/ip_forward"], m.Status.Mode = "0", api.Mode{InUse: "userspace", Wanted: "userspace"}
		}},
		{name: "loopback, paths, ARP, counters", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/conf/eth0/route_localnet"], m.files["/proc/sys/net/ipv4/conf/eth0/rp_filter"] = "1", "1"
			m.files["/proc/sys/net/ipv4/conf/all/arp_ignore"] = "0"
			m.files["/proc/sys/net/netfilter/nf_conntrack_acct"], m.files["/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"] = "0", "0"
			m.files["/proc/sys/net/netfilter/nf_conntrack_tcp_loose"] = "0"
		}, want: []string{
			"sysctls: warning: 127.0.0.0/8 is open to other hosts: route_localnet is on for eth0", "sysctls: note: rp_filter is strict on eth0",
			"sysctls: warning: net.ipv4.conf.all.arp_ignore is 0 while VIPs are held here",
			"sysctls: note: the kernel does not count bytes of connections (nf_conntrack_acct)",
			"sysctls: note: connection tracking is strict about TCP windows (nf_conntrack_tcp_be_liberal)",
			"sysctls: note: connection tracking ignores connections that started elsewhere (nf_conntrack_tcp_loose)",
		}},
		{name: "loose for all", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/conf/eth0/rp_filter"], m.files["/proc/sys/net/ipv4/conf/all/rp_filter"] = "1", "2"
		}},
		{name: "a bridge", change: func(m *fakeHost) {
			m.Interfaces = func() ([]Interface, error) {
				return []Interface{{Name: "br0", Bridge: true, Addrs: []netip.Addr{netip.MustParseAddr("172.17.0.1")}}, {Name: "br1", Bridge: true}}, nil
			}
		}, want: []string{"sysctls: note: packets inside bridges bypass iptables: br0"}},
		{name: "a bridge whose packets are translated", change: func(m *fakeHost) {
			m.files["/proc/sys/net/bridge/bridge-nf-call-iptables"] = "1"
			m.Frontends = []Frontend{{Service: "web", Backends: []netip.AddrPort{netip.MustParseAddrPort("172.17.0.2:8080")}}}
			m.Interfaces = func() ([]Interface, error) {
				here, other := []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("172.18.0.0/16")}
				return []Interface{
					{Name: "br0", OneWay: []string{"veth1", "veth2"}, Networks: here}, {Name: "br1", OneWay: []string{"veth3"}, Networks: other}, {Name: "br2", Networks: here},
				}, nil
			}
		}, want: []string{"sysctls: note: bridge ports don't return packets to the port where they arrived (hairpin is off): br0 (veth1, veth2)"}},
		{name: "source = client", change: func(m *fakeHost) {
			m.Status.Mode = api.Mode{InUse: "userspace", Wanted: "userspace"}
			m.files["/proc/sys/net/ipv4/conf/all/src_valid_mark"] = "1"
			near, far := netip.MustParseAddrPort("172.17.0.2:8080"), netip.MustParseAddrPort("172.19.0.2:8080")
			m.Frontends = []Frontend{{Service: "web", Backends: []netip.AddrPort{far, near, near}, FromClients: true}}
			m.Interfaces = func() ([]Interface, error) {
				return []Interface{{Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("172.17.0.1")}, Networks: []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")}}}, nil
			}
		}, want: []string{
			"sysctls: problem: replies to clients' addresses are dropped, because src_valid_mark is on for all",
			"sysctls: note: endpoints must route replies to clients through this host: 172.17.0.2",
			"sysctls: warning: replies to clients from endpoints behind other routers must also come back to this host: 172.19.0.2",
		}},
	})
}

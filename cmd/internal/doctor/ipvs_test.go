package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/dataplane/ipvs"
)

// newServing returns a host on which vipd serves one service in ipvs mode, and doctor finds no
// problems.
func newServing() *fakeHost {
	m := newFakeHost()
	m.Modes = append([]modes.Mode{trialOf(config.IPVSMode, true, nil)}, m.Modes...)
	m.Status.Mode = api.Mode{InUse: "ipvs", Wanted: "auto"}
	m.Frontends[0].Scheduler = balancer.WeightedRoundRobin
	m.owned = append(m.owned, m.Frontends[0].Key)
	m.timeout = 5 * 24 * time.Hour
	for path, text := range map[string]string{
		ipvsTable: "IP Virtual Server version 1.2.1 (size=1048576)\nProt LocalAddress:Port Scheduler Flags\n" +
			"  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n" +
			"TCP  0A60000A:0050 wrr  \n  -> C0A8010B:1F90      Masq    1      0          0\n",
		"/proc/thread-self/net/ip_tables_matches":                      "set\nconntrack\nconnmark\nstatistic\naddrtype\nbpf\n",
		"/proc/sys/net/ipv4/vs/conntrack":                              "1\n",
		"/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established": "432000\n",
		"/proc/sys/net/ipv4/vs/expire_nodest_conn":                     "1\n",
		"/proc/sys/net/ipv4/vs/expire_quiescent_template":              "1\n",
		"/proc/sys/net/ipv4/vs/conn_reuse_mode":                        "1\n",
		"/sys/module/ip_vs/refcnt":                                     "2\n",
		"/sys/module/ip_vs/parameters/conn_tab_bits":                   "20\n",
		"/lib/modules/6.1.0/modules.dep":                               "kernel/net/netfilter/ipvs/ip_vs.ko: x\nkernel/net/netfilter/ipvs/ip_vs_wrr.ko: x\n",
		"/proc/self/status":                                            "Name:\tx\nCapEff:\t000001ffffffffff\n",
		"/proc/self/uid_map":                                           "         0          0 4294967295\n",
		"/etc/os-release":                                              "ID=debian\n",
	} {
		m.files[path] = text
	}
	return m
}

func (m *fakeHost) add(line string) { m.files[ipvsTable] += line + "\n" }

func TestFindingsOfVirtualServers(t *testing.T) {
	examineEach(t, newServing, []findingCase{
		{name: "all is well"},
		{name: "a scheduler is missing", change: func(m *fakeHost) { m.Frontends[0].Scheduler = balancer.Maglev }, want: []string{"ipvs: warning: the kernel lacks the scheduler ip_vs_mh, which services use"}},
		{name: "random is wrr", change: func(m *fakeHost) { m.Frontends[0].Scheduler = balancer.Random }},
		{name: "nothing is known of modules", change: func(m *fakeHost) {
			delete(m.files, "/lib/modules/6.1.0/modules.dep")
			m.Frontends[0].Scheduler = balancer.Maglev
		}},
		{name: "a small table", change: func(m *fakeHost) { m.files["/sys/module/ip_vs/parameters/conn_tab_bits"] = "12\n" }, want: []string{"ipvs: note: IPVS finds connections in a table of 4096 buckets"}},
		{name: "a small table that nobody wants", change: func(m *fakeHost) {
			m.files["/sys/module/ip_vs/parameters/conn_tab_bits"], m.Config.Mode = "12\n", config.UserspaceMode
			m.Status.Mode = api.Mode{InUse: "userspace", Wanted: "userspace"}
		}},
		{name: "in the way", change: func(m *fakeHost) { m.owned = nil }, want: []string{"ipvs: problem: other programs' virtual servers use services' addresses and ports: 10.96.0.10:80/tcp"}},
		{name: "whose they are is not known", change: func(m *fakeHost) { m.lost = errors.New("no") }, want: []string{"ipvs: warning: vipd's ledger of virtual servers can't be read: no"}},
		{name: "own range of ports", change: func(m *fakeHost) {
			k := balancer.Key{Addr: netip.MustParseAddr("10.96.0.10"), Port: balancer.AllPorts, Proto: balancer.UDP}
			m.owned = append(m.owned, k)
			m.add(fmt.Sprintf("FWM  %08X wrr ", ipvs.Mark(k)))
		}},
		{name: "foreign", change: func(m *fakeHost) {
			m.add("UDP  0A60000A:0035 rr  ")
			m.add("TCP  [2001:0db8:0000:0000:0000:0000:0000:0001]:0050 wlc  ")
			m.add("FWM  0000000A wrr ")
		}, want: []string{
			"ipvs: note: other programs' virtual servers are on services' VIPs, on other ports: 10.96.0.10:53/udp",
			"ipvs: note: other programs have virtual servers: [2001:db8::1]:80/tcp, mark 10",
		}},
		{name: "other owners", change: func(m *fakeHost) {
			m.programs = []string{"keepalived", "ldirectord"}
			m.Interfaces = func() ([]Interface, error) { return []Interface{{Name: "kube-ipvs0"}}, nil }
		}, want: []string{
			"ipvs: note: keepalived is running", "ipvs: note: ldirectord is running",
			"ipvs: warning: kube-proxy runs or ran here in ipvs mode (kube-ipvs0)",
		}},
		{name: "a bridge whose packets come to virtual servers", change: func(m *fakeHost) {
			m.files["/proc/sys/net/bridge/bridge-nf-call-iptables"] = "1"
			m.Frontends[0].Backends = []netip.AddrPort{netip.MustParseAddrPort("172.17.0.2:8080")}
			m.Interfaces = func() ([]Interface, error) {
				return []Interface{{Name: "br0", OneWay: []string{"veth1"}, Networks: []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")}}}, nil
			}
		}},
		{name: "ipvs works again", change: func(m *fakeHost) { m.Status.Mode = api.Mode{InUse: "iptables", Wanted: "auto"} }, want: []string{"modes: note: auto would use ipvs mode now, but vipd uses iptables"}},
		{name: "somebody wants iptables", change: func(m *fakeHost) {
			m.Config.Mode, m.Status.Mode = config.IPTablesMode, api.Mode{InUse: "iptables", Wanted: "iptables"}
		}},
		{name: "what iptables mode alone needs", change: func(m *fakeHost) {
			m.files["/proc/thread-self/net/ip_tables_matches"] = "set\nconntrack\nconnmark\naddrtype\nbpf\n"
		}},
		{name: "what ipvs mode alone needs", change: func(m *fakeHost) {
			m.files["/proc/thread-self/net/ip_tables_matches"] = "set\nconntrack\nconnmark\nbpf\n"
		}, want: []string{"kernel: warning: the kernel does not list the match xt_addrtype"}},
		{name: "sysctls", change: func(m *fakeHost) {
			m.files["/proc/sys/kernel/osrelease"] = "5.4.0-1\n"
			m.files["/proc/sys/net/ipv4/vs/conntrack"], m.files["/proc/sys/net/ipv4/vs/expire_nodest_conn"] = "0\n", "0\n"
			m.files["/proc/sys/net/ipv4/vs/conn_reuse_mode"] = "1\n"
		}, want: []string{
			"sysctls: warning: net.ipv4.vs.conntrack is 0", "sysctls: warning: net.ipv4.vs.expire_nodest_conn is 0",
			"sysctls: warning: net.ipv4.vs.conn_reuse_mode is 1",
		}},
		{name: "sysctls are set at the start", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/vs/conntrack"], m.Status, m.NoDaemon = "0\n", nil, "no vipd answers"
		}, want: []string{"vipd: note: no vipd answers"}},
		{name: "sysctls that are not managed", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/vs/conntrack"], m.Status, m.NoDaemon = "0\n", nil, "no vipd answers"
			m.Config.Host.ManageSysctls = false
		}, want: []string{"vipd: note: no vipd answers", "sysctls: warning: net.ipv4.vs.conntrack is 0"}},
		{name: "sysctls that somebody else needs", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/vs/conntrack"] = "0\n"
			m.add("FWM  0000000A wrr ")
		}, want: []string{
			"ipvs: note: other programs have virtual servers: mark 10",
			"sysctls: warning: net.ipv4.vs.conntrack is 0; vipd does not change it, because it also applies to other programs' virtual servers",
		}},
		{name: "sysctls in another mode", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/vs/conntrack"] = "0\n"
			m.Config.Mode, m.Status.Mode = config.IPTablesMode, api.Mode{InUse: "iptables", Wanted: "iptables"}
		}},
		{name: "a timeout that an administrator wants", change: func(m *fakeHost) {
			m.timeout = time.Minute
			m.Config.IPVS.TCPTimeout = &m.timeout
		}},
		{name: "the kernel's timeout", change: func(m *fakeHost) {
			m.timeout, m.Config.IPVS.TCPTimeout = 15*time.Minute, new(time.Duration)
		}, want: []string{"sysctls: note: IPVS keeps TCP connections without packets for 15m"}},
		{name: "a timeout that others need", change: func(m *fakeHost) {
			m.timeout = 15 * time.Minute
			m.add("FWM  0000000A wrr ")
		}, want: []string{
			"ipvs: note: other programs have virtual servers: mark 10",
			"sysctls: note: IPVS keeps TCP connections without packets for 15m",
		}},
		{name: "a timeout that is set at the start", change: func(m *fakeHost) {
			m.timeout, m.Status, m.NoDaemon = 15*time.Minute, nil, "no vipd answers"
		}, want: []string{"vipd: note: no vipd answers"}},
		{name: "node ports between local ports", change: func(m *fakeHost) {
			m.files["/proc/sys/net/ipv4/ip_local_port_range"] = "32768\t60999\n"
			m.files["/proc/sys/net/ipv4/ip_local_reserved_ports"] = "40000-40009,50000\n"
			for _, key := range []string{"32767/tcp", "32768/tcp", "40005/udp", "50000/udp", "60999/udp"} {
				m.frontend("192.168.1.5:"+key, true)
				m.frontend("192.168.1.100:"+key, true)
			}
		}, want: []string{"sockets: warning: this host's own connections can use node ports as their source ports: 32768, 60999 (net.ipv4.ip_local_port_range is 32768 to 60999)"}},
		{name: "node ports between local ports in another mode", change: func(m *fakeHost) {
			m.Config.Mode, m.Status.Mode = config.IPTablesMode, api.Mode{InUse: "iptables", Wanted: "iptables"}
			m.files["/proc/sys/net/ipv4/ip_local_port_range"] = "32768\t60999\n"
			m.frontend("192.168.1.5:40000/udp", true)
		}},
		{name: "policies", change: func(m *fakeHost) {
			m.prints["iptables-nft-save"] = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT DROP [0:0]\n:VIPD-OUTPUT - [0:0]\n" +
				"-A OUTPUT -o eth0 -p tcp -j REJECT\n-A OUTPUT -m connmark --mark 0x8000/0x8000 -j VIPD-OUTPUT\nCOMMIT\n"
			m.prints["ip6tables-nft-save"] = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT DROP [0:0]\nCOMMIT\n"
		}, want: []string{
			"firewall: warning: in OUTPUT of iptables-nft, other programs' rules come before vipd's and drop some packets: -o eth0 -p tcp -j REJECT",
			"firewall: note: OUTPUT of ip6tables-nft drops packets that no rule accepts, and vipd has no rule there now",
		}},
		{name: "OUTPUT is not for connections to VIPs in iptables mode", change: func(m *fakeHost) {
			m.Config.Mode, m.Status.Mode = config.IPTablesMode, api.Mode{InUse: "iptables", Wanted: "iptables"}
			m.prints["iptables-nft-save"] = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT DROP [0:0]\nCOMMIT\n"
		}},
		{name: "OUTPUT is for what this host sends to endpoints", change: func(m *fakeHost) {
			m.Config.Mode, m.Status.Mode = config.IPTablesMode, api.Mode{InUse: "iptables", Wanted: "iptables"}
			m.Frontends[0].Backends = []netip.AddrPort{
				netip.MustParseAddrPort("192.168.1.11:8080"), netip.MustParseAddrPort("192.168.1.12:8080"), netip.MustParseAddrPort("192.168.2.11:8080"),
				netip.MustParseAddrPort("192.168.3.11:8080"), netip.MustParseAddrPort("192.168.4.11:8080"), netip.MustParseAddrPort("192.168.5.11:8080"),
			}
			m.prints["iptables-nft-save"] = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT DROP [0:0]\n:fw - [0:0]\n" +
				"-A OUTPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A OUTPUT -o lo -j ACCEPT\n-A OUTPUT -d 192.168.1.12/32 -p tcp -m tcp --dport 8000:8100 -j ACCEPT\n" +
				"-A OUTPUT -d 192.168.2.0/24 -p udp -j ACCEPT\n-A OUTPUT -d 192.168.3.0/24 -m owner --uid-owner 0 -j ACCEPT\n-A OUTPUT -p tcp -m owner --uid-owner 7 -j REJECT\n" +
				"-A OUTPUT -m comment --comment \"all -j DROP\" -j fw\n-A OUTPUT -d 192.168.5.0/24 -j ACCEPT\n" +
				"-A fw ! -d 192.168.0.0/16 -j ACCEPT\n-A fw -d 192.168.1.0/24 -p tcp -j REJECT --reject-with tcp-reset\n-A fw -d 192.168.4.0/24 -j DROP\nCOMMIT\n"
		}, want: []string{
			"firewall: warning: OUTPUT of iptables-nft drops packets that this host sends to 192.168.1.11:8080 of web: -d 192.168.1.0/24 -p tcp -j REJECT --reject-with tcp-reset",
			"firewall: warning: OUTPUT of iptables-nft drops packets that this host sends to 192.168.4.11:8080 of web: -d 192.168.4.0/24 -j DROP",
			"firewall: warning: OUTPUT of iptables-nft drops packets that this host sends to 192.168.2.11:8080 of web: its policy is DROP, and no rule accepts it",
		}},
		{name: "OUTPUT that drops what others send", change: func(m *fakeHost) {
			m.Config.Mode, m.Status.Mode = config.IPTablesMode, api.Mode{InUse: "iptables", Wanted: "iptables"}
			m.Frontends[0].Backends = []netip.AddrPort{netip.MustParseAddrPort("192.168.1.11:8080")}
			m.prints["iptables-nft-save"] = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:fw - [0:0]\n" +
				"-A OUTPUT -d 192.168.0.0/16 -m owner --uid-owner 7 -j REJECT\n-A OUTPUT -d 192.168.0.0/16 ! -o wg0 -j REJECT\n-A OUTPUT -j fw\n" +
				"-A fw -m owner --uid-owner 0 -j RETURN\n-A fw -j REJECT\nCOMMIT\n"
		}},
		{name: "endpoints on this host are reached by lo", change: func(m *fakeHost) {
			m.Config.Mode, m.Status.Mode = config.IPTablesMode, api.Mode{InUse: "iptables", Wanted: "iptables"}
			m.Frontends[0].Backends = []netip.AddrPort{netip.MustParseAddrPort("192.168.1.11:8080")}
			m.Interfaces = func() ([]Interface, error) {
				return []Interface{{Name: "eth0", Addrs: []netip.Addr{m.Frontends[0].Backends[0].Addr()}}}, nil
			}
			m.prints["iptables-nft-save"] = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT DROP [0:0]\n-A OUTPUT -o lo -j ACCEPT\nCOMMIT\n"
		}},
		{name: "conntrack does not tell", change: func(m *fakeHost) {
			m.prints["nft -j list chains"] = `{"nftables": [{"chain": {"family": "inet", "table": "fw", "name": "f", "type": "filter", "hook": "forward", "policy": "drop"}}]}`
			m.prints["nft -j list chain inet fw f"] = `{"nftables": [{"rule": {"expr": [{"match": {"left": {"ct": {"key": "status"}}, "right": "dnat"}}, {"accept": null}]}}]}`
		}, want: []string{"firewall: warning: the nft chain inet fw f (hook forward) has the policy drop"}},
		{name: "the mark does", change: func(m *fakeHost) {
			m.prints["nft -j list chains"] = `{"nftables": [{"chain": {"family": "inet", "table": "fw", "name": "f", "type": "filter", "hook": "forward", "policy": "drop"}}]}`
			m.prints["nft -j list chain inet fw f"] = `{"nftables": [{"rule": {"expr": [{"match": {"left": {"&": [{"ct": {"key": "mark"}}, 32768]}, "right": 32768}}, {"accept": null}]}}]}`
		}, want: []string{"firewall: note: the nft chain inet fw f has the policy drop, but first accepts connections to VIPs"}},
	})
}

// TestMissingIPVS makes the ipvs mode trial fail for several reasons. The finding must contain the
// reason, and a command that fixes the cause, if the host's files show them.
func TestMissingIPVS(t *testing.T) {
	for _, test := range []struct {
		name     string
		change   func(*fakeHost)
		why, fix string
	}{
		{"no module", func(m *fakeHost) { delete(m.files, "/lib/modules/6.1.0/modules.dep") },
			"this kernel was built without the module ip_vs", "apt-get install linux-image-"},
		{"Ubuntu", func(m *fakeHost) {
			m.files["/lib/modules/6.1.0/modules.dep"] = "kernel/net/xt_set.ko: x\n"
			m.files["/etc/os-release"] = "NAME=x\nID=ubuntu\nID_LIKE=debian\n"
		}, "this kernel was built without the module ip_vs", "apt-get install linux-modules-extra-6.1.0"},
		{"Rocky", func(m *fakeHost) {
			delete(m.files, "/lib/modules/6.1.0/modules.dep")
			m.files["/etc/os-release"] = "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"
		}, "this kernel was built without the module ip_vs", "dnf provides '*/ip_vs.ko*'"},
		{"another system", func(m *fakeHost) {
			delete(m.files, "/lib/modules/6.1.0/modules.dep")
			delete(m.files, "/etc/os-release")
		}, "this kernel was built without the module ip_vs", "grep CONFIG_IP_VS /boot/config-6.1.0"},
		{"not loaded", func(*fakeHost) {}, "the module ip_vs is not loaded", "modprobe ip_vs"},
		{"a container", func(m *fakeHost) {
			delete(m.files, "/lib/modules/6.1.0/modules.dep")
			m.files["/.dockerenv"] = ""
		}, "the module ip_vs is not loaded, and this container has no module to load", "modprobe ip_vs  # on the host of this container"},
		{"no right to load", func(m *fakeHost) { m.files["/proc/self/status"] = "CapEff:\t000001fffffeffff\n" },
			"the module ip_vs is not loaded, and this process may not load modules", "modprobe ip_vs  # on the host of this container"},
		{"no privilege", func(m *fakeHost) { m.files["/proc/self/status"] = "CapEff:\t00000000a80425fb\n" },
			"this process may not change the network (CAP_NET_ADMIN)", "docker run --cap-add NET_ADMIN"},
		{"a user namespace", func(m *fakeHost) { m.files["/proc/self/uid_map"] = "0 1000 1\n" },
			"this process is in a user namespace", "sudo vipctl doctor"},
		{"another reason", func(m *fakeHost) { m.files["/sys/module/ip_vs/refcnt"] = "1\n" }, "", ""},
	} {
		for _, wanted := range []config.ModeName{config.AutoMode, config.IPVSMode} {
			t.Run(test.name+", wanted "+string(wanted), func(t *testing.T) {
				m := newServing()
				delete(m.files, "/sys/module/ip_vs/refcnt")
				test.change(m)
				m.Config.Mode, m.Status, m.NoDaemon = wanted, nil, "no vipd answers"
				m.Modes[0] = trialOf(config.IPVSMode, true, errors.New("no"))
				var lines []string
				var f Finding
				for _, found := range Examine(t.Context(), m.Host) {
					if found.Check != "modes" {
						continue
					}
					lines = append(lines, string(found.Level)+": "+found.What)
					if strings.HasPrefix(found.What, "ipvs ") {
						f = found
					}
				}
				want := []string{"note: ipvs mode does not work here: no", "ok: iptables mode works here (bind)", "ok: userspace mode works here (bind)",
					"ok: auto uses iptables mode, the best mode that works here"}
				if wanted == config.IPVSMode {
					want = append([]string{strings.Replace(want[0], "note", "problem", 1)}, want[1:3]...)
				}
				if d := cmp.Diff(want, lines); d != "" {
					t.Errorf("findings about modes (-want +got):\n%s", d)
				}
				if !strings.HasPrefix(f.Why, test.why) || !strings.HasPrefix(f.Fix, test.fix) || (test.fix == "") != (f.Fix == "") {
					t.Errorf("reason = %q, fix = %q; want %q and %q", f.Why, f.Fix, test.why, test.fix)
				}
			})
		}
	}
}

func TestLikely(t *testing.T) {
	files := map[string]string{"/proc/sys/kernel/osrelease": "6.1\n"}
	read := func(path string) ([]byte, error) {
		if text, exists := files[path]; exists {
			return []byte(text), nil
		}
		return nil, fs.ErrNotExist
	}
	if m, why := Likely(read); m.Name == config.IPVSMode || why != "this kernel has no module ip_vs" {
		t.Errorf("without IPVS: mode = %s, reason = %q; want a mode other than ipvs, and a reason that names the missing module", m.Name, why)
	}
	files["/lib/modules/6.1/modules.dep"] = "kernel/net/netfilter/ipvs/ip_vs.ko.xz: x\n"
	if m, why := Likely(read); m.Name != config.IPVSMode || why != "" {
		t.Errorf("with IPVS: mode = %s, reason = %q; want ipvs and no reason", m.Name, why)
	}
}

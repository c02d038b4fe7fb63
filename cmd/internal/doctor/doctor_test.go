package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/dataplane"
	"vipd/dataplane/userspace"
	"vipd/test/wait"
)

// made is a host made of texts: files by path, and what command lines print.
type made struct {
	Host
	files, prints map[string]string
	programs      []string
	owned         []balancer.Key
	put           map[netip.Addr]string
	lost          error // why the ledgers can't be read
	unfenced      error
	members       [][]string // of etcd
	words         []string   // of etcd's process
	owner         *api.OwnerStatus
}

// newMade returns a host with everything as it should be, on which the kernel mode of the test works.
func newMade() *made {
	m := &made{
		files: map[string]string{
			"/proc/sys/net/ipv4/ip_forward": "1\n", "/proc/sys/net/ipv6/conf/all/forwarding": "1\n",
			"/proc/sys/net/netfilter/nf_conntrack_max": "1000\n", "/proc/sys/net/netfilter/nf_conntrack_count": "10\n",
			"/proc/sys/net/netfilter/nf_conntrack_acct": "1\n", "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal": "1\n",
			"/proc/sys/net/ipv4/conf/all/arp_ignore": "1\n", "/proc/sys/net/ipv4/conf/all/arp_announce": "2\n",
			"/proc/sys/net/ipv4/conf/all/rp_filter": "0\n", "/proc/sys/net/ipv4/conf/eth0/rp_filter": "0\n",
			"/proc/thread-self/net/ip_tables_matches": "set\nconntrack\nconnmark\nstatistic\nbpf\n",
			"/proc/sys/kernel/osrelease":              "6.1.0\n",
		},
		prints: map[string]string{
			"iptables --version": "iptables v1.8.9 (nf_tables)\n", "ip6tables --version": "ip6tables v1.8.9 (nf_tables)\n",
			"iptables-restore": "", "ip6tables-restore": "", "iptables-nft-save": "", "ip6tables-nft-save": "",
			"iptables-legacy-save": "", "ip6tables-legacy-save": "", "nft -j list chains": `{"nftables": []}`,
		},
	}
	m.Host = Host{
		Root: true, Config: config.Default(), ConfigFile: "vipd.toml",
		Modes:  []modes.Mode{trialOf(config.IPTablesMode, true, nil), trialOf(config.UserspaceMode, false, nil)},
		Status: &api.Status{Version: "v1", Node: "gw1", Mode: api.Mode{InUse: "iptables", Wanted: "auto", Detail: "nft"}},
		Interfaces: func() ([]Interface, error) {
			return []Interface{{Name: "lo"}, {
				Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.5"), netip.MustParseAddr("192.168.1.100")},
				Networks: []netip.Prefix{netip.MustParsePrefix("192.168.1.0/24")},
			}}, nil
		},
		ReadFile: func(path string) ([]byte, error) {
			if text, ok := m.files[path]; ok {
				return []byte(text), nil
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
		Look: func(program string) (string, error) {
			for line := range m.prints {
				if line == program || strings.HasPrefix(line, program+" ") {
					return "/usr/sbin/" + program, nil
				}
			}
			return "", exec.ErrNotFound
		},
		Run: func(_ context.Context, program string, args ...string) (string, error) {
			line := strings.Join(append([]string{program}, args...), " ")
			if text, ok := m.prints[line]; ok {
				return text, nil
			}
			return "", fmt.Errorf("%s: exit status 1", line)
		},
		Owners: func() map[string]string { return map[string]string{"111": "vipd", "222": "nginx"} },
		Owned:  func() ([]balancer.Key, error) { return m.owned, m.lost },
		Held:   func() (map[netip.Addr]string, error) { return m.put, m.lost },
		Fence:  func() error { return m.unfenced },
		Words: func(program string) []string {
			switch {
			case program == "etcd":
				return m.words
			case slices.Contains(m.programs, program):
				return []string{program}
			}
			return nil
		},
		Members: func(context.Context) ([][]string, error) { return m.members, nil },
		Owner: func() (*api.OwnerStatus, error) {
			if m.owner == nil {
				return nil, errors.New("connection refused")
			}
			return m.owner, nil
		},
	}
	m.frontend("10.96.0.10:80/tcp", false)
	m.Status.Addresses = []api.Address{{Address: "10.96.0.10", Held: "vipd0"}}
	return m
}

// trialOf is a mode whose trial ends in err.
func trialOf(name config.ModeName, forwards bool, err error) modes.Mode {
	return modes.Mode{Name: name, Needs: dataplane.Needs{Forward: forwards}, New: func(context.Context, config.Config, *slog.Logger) (dataplane.Dataplane, error) {
		if err != nil {
			return nil, err
		}
		return userspace.New(userspace.Options{Intercept: userspace.Bind})
	}}
}

func (m *made) frontend(key string, nodePort bool) {
	k, err := balancer.ParseKey(key)
	if err != nil {
		panic(err)
	}
	m.Frontends = append(m.Frontends, Frontend{Key: k, NodePort: nodePort, Service: "web"})
}

// without drops what is as it should be.
func without(all []Finding, level Level) []string {
	var lines []string
	for _, f := range all {
		if f.Level != level {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", f.Check, f.Level, f.What))
		}
	}
	return lines
}

func TestFindings(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*made)
		want   []string
	}{
		{"all is well", func(*made) {}, nil},
		{"a host that may own VIPs", func(m *made) {
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{Gate: "open", Confirmed: map[string]float64{"gw2": 0.02}}
		}, nil},
		{"no vipd owner", func(m *made) { m.Config.Ownership.Enabled = true }, []string{
			"ownership: problem: vipd owner does not answer, so this host owns no VIPs: connection refused",
		}},
		{"an owner that has no session", func(m *made) {
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{Gate: "closed", Etcd: "no", Problems: []string{"this host can own no VIPs"}}
		}, []string{
			"ownership: problem: this host can own no VIPs",
			"ownership: warning: vipd owner does not reach etcd: no",
			"ownership: warning: vipd owner is not confirmed by other hosts or by etcd: VIPs rest here",
		}},
		{"an owner with much in its way", func(m *made) {
			vip := netip.MustParseAddr("192.168.1.77")
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{
				Gate: "closed", Etcd: "no", Confirmed: map[string]float64{"gw2": -1, "gw3": 0.1}, Late: 0.3, Problems: []string{"another host answers"},
				Waiting: map[string][]string{"gw1": {"gw1", "gw2"}},
				Bound:   []netip.Addr{vip}, Unplaced: []netip.Addr{netip.MustParseAddr("10.7.7.7")},
			}
			m.programs = []string{"keepalived"}
			m.files["/proc/sys/kernel/sched_rt_runtime_us"] = "0\n"
			m.files["/etc/keepalived/keepalived.conf"] = "virtual_ipaddress {\n192.168.1.77/24 dev eth0\n}\n"
		}, []string{
			"ipvs: note: keepalived is running",
			"ownership: problem: no process may run with real-time priority here",
			"ownership: problem: another host answers",
			"ownership: problem: VIPs of gw1 have no owner: gw1, gw2 are silent",
			"ownership: warning: vipd owner does not reach etcd: no",
			"ownership: warning: vipd owner is not confirmed by other hosts or by etcd: VIPs rest here",
			"ownership: warning: gw2 does not confirm this host",
			"ownership: warning: vipd owner had to wait 300ms for a processor",
			"ownership: warning: 10.7.7.7: no device of this host has a network with it",
			"ownership: problem: keepalived has 192.168.1.77 in its configuration, too",
		}},
		{"an owner with much around it", func(m *made) {
			vip, inner := netip.MustParseAddr("192.168.1.77"), netip.MustParseAddr("192.168.1.78")
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{
				Node: "gw1", Gate: "open", Confirmed: map[string]float64{"gw2": 0.1}, Bound: []netip.Addr{vip}, Hindered: []string{"no priority"},
				Peers: []api.OwnerPeer{
					{Node: "gw2", Network: "192.168.1.0/24", Addresses: []netip.Addr{netip.MustParseAddr("192.168.1.6")}, Up: true}, {Node: "gw2", Network: "10.8.0.0/24"},
				},
				VIPs: map[netip.Addr]api.OwnedVIP{
					vip: {Serves: true, KeepsSource: true}, inner: {Group: "g"}, inner.Next(): {Group: "g", Serves: true, KeepsSource: true},
				},
			}
			m.members = [][]string{{"http://192.168.1.5:2380"}, {"http://192.168.1.6:2380"}}
			m.programs = []string{"vip-manager", "etcd"}
			m.words = []string{"etcd", "--config-file=/etc/etcd.yml"}
			m.files["/etc/etcd.yml"] = "name: one\nelection-timeout: 3000\n"
			m.files["/etc/patroni/vip-manager.yml"] = "ip: 192.168.1.77\n"
			m.files["/etc/nftables.conf"] = "#!/usr/sbin/nft -f\nflush ruleset\n"
			m.prints["systemctl is-enabled nftables"] = "enabled\n"
			m.prints["systemd-detect-virt --vm"] = "kvm\n"
		}, []string{
			"ownership: warning: gw2 is not heard on 10.8.0.0/24",
			"ownership: problem: vip-manager has 192.168.1.77 in its configuration, too",
			"ownership: warning: vipd owner runs with less than it needs: no priority",
			"ownership: warning: etcd has no majority without gw1 or without gw2",
			"ownership: note: etcd here elects a leader after 3s without one",
			"ownership: note: this host is a virtual machine (kvm), which answers for its VIPs for up to 250ms after a pause",
			"ownership: warning: a restart of nftables.service flushes the gate of owned VIPs, too",
			"ownership: note: 192.168.1.77: no VIP without a service is in the group, as a gateway of the endpoints",
		}},
		{"an owner with all as it should be around it", func(m *made) {
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{Node: "gw1", Gate: "open", Confirmed: map[string]float64{"gw2": 0.1}}
			m.members = [][]string{{"http://192.168.1.5:2380"}, {"http://192.168.1.6:2380"}, {"http://192.168.1.7:2380"}}
			m.words = []string{"etcd", "--election-timeout", "500", "ETCD_NAME=one"}
			m.files["/etc/nftables.conf"] = "flush ruleset\n"
			m.files["/proc/sys/kernel/osrelease"] = "6.12.0\n"
			m.prints["systemctl is-enabled nftables"] = "enabled\n"
		}, nil},
		{"a kernel without a fence", func(m *made) {
			m.Config.Ownership.Enabled, m.unfenced = true, errors.New("the kernel has no netdev egress: nf_tables refused \"add chain\"")
		}, []string{`ownership: problem: this host can own no VIPs (hold = "one"): the kernel has no netdev egress`}},
		{"a fallback", func(m *made) {
			m.Status.Mode = api.Mode{InUse: "userspace", Wanted: "iptables", Fallback: true, Reason: "not iptables: no"}
			m.Config.Mode, m.Modes[0] = config.IPTablesMode, trialOf(config.IPTablesMode, true, errors.New("no\nnot at all"))
		}, []string{
			"vipd: problem: vipd serves by userspace mode, though iptables is wanted: not iptables: no",
			"modes: problem: iptables mode does not work here: no; not at all",
		}},
		{"its problems", func(m *made) {
			m.Status.Problems = []balancer.Problem{{Severity: balancer.SeverityError}, {Severity: balancer.SeverityWarning}}
		}, []string{"vipd: warning: vipd reports problems (1)"}},
		{"no root", func(m *made) {
			m.Root, m.Status, m.NoDaemon = false, nil, "no vipd answers"
			delete(m.files, "/proc/thread-self/net/ip_tables_matches")
		}, []string{
			"vipd: note: no vipd answers", "modes: note: iptables mode was not tried: that takes root",
			"modes: note: auto takes userspace mode unless a better one works, which is not known of iptables",
			"tools: note: the host's rules were not looked at: that takes root",
			"kernel: note: the kernel's matches of iptables can't be seen: open /proc/thread-self/net/ip_tables_matches: file does not exist",
			"firewall: note: firewalls were not looked at: that takes root",
		}},
		{"a fleet that is trusted with everything", func(m *made) {
			m.Config.Store.Kind, m.Config.Etcd.Endpoints = config.EtcdStore, []string{"http://127.0.0.1:2379", "http://etcd2:2379"}
			m.Status.Store = api.Store{Error: "connection refused"}
		}, []string{
			"fleet: warning: addresses.allowed of vipd.toml " + config.Unbounded,
			"fleet: warning: etcd is reached without TLS",
			"fleet: problem: etcd can't be read: connection refused",
		}},
		{"a fleet with bounds", func(m *made) {
			m.Config.Store.Kind, m.Config.Etcd.Endpoints = config.EtcdStore, []string{"https://etcd1:2379"}
			m.Config.Addresses.Allowed = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
			m.Status.Store = api.Store{Connected: true}
		}, nil},
		{"a broken config", func(m *made) { m.ConfigProblem = "vipd.toml:1: bad" }, []string{"vipd: problem: the configuration: vipd.toml:1: bad"}},
		{"no iptables", func(m *made) {
			for line := range m.prints {
				if strings.Contains(line, "tables-") || strings.Contains(line, "--version") {
					delete(m.prints, line)
				}
			}
		}, []string{"tools: warning: iptables is not installed", "tools: warning: ip6tables is not installed"}},
		{"both backends", func(m *made) {
			m.files["/proc/thread-self/net/ip_tables_names"] = "filter\n"
			m.prints["iptables-nft-save"] = "*filter\n:FORWARD ACCEPT [0:0]\n:VIPD-GUARD - [0:0]\n-A VIPD-GUARD -j RETURN\nCOMMIT\n"
			m.prints["iptables-legacy-save -t filter"] = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -i eth1 -j ACCEPT\nCOMMIT\n"
		}, []string{
			"tools: warning: others have rules in the legacy tables too (iptables, rules: 1), and vipd uses nft",
			"firewall: problem: FORWARD of iptables-legacy drops what no rule accepts, and vipd uses the other backend",
		}},
		{"follows the others' backend", func(m *made) {
			m.files["/proc/thread-self/net/ip_tables_names"] = "filter\n"
			m.prints["iptables-legacy-save -t filter"] = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -i eth1 -j ACCEPT\nCOMMIT\n"
		}, []string{"firewall: note: FORWARD of iptables-legacy drops what no rule accepts, and vipd has no rule there now"}},
		{"drops before vipd", func(m *made) {
			m.prints["iptables-nft-save"] = "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n:VIPD-INPUT - [0:0]\n:VIPD-FORWARD - [0:0]\n" +
				":BLOCK - [0:0]\n-A BLOCK -s 10.0.0.0/8 -j REJECT --reject-with icmp-port-unreachable\n" +
				"-A INPUT -m conntrack --ctstate INVALID -j DROP\n-A INPUT -p icmp -j DROP\n-A INPUT -j BLOCK\n-A INPUT -j VIPD-INPUT\n-A INPUT -j DROP\n" +
				"-A FORWARD -i eth1 -j ACCEPT\n-A FORWARD -m comment --comment \"no more\" -j DROP\n-A FORWARD -j VIPD-FORWARD\nCOMMIT\n"
		}, []string{
			"firewall: warning: in INPUT of iptables-nft, rules of other programs stand before vipd's and drop some packets: -j BLOCK",
			"firewall: problem: in FORWARD of iptables-nft, a rule of another program comes before vipd's and drops everything: -m comment --comment \"no more\" -j DROP",
		}},
		{"a match is missing", func(m *made) {
			m.files["/proc/thread-self/net/ip_tables_matches"] = "conntrack\nset\nstatistic\nbpf\n"
		},
			[]string{"kernel: warning: the kernel does not show the match xt_connmark"}},
		{"conntrack is near full", func(m *made) { m.files["/proc/sys/net/netfilter/nf_conntrack_count"] = "801" },
			[]string{"kernel: warning: connection tracking has 801 of 1000 entries in use"}},
		{"forwarding is off", func(m *made) {
			m.files["/proc/sys/net/ipv4/ip_forward"], m.files["/proc/sys/net/ipv6/conf/all/forwarding"] = "0", "0"
			m.frontend("[fd00::9]:80/tcp", false)
		}, []string{"sysctls: problem: IPv4 packets are not forwarded", "sysctls: warning: IPv6 packets are not forwarded"}},
		{"forwarding of IPv6 is on for a device", func(m *made) {
			m.files["/proc/sys/net/ipv6/conf/all/forwarding"], m.files["/proc/sys/net/ipv6/conf/eth0/force_forwarding"] = "0", "1"
			m.frontend("[fd00::9]:80/tcp", false)
		}, nil},
		{"forwarding is off for a device", func(m *made) {
			m.files["/proc/sys/net/ipv4/conf/eth0/forwarding"], m.files["/proc/sys/net/ipv4/conf/lo/forwarding"] = "0", "0"
		}, []string{"sysctls: warning: IPv4 packets that come in by eth0 are not forwarded"}},
		{"forwarding is to come", func(m *made) {
			m.files["/proc/sys/net/ipv4/ip_forward"], m.Status, m.NoDaemon = "0", nil, "no vipd answers"
		},
			[]string{"vipd: note: no vipd answers"}},
		{"forwarding does not matter", func(m *made) {
			m.files["/proc/sys/net/ipv4/ip_forward"], m.Status.Mode = "0", api.Mode{InUse: "userspace", Wanted: "userspace"}
		}, nil},
		{"what drops forwarded packets does not matter", func(m *made) {
			m.Status.Mode = api.Mode{InUse: "userspace", Wanted: "userspace"}
			m.prints["iptables-nft-save"] = "*filter\n:FORWARD DROP [0:0]\n:VIPD-FORWARD - [0:0]\n-A FORWARD -j DROP\n-A FORWARD -j VIPD-FORWARD\nCOMMIT\n"
			m.prints["nft -j list chains"] = `{"nftables": [{"chain": {"family": "inet", "table": "fw", "name": "f", "type": "filter", "hook": "forward", "policy": "drop"}}]}`
			m.prints["nft -j list chain inet fw f"] = `{"nftables": []}`
		}, nil},
		{"rules that name an endpoint", func(m *made) {
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
		}, []string{
			"firewall: warning: a rule of the nft chain inet fw f (hook forward) drops or rejects packets to the endpoint 192.0.2.2:8080 of web",
			"firewall: warning: a rule of the nft chain inet fw f (hook forward) drops or rejects packets to 10.96.0.10:80/tcp (web)",
			"firewall: warning: a rule of the nft chain inet fw f (hook forward) drops or rejects packets to the endpoint 192.0.2.2:8080 of web, the endpoint 192.0.2.5:8080 of web",
		}},
		{"loopback, paths, ARP, counters", func(m *made) {
			m.files["/proc/sys/net/ipv4/conf/eth0/route_localnet"], m.files["/proc/sys/net/ipv4/conf/eth0/rp_filter"] = "1", "1"
			m.files["/proc/sys/net/ipv4/conf/all/arp_ignore"] = "0"
			m.files["/proc/sys/net/netfilter/nf_conntrack_acct"], m.files["/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"] = "0", "0"
		}, []string{
			"sysctls: warning: 127.0.0.0/8 is open to other hosts: route_localnet is on for eth0", "sysctls: note: rp_filter is strict on eth0",
			"sysctls: warning: net.ipv4.conf.all.arp_ignore is 0 while VIPs are held here",
			"sysctls: note: the kernel does not count bytes of connections (nf_conntrack_acct)",
			"sysctls: note: connection tracking is strict about TCP windows (nf_conntrack_tcp_be_liberal)",
		}},
		{"loose for all", func(m *made) {
			m.files["/proc/sys/net/ipv4/conf/eth0/rp_filter"], m.files["/proc/sys/net/ipv4/conf/all/rp_filter"] = "1", "2"
		}, nil},
		{"a bridge", func(m *made) {
			m.Interfaces = func() ([]Interface, error) {
				return []Interface{{Name: "br0", Bridge: true, Addrs: []netip.Addr{netip.MustParseAddr("172.17.0.1")}}, {Name: "br1", Bridge: true}}, nil
			}
		}, []string{"sysctls: note: packets inside of bridges bypass iptables: br0"}},
		{"a bridge whose packets are translated", func(m *made) {
			m.files["/proc/sys/net/bridge/bridge-nf-call-iptables"] = "1"
			m.Frontends = []Frontend{{Service: "web", Backends: []netip.AddrPort{netip.MustParseAddrPort("172.17.0.2:8080")}}}
			m.Interfaces = func() ([]Interface, error) {
				here, other := []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("172.18.0.0/16")}
				return []Interface{
					{Name: "br0", OneWay: []string{"veth1", "veth2"}, Networks: here}, {Name: "br1", OneWay: []string{"veth3"}, Networks: other}, {Name: "br2", Networks: here},
				}, nil
			}
		}, []string{"sysctls: note: ports of bridges send nothing back by the way it came (hairpin): br0 (veth1, veth2)"}},
		{"kube-proxy, ufw and firewalld", func(m *made) {
			m.prints["iptables-nft-save"] = "*nat\n:KUBE-SERVICES - [0:0]\n:ufw-user-input - [0:0]\nCOMMIT\n"
			m.prints["systemctl is-active firewalld"] = "active\n"
		}, []string{"others: note: kube-proxy has rules here (KUBE-SERVICES)", "others: note: firewalld is running", "others: note: ufw is enabled"}},
		{"translations of others", func(m *made) {
			m.prints["iptables-nft-save"] = "*nat\n:PREROUTING ACCEPT [0:0]\n:VIPD-X - [0:0]\n-A PREROUTING -d 10.96.0.10/32 -j DNAT --to-destination 1.1.1.1\n" +
				"-A PREROUTING -d 10.96.0.0/16 -j DNAT --to-destination 1.1.1.1\n-A PREROUTING ! -d 10.96.0.10/32 -j DNAT --to-destination 1.1.1.1\n" +
				"-A PREROUTING -d 10.96.0.10/32 -j ACCEPT\n-A VIPD-X -d 10.96.0.10/32 -j DNAT --to-destination 1.1.1.1\nCOMMIT\n"
		}, []string{"others: warning: a rule of another program translates traffic for 10.96.0.10 (iptables-nft, chain PREROUTING): -d 10.96.0.10/32 -j DNAT --to-destination 1.1.1.1"}},
		{"sockets", func(m *made) {
			m.frontend("192.168.1.5:30080/tcp", true)
			m.files["/proc/thread-self/net/tcp"] = "  sl  local_address rem_address   st\n" +
				line("0A00600A:0050", "0A", "222") + line("0A00600A:0050", "0A", "111") +
				line("0A00600A:0051", "0A", "222") + line("00000000:0050", "0A", "222") + line("00000000:7580", "0A", "222") + line("0A00600A:0050", "01", "222")
			m.files["/proc/thread-self/net/udp6"] = line("00000000000000000000000000000000:0050", "07", "222")
		}, []string{
			"sockets: warning: nginx listens on 10.96.0.10:80/tcp, where service web is (10.96.0.10:80/tcp)",
			"sockets: warning: nginx listens on 0.0.0.0:30080/tcp, where service web is (192.168.1.5:30080/tcp)",
		}},
		{"sockets at the host's own address", func(m *made) {
			m.frontend("192.168.1.5:80/tcp", false)
			m.Status.Addresses = append(m.Status.Addresses, api.Address{Address: "192.168.1.5", Held: "host"})
			m.files["/proc/thread-self/net/tcp"] = line("00000000:0050", "0A", "222")
		}, []string{"sockets: warning: nginx listens on 0.0.0.0:80/tcp, where service web is (192.168.1.5:80/tcp)"}},
		{"sockets, where vipd listens itself", func(m *made) {
			m.Status.Mode = api.Mode{InUse: "userspace", Wanted: "userspace", Detail: "bind, because"}
			m.files["/proc/thread-self/net/tcp"] = line("00000000:0050", "0A", "222") + line("0A00600A:0050", "0A", "333")
		}, []string{"sockets: problem: nginx listens on 0.0.0.0:80/tcp, where service web is (10.96.0.10:80/tcp)"}},
		{"services that nobody serves", func(m *made) {
			m.frontend("10.96.0.11:80/tcp", false)
			m.frontend("10.96.0.11:443/tcp", false)
			m.Frontends[1].Service, m.Frontends[2].Service = "api", "api"
			for i := range m.Frontends {
				m.Frontends[i].Idle = "all endpoints are down"
			}
		}, []string{"services: problem: clients of web, api are not served: all endpoints are down"}},
		{"a service that is served in part", func(m *made) {
			m.frontend("10.96.0.11:80/tcp", false)
			m.Frontends[1].Service, m.Frontends[1].Idle = m.Frontends[0].Service, "there are no endpoints"
		}, []string{"services: problem: clients of web at 10.96.0.11:80/tcp are not served: there are no endpoints"}},
		{"a node port at the node's addresses of a family that the service has no endpoints of", func(m *made) {
			m.frontend("[fd01::1]:30080/tcp", true)
			m.Frontends[1].Service, m.Frontends[1].Idle = m.Frontends[0].Service, "there are no endpoints"
		}, nil},
		{"an address that nobody holds", func(m *made) {
			m.Status.Addresses = []api.Address{{Address: "10.96.0.10", Held: "none", Note: "no such device"}}
		},
			[]string{"traffic: problem: 10.96.0.10 is not on this host (no such device)"}},
		{"an address of somebody else", func(m *made) {
			m.Status.Addresses, m.Config.Addresses.Bind = []api.Address{{Address: "10.96.0.10", Held: "none"}, {Address: "10.96.0.11", Held: "none"}}, false
		}, []string{"traffic: note: 10.96.0.10, 10.96.0.11 are not here: bind is false, and another program has to add it"}},
		{"no services", func(m *made) { m.Status.Addresses, m.Frontends = nil, nil },
			[]string{"traffic: note: there are no services yet, so that nothing is known of their traffic"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMade()
			test.change(m)
			got := without(Examine(t.Context(), m.Host), OK)
			if d := cmp.Diff(test.want, got); d != "" {
				t.Errorf("findings but those that are ok (-want +got):\n%s", d)
			}
		})
	}
}

// TestJudge: what the rules before vipd's drop.
func TestJudge(t *testing.T) {
	v := newVisit(newMade().Host)
	b := &backend{tables: map[string]map[string]*chain{"filter": {
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
		if got := v.judge(b, test.rules, 0).drops; got != test.want {
			t.Errorf("%q: got %d, want %d", test.rules, got, test.want)
		}
	}
}

// line is one of /proc/net/tcp.
func line(local, state, inode string) string {
	return fmt.Sprintf("   0: %s 00000000:0000 %s 00000000:00000000 00:00000000 00000000     0        0 %s 1\n", local, state, inode)
}

// TestIdle: a service is served by an endpoint that gets new connections, and by no other.
func TestIdle(t *testing.T) {
	type states = []balancer.BackendState
	for _, test := range []struct {
		states states
		want   string
	}{
		{nil, "there are no endpoints"},
		{states{balancer.Removed}, "there are no endpoints"},
		{states{balancer.Down, balancer.Active}, ""},
		{states{balancer.Down, balancer.Down, balancer.Removed}, "all endpoints are down"},
		{states{balancer.Draining}, "all endpoints are drained"},
		{states{balancer.ZeroWeight, balancer.Draining, balancer.Down}, "all endpoints are down or drained or of weight 0"},
		{states{balancer.Remote}, "all endpoints are on other nodes than locality allows"},
	} {
		if got := Idle(test.states); got != test.want {
			t.Errorf("%v: got %q, want %q", test.states, got, test.want)
		}
	}
}

// TestArrival: the ways by which traffic gets to a VIP.
func TestArrival(t *testing.T) {
	for _, test := range []struct{ name, vip, device, held, want string }{
		{"held", "10.96.0.10", "vipd0", "vipd0", "10.96.0.10 is held on vipd0: reached by programs of this host, and by other hosts where a route leads here"},
		{"on a real device", "192.168.1.77", "eth0", "eth0", "192.168.1.77 is held on eth0: this host answers ARP or NDP for it there"},
		{"owned", "192.168.1.100", "vipd0", "owned", "192.168.1.100 is owned by this host (eth0), which answers ARP or NDP for it"},
		{"owned by another host", "192.168.1.101", "vipd0", "owned elsewhere", "192.168.1.101 is not owned by this host"},
		{"the host's own", "192.168.1.100", "vipd0", "host", "192.168.1.100 is the host's own (eth0): every client that reaches the host reaches it"},
		{"loopback", "127.0.3.1", "vipd0", "host", "127.0.3.1 is on this host's loopback: for programs of this host only"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMade()
			m.Config.Addresses.Interface, m.Frontends = test.device, nil
			m.frontend(test.vip+":80/tcp", false)
			m.frontend("192.168.1.5:30080/tcp", true)
			a := api.Address{Address: test.vip, Held: test.held}
			switch test.held {
			case "owned":
				a.Held, a.Owned = "host", true
			case "owned elsewhere":
				a.Held, a.Owned, a.Note = "none", true, "not owned by this host"
			}
			m.Status.Addresses = []api.Address{a}
			m.arrives(t, OK, test.want)
		})
	}
}

// TestArrivalAmongNeighbours: nobody answers for a VIP from the network of a device that is held elsewhere, unless the host answers by any
// device.
func TestArrivalAmongNeighbours(t *testing.T) {
	m := newMade()
	m.Frontends, m.Status.Addresses = nil, []api.Address{{Address: "192.168.1.77", Held: "vipd0"}}
	m.frontend("192.168.1.77:80/tcp", false)
	m.arrives(t, Warning, "192.168.1.77 is held on vipd0, and in the network of eth0: clients there don't reach it, for no host answers when they ask for it by ARP or NDP")
	m.files["/proc/sys/net/ipv4/conf/all/arp_ignore"] = "0"
	m.arrives(t, OK, "192.168.1.77 is held on vipd0: reached by programs of this host, and by other hosts where a route leads here")
}

// TestKilled: a vipd that has left addresses and answers no more is a problem, one that has left nothing is not.
func TestKilled(t *testing.T) {
	for _, killed := range []bool{true, false} {
		m := newMade()
		m.Status, m.NoDaemon, m.put = nil, "no vipd answers", map[netip.Addr]string{}
		want := Note
		if killed {
			m.put[netip.MustParseAddr("10.96.0.10")], want = "lo", Problem
		}
		first := Examine(t.Context(), m.Host)[0]
		if first.What != "no vipd answers" || first.Level != want {
			t.Errorf("killed %v: got %s %q, want %s", killed, first.Level, first.What, want)
		}
	}
}

// arrives demands what is said of the traffic.
func (m *made) arrives(t *testing.T, level Level, want string) {
	t.Helper()
	all := Examine(t.Context(), m.Host)
	last := all[len(all)-1]
	if last.What != want || last.Level != level {
		t.Errorf("got %s %q, want %s %q", last.Level, last.What, level, want)
	}
	if strings.Contains(last.Mend, "VIP") || strings.Contains(last.Mend, "THIS-HOST") {
		t.Errorf("the command has a gap: %s", last.Mend)
	}
}

// TestArrivalWithoutDaemon: where VIPs are when no vipd answers is what its ledger says, and where they will be what the
// configuration does. Nothing is claimed that can't be known.
func TestArrivalWithoutDaemon(t *testing.T) {
	for _, test := range []struct {
		name, vip, device string
		change            func(m *made)
		level             Level
		want              string
	}{
		{"killed", "192.168.1.100", "vipd0", func(m *made) { m.put[netip.MustParseAddr("192.168.1.100")] = "eth0" }, OK,
			"192.168.1.100 is held on eth0 by a vipd that does not answer: this host answers ARP or NDP for it there"},
		{"killed, on lo", "10.96.0.10", "vipd0", func(m *made) {
			a := netip.MustParseAddr("10.96.0.10")
			m.put[a] = "lo"
			m.Interfaces = func() ([]Interface, error) {
				return []Interface{{Name: "lo", Addrs: []netip.Addr{a}}, {Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.5")}}}, nil
			}
		}, OK, "10.96.0.10 is held on lo by a vipd that does not answer: reached by programs of this host, and by other hosts where a route leads here"},
		{"killed, and gone since", "10.96.0.10", "vipd0", func(m *made) { m.put[netip.MustParseAddr("10.96.0.10")] = "lo" }, OK,
			"10.96.0.10 is not here yet: vipd puts addresses on vipd0, or on lo where the kernel has no dummy devices; other hosts reach them where a route leads here"},
		{"before the first start", "10.96.0.10", "lo", nil, OK, "10.96.0.10 is not here yet: vipd puts addresses on lo; other hosts reach them where a route leads here"},
		{"before the first start, on a real device", "10.96.0.10", "eth0", nil, OK,
			"10.96.0.10 is not here yet: vipd puts addresses on eth0, where this host answers ARP or NDP for them"},
		{"the host's own", "192.168.1.100", "vipd0", nil, OK, "192.168.1.100 is the host's own (eth0): every client that reaches the host reaches it"},
		{"loopback", "127.0.3.1", "vipd0", nil, OK, "127.0.3.1 is on this host's loopback: for programs of this host only"},
		{"without root", "192.168.1.100", "vipd0", func(m *made) { m.lost = fs.ErrPermission }, Note,
			"192.168.1.100 is on eth0, and it is not known whether vipd holds addresses there"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := newMade()
			m.Config.Addresses.Interface, m.Frontends, m.put = test.device, nil, map[netip.Addr]string{}
			m.Status, m.NoDaemon = nil, "no vipd answers"
			m.frontend(test.vip+":80/tcp", false)
			if test.change != nil {
				test.change(m)
			}
			m.arrives(t, test.level, test.want)
		})
	}
}

// TestManyServices: what is looked at does not grow with the square of what there is. With 10,000 VIPs that are on a
// device, as after a crash, a look at the devices per VIP takes minutes.
func TestManyServices(t *testing.T) {
	m := newMade()
	m.Frontends, m.put, m.Status.Addresses = nil, map[netip.Addr]string{}, nil
	var all []netip.Addr
	for i := range 10000 {
		a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		all = append(all, a)
		m.put[a] = "lo"
		m.frontend(a.String()+":80/tcp", false)
		m.Status.Addresses = append(m.Status.Addresses, api.Address{Address: a.String(), Held: "lo"})
	}
	looks := 0
	m.Interfaces = func() ([]Interface, error) {
		looks++
		return []Interface{{Name: "lo", Addrs: all}, {Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("192.168.1.5")}}}, nil
	}
	began := time.Now()
	m.arrives(t, OK, "10.96.0.0, 10.96.0.1, 10.96.0.2, 10.96.0.3, 10.96.0.4 and 9995 more are held on lo: reached by programs of this host, and by other hosts where a route leads here")
	m.Status, m.NoDaemon = nil, "no vipd answers"
	m.arrives(t, OK, "10.96.0.0, 10.96.0.1, 10.96.0.2, 10.96.0.3, 10.96.0.4 and 9995 more are held on lo by a vipd that does not answer: reached by programs of this host, and by other hosts where a route leads here")
	if took := time.Since(began); took > wait.Bound(20*time.Second) {
		t.Errorf("two examinations took %s", took)
	}
	if looks > 20 {
		t.Errorf("the devices were looked at %d times", looks)
	}
}

// TestTrialsApart has trials leave the records of a running vipd alone, and leave nothing behind.
func TestTrialsApart(t *testing.T) {
	for _, runs := range []bool{true, false} {
		m := newMade()
		m.Config.RunDir = t.TempDir()
		if !runs {
			m.Status = nil
		}
		used := ""
		m.Modes = []modes.Mode{{Name: config.UserspaceMode, New: func(_ context.Context, c config.Config, _ *slog.Logger) (dataplane.Dataplane, error) {
			used = c.RunDir
			if _, err := os.Stat(used); err != nil {
				t.Error(err)
			}
			return userspace.New(userspace.Options{Intercept: userspace.Bind})
		}}}
		Examine(t.Context(), m.Host)
		if apart := used != m.Config.RunDir; apart != runs {
			t.Errorf("vipd runs: %t; the trial used %s, and vipd has %s", runs, used, m.Config.RunDir)
		}
		if _, err := os.Stat(used); runs && !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", used, err)
		}
	}
}

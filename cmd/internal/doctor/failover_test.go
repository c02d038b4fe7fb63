package doctor

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/config"
)

func TestFindingsOfFailover(t *testing.T) {
	examineEach(t, newFakeHost, []findingCase{
		{name: "a host that may own VIPs", change: func(m *fakeHost) {
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{Gate: "open", Confirmed: map[string]float64{"gw2": 0.02}}
		}},
		{name: "no vipd owner", change: func(m *fakeHost) { m.Config.Ownership.Enabled = true }, want: []string{
			"ownership: problem: vipd owner does not answer, so this host owns no VIPs: connection refused",
		}},
		{name: "an owner that has no session", change: func(m *fakeHost) {
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{Gate: "closed", Etcd: "no", Problems: []string{"this host can't own VIPs"}}
		}, want: []string{
			"ownership: problem: this host can't own VIPs",
			"ownership: warning: vipd owner can't reach etcd: no",
			"ownership: warning: vipd owner is not confirmed by other hosts or by etcd, so its VIPs are silent",
		}},
		{name: "the backup of a pair with VRRP", change: func(m *fakeHost) {
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{Gate: "closed", VRRP: &vrrp.Status{Groups: []vrrp.GroupStatus{
				{Name: "main", State: vrrp.Backup, Owner: netip.MustParseAddr("192.168.1.11")},
			}}}
		}},
		{name: "a pair with VRRP whose hosts don't receive each other", change: func(m *fakeHost) {
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{Gate: "closed", VRRP: &vrrp.Status{Groups: []vrrp.GroupStatus{
				{Name: "main", State: vrrp.Backup, Problems: []string{"192.168.1.12 has version 2"}},
			}}}
		}, want: []string{
			"ownership: warning: 192.168.1.12 has version 2",
			"ownership: warning: main is Backup, and no owner is known",
		}},
		{name: "a pair with VRRP next to strangers", change: func(m *fakeHost) {
			other := netip.MustParseAddr("192.168.1.12")
			m.Config.Ownership.Enabled = true
			m.Config.Ownership.VRRP = map[string]config.VRRP{
				"main": {RouterID: 51, Priority: 150, Interface: "eth0", AdvertInterval: 100 * time.Millisecond, Peers: []netip.Addr{other}},
				"more": {RouterID: 53, Priority: 100, Interface: "eth1", AdvertInterval: time.Second, Peers: []netip.Addr{other}},
			}
			m.owner = &api.OwnerStatus{Gate: "open", Hindered: []string{"no priority"}, RouterIDs: []int{1, 3}, VRRP: &vrrp.Status{Groups: []vrrp.GroupStatus{
				{Name: "main", RouterID: 51, State: vrrp.Active, Routers: []vrrp.RouterStatus{
					{Addr: other, Priority: 150, Age: time.Second}, {Addr: other.Next(), Age: -1, Dropped: vrrp.WrongList},
				}},
				{Name: "more", RouterID: 53, State: vrrp.Active},
			}}}
		}, want: []string{
			"ownership: warning: 192.168.1.12 has the same priority as this host in main: 150",
			"ownership: note: another router uses router_id 51 for other VIPs; IDs that are free on this LAN: 2, 4, 5",
			"ownership: warning: main sends adverts every 100ms, but vipd owner might be late here",
			"ownership: note: group more has never received an advert from its peers",
			"ownership: warning: vipd owner lacks a privilege or a limit that it needs: no priority",
		}},
		{name: "an owner with much in its way", change: func(m *fakeHost) {
			vip := netip.MustParseAddr("192.168.1.77")
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{
				Gate: "closed", Etcd: "no", Confirmed: map[string]float64{"gw2": -1, "gw3": 0.1}, Late: 0.3, Problems: []string{"another host answers"},
				Waiting: map[string][]string{"gw1": {"gw1", "gw2"}},
				Bound:   []netip.Addr{vip}, Unplaced: []netip.Addr{netip.MustParseAddr("10.7.7.7")},
			}
			m.programs = []string{"keepalived"}
			m.files["/proc/sys/kernel/sched_rt_runtime_us"] = "0\n"
			m.files["/etc/keepalived/keepalived.conf"] = "virtual_ipaddress {\n192.168.1.77/24 dev eth0\n}\n"
		}, want: []string{
			"ipvs: note: keepalived is running",
			"ownership: problem: no process can run with real-time priority on this host",
			"ownership: problem: another host answers",
			"ownership: warning: vipd owner waited 300ms for a processor",
			"ownership: warning: 10.7.7.7: not in the network of any device on this host",
			"ownership: problem: VIPs of gw1 have no owner: gw1, gw2 are silent",
			"ownership: warning: vipd owner can't reach etcd: no",
			"ownership: warning: vipd owner is not confirmed by other hosts or by etcd, so its VIPs are silent",
			"ownership: warning: gw2 does not confirm this host",
			"ownership: problem: keepalived also has 192.168.1.77 in its configuration",
		}},
		{name: "an owner with much around it", change: func(m *fakeHost) {
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
		}, want: []string{
			"ownership: warning: gw2 does not answer on 10.8.0.0/24",
			"ownership: problem: vip-manager also has 192.168.1.77 in its configuration",
			"ownership: warning: vipd owner lacks a privilege or a limit that it needs: no priority",
			"ownership: warning: etcd has no majority without gw1 or without gw2",
			"ownership: note: on this host, etcd elects a new leader after 3s without a leader",
			"ownership: note: this host is a virtual machine (kvm), which answers for its VIPs for up to 250ms after a pause",
			"ownership: warning: a restart of nftables.service also flushes the gate of owned VIPs",
			"ownership: note: 192.168.1.77: each VIP in the group has services, so endpoints have no VIP to use as their gateway",
		}},
		{name: "an owner with all as it should be around it", change: func(m *fakeHost) {
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{Node: "gw1", Gate: "open", Confirmed: map[string]float64{"gw2": 0.1}}
			m.members = [][]string{{"http://192.168.1.5:2380"}, {"http://192.168.1.6:2380"}, {"http://192.168.1.7:2380"}}
			m.words = []string{"etcd", "--election-timeout", "500", "ETCD_NAME=one"}
			m.files["/etc/nftables.conf"] = "flush ruleset\n"
			m.files["/proc/sys/kernel/osrelease"] = "6.12.0\n"
			m.prints["systemctl is-enabled nftables"] = "enabled\n"
		}},
		{name: "a kernel without a fence", change: func(m *fakeHost) {
			m.Config.Ownership.Enabled, m.unfenced = true, errors.New("the kernel has no netdev egress: nf_tables refused \"add chain\"")
		}, want: []string{`ownership: problem: this host can't own VIPs (hold = "one"): the kernel has no netdev egress`}},
	})
}

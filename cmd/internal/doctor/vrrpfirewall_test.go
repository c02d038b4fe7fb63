package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
)

// TestAdvertDrops examines hosts with VRRP and different firewalls. There must be a finding only if
// the firewall certainly drops multicast adverts.
func TestAdvertDrops(t *testing.T) {
	const (
		chain   = `{"chain":{"family":"inet","table":"filter","name":"input","type":"filter","hook":"input","prio":0,"policy":"drop"}}`
		state   = `{"rule":{"expr":[{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["established","related"]}},{"accept":null}]}}`
		lo      = `{"rule":{"expr":[{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"lo"}},{"accept":null}]}}`
		ssh     = `{"rule":{"expr":[{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":22}},{"accept":null}]}}`
		adverts = `{"rule":{"expr":[{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"protocol"}},"right":"vrrp"}},{"accept":null}]}}`
		source  = `{"rule":{"expr":[{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":"192.168.1.12"}},{"accept":null}]}}`
		jump    = `{"rule":{"expr":[{"jump":{"target":"local"}}]}}`
		refuse  = `{"rule":{"expr":[{"counter":null},{"reject":null}]}}`
	)
	for _, c := range []struct {
		name     string
		nft      []string
		iptables string
		peers    []netip.Addr
		want     string
	}{
		{name: "a policy of nft", nft: []string{state, lo, ssh}, want: "the nft chain inet filter input drops adverts from other routers"},
		{name: "the last rule of nft", nft: []string{ssh, refuse, adverts}, want: "the nft chain inet filter input drops adverts from other routers"},
		{name: "a rule for adverts", nft: []string{state, adverts}},
		{name: "a rule for the other host", nft: []string{state, source}},
		{name: "an unknown chain", nft: []string{state, jump}},
		{name: "unicast", nft: []string{state}, peers: []netip.Addr{netip.MustParseAddr("192.168.1.12")}},
		{name: "a policy of iptables", iptables: ":INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT\n-A INPUT -p tcp -j ACCEPT\n", want: "INPUT of iptables-nft drops adverts from other routers: its policy is DROP"},
		{name: "a rule of iptables", iptables: ":INPUT ACCEPT [0:0]\n-A INPUT -d 224.0.0.0/4 -j DROP\n", want: "INPUT of iptables-nft drops adverts from other routers: -d 224.0.0.0/4 -j DROP"},
		{name: "a rule of iptables for adverts", iptables: ":INPUT DROP [0:0]\n-A INPUT -p 112 -j ACCEPT\n"},
		{name: "a rule of iptables for the LAN", iptables: ":INPUT DROP [0:0]\n-A INPUT -s 192.168.1.0/24 -j ACCEPT\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newFakeHost()
			m.Config.Ownership.Enabled, m.owner = true, &api.OwnerStatus{Gate: "closed", VRRP: &vrrp.Status{Groups: []vrrp.GroupStatus{
				{Name: "main", State: vrrp.Backup, Owner: netip.MustParseAddr("192.168.1.11"), Peers: c.peers},
			}}}
			if c.nft != nil {
				m.prints["nft -j list chains"] = `{"nftables": [` + chain + `]}`
				m.prints["nft -j list chain inet filter input"] = `{"nftables": [` + strings.Join(append([]string{chain}, c.nft...), ",") + `]}`
			}
			if c.iptables != "" {
				m.prints["iptables-nft-save"] = "*filter\n" + c.iptables + "COMMIT\n"
			}
			var got []string
			for _, f := range Examine(t.Context(), m.Host) {
				if strings.Contains(f.What, "adverts from other routers") {
					got = append(got, f.What)
				}
			}
			if text := strings.Join(got, "\n"); c.want == "" && text != "" || !strings.HasPrefix(text, c.want) {
				t.Errorf("findings = %q, want a text that starts with %q", text, c.want)
			}
		})
	}
}

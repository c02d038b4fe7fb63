package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/balancer/failover/vrrp"
	"vipd/cmd/internal/api"
)

// vrrpProtocol is the IP protocol number of VRRP. Firewalls may list the number instead of the
// name.
const vrrpProtocol = "112"

// advertDrops looks for firewall rules that certainly drop other routers' multicast adverts. A rule
// with unknown conditions is assumed to accept adverts. Unicast adverts are not checked, because a
// rule for established connections may accept them.
func advertDrops(ctx context.Context, o *observed, s *api.OwnerStatus) (found []Finding) {
	const effect = "a host that receives no adverts becomes a second owner of the VIPs"
	var groups []netip.Addr
	for _, g := range s.VRRP.Groups {
		if group := vrrp.MulticastGroup(!hasIPv6(&g)); len(g.Peers) == 0 && !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
	}
	for _, b := range o.backends {
		for _, group := range groups {
			if group.Is4() != (b.family == "iptables") {
				continue
			}
			to := packet{Key: balancer.Key{Addr: group, Proto: "vrrp"}}
			if _, by := b.verdictOf(to, "INPUT", 0); by != "" {
				found = append(found, problem(fmt.Sprintf("INPUT of %s drops adverts from other routers: %s", b.program, by), effect,
					b.program+" -I INPUT -p "+vrrpProtocol+" -j ACCEPT"))
			}
		}
	}
	if !o.has("nft") || len(groups) == 0 {
		return found
	}
	objects, _ := o.nft(ctx, "list", "chains") // checkForeignChains reports the error
	for _, object := range objects {
		c := object.Chain
		if c == nil || c.Hook != "input" || c.fromTables() || !slices.ContainsFunc(groups, c.filters) {
			continue
		}
		if rules, err := o.nft(ctx, "list", "chain", c.Family, c.Table, c.Name); err == nil && dropsAdverts(c, rules) {
			found = append(found, problem("the nft chain "+c.place()+" drops adverts from other routers", effect,
				"nft insert rule "+c.place()+" meta l4proto "+vrrpProtocol+" accept"))
		}
	}
	return found
}

// hasIPv6 reports whether a group's adverts are known to use IPv6.
func hasIPv6(g *vrrp.GroupStatus) bool {
	return g.Owner.Is6() || slices.ContainsFunc(g.Routers, func(r vrrp.RouterStatus) bool { return r.Addr.Is6() })
}

// filters reports whether packets of the address's family pass through the chain.
func (c *nftChain) filters(to netip.Addr) bool {
	return c.Family == "inet" || c.Family == "ip" && to.Is4() || c.Family == "ip6" && to.Is6()
}

// dropsAdverts reports whether a chain certainly drops adverts: its policy or a rule without
// conditions drops them, and no earlier rule can accept them.
func dropsAdverts(c *nftChain, objects []nftObject) bool {
	for _, object := range objects {
		switch r := object.Rule; {
		case r == nil:
		case r.dropsAll():
			return true
		case r.ends("accept", "jump", "goto", "queue", "return", "vmap") && !slices.ContainsFunc(r.Expr, excludesAdverts):
			return false
		}
	}
	return c.Policy == "drop"
}

// excludesAdverts reports whether an expression certainly does not match an advert.
func excludesAdverts(e map[string]json.RawMessage) bool {
	var m struct {
		Op   string `json:"op"`
		Left struct {
			Payload struct{ Protocol, Field string }
			Meta    struct{ Key string }
			CT      struct{ Key string }
		} `json:"left"`
		Right json.RawMessage `json:"right"`
	}
	if e["match"] == nil || json.Unmarshal(e["match"], &m) != nil || m.Op != "==" && m.Op != "in" {
		return false
	}
	values := wordsOf(m.Right)
	if values == nil {
		_ = json.Unmarshal(m.Right, &values) // values of other types may match
	}
	lacks := func(words ...string) bool {
		return len(values) > 0 && !slices.ContainsFunc(words, func(word string) bool { return slices.Contains(values, word) })
	}
	payload := m.Left.Payload
	switch {
	case slices.Contains([]string{"tcp", "udp", "icmp", "icmpv6", "sctp", "dccp"}, payload.Protocol):
		return true
	case payload.Field == "protocol" || payload.Field == "nexthdr" || m.Left.Meta.Key == "l4proto":
		return lacks("vrrp", vrrpProtocol)
	case m.Left.CT.Key == "state":
		return lacks("new", "untracked")
	case m.Left.Meta.Key == "iifname" || m.Left.Meta.Key == "iif":
		return slices.Equal(values, []string{"lo"})
	}
	return false
}

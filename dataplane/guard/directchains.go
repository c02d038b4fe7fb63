package guard

import "vipd/dataplane/internal/nft"

// directChains returns chains that exclude the connections of direct frontends from connection
// tracking. Chains of type nat process only tracked packets, so these chains also drop the first
// packets of clients that may not connect. They mark packets for the rules that accept them.
// Clients are refused in input, because only there do refusals have the VIP as their source.
func (l *layout) directChains(bits markBits, with features) []chainRules {
	to := nft.In{Of: l.place, Set: l.sets[directSet]}
	from := nft.In{Of: nft.Concat{nft.Saddr, nft.L4proto, nft.Sport}, Set: l.sets[directSet]} // matches packets of endpoints on this node, and refusals
	silent := nft.In{Of: l.place, Set: l.sets[silentSet]}
	mark := nft.AddBits{Field: nft.Mark, Bits: bits.ours}
	tunnel, icmp := uint32(protocolIPIP), uint32(protocolICMP)
	if l.table.Family == nft.IPv6 {
		tunnel, icmp = protocolIPv6, protocolICMPv6
	}
	untracked := []nft.Rule{rule(to, nft.Notrack), rule(from, nft.Notrack)}
	arriving := []nft.Rule{
		rule(to, mark), rule(isTCP, midway, nft.Return), rule(to, silent, nft.Drop), rule(nft.Is{Field: nft.Iif, Value: loopback}, nft.Return),
		rule(to, nft.In{Of: l.place, Set: l.sets[restrictedSet]}, nft.In{Of: l.sets[allowedSet].Key, Set: l.sets[allowedSet], Not: true}, nft.Drop),
	}
	if with.limited {
		arriving = append(arriving, rule(to, nft.Vmap{Of: l.place, In: l.limits}))
	}
	return []chainRules{
		{base("untracked", nft.Filter, nft.Prerouting, rawPriority), untracked},
		{base("untracked-output", nft.Filter, nft.Output, rawPriority), untracked},
		{base("direct", nft.Filter, nft.Prerouting, manglePriority), arriving},
		{base("direct-output", nft.Filter, nft.Output, manglePriority), []nft.Rule{
			rule(to, mark), rule(from, mark),
			rule(nft.Is{Field: nft.L4proto, Value: tunnel}, nft.In{Of: nft.Daddr, Set: l.sets[tunnelsSet]}, mark),
			rule(nft.Is{Field: nft.L4proto, Value: icmp}, nft.In{Of: nft.Saddr, Set: l.sets[heldSet]}, mark), // path MTU messages for tunnels
			rule(isTCP, midway, nft.Return), rule(to, silent, nft.Drop),
		}},
	}
}

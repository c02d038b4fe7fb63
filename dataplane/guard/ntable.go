package guard

import (
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// tableName is the name of the guard's table in nf_tables, of each family.
const tableName = "vipd-guard"

// Where the guard's chains meet packets: sorting before any mode's own translation (-105, redirects' -103, iptables' -100,
// IPVS's -98), the source after nftables mode has cleared its register in postrouting (95), and before srcnat (100).
const (
	rawPriority      = -300
	manglePriority   = -150
	sortPriority     = -110
	redirectPriority = -103
	inputPriority    = -5
	sourcePriority   = 96
	onlySYN          = nft.FIN | nft.SYN | nft.RST | nft.ACK
	loopback         = 1 // the index of lo in each network namespace
	protocolTCP      = 6
	protocolUDP      = 17
	protocolSCTP     = 132
	protocolICMP     = 1
	protocolICMPv6   = 58
	protocolIPIP     = 4  // IPPROTO_IPIP
	protocolIPv6     = 41 // IPPROTO_IPV6
)

// layout is the guard's table in nf_tables of one family: its sets, and its chains as a mode needs them.
type layout struct {
	table nft.Table
	place nft.Concat
	// sets are by the names of setDefs.
	sets map[string]*nft.Set
	// restarts has the clients that have opened a connection to a dead endpoint again.
	restarts *nft.Set
	// oneArm has the pairs of interfaces by which a connection comes in and goes out whose replies would miss this node. It
	// has names and not indices, because nft refuses a saved rule set with an index of an interface that does not exist at boot.
	oneArm *nft.Set
}

func newLayout(of inet.Family) *layout {
	l := &layout{table: nft.Table{Family: nft.IPv4, Name: tableName}, place: nft.Concat{nft.Daddr, nft.L4proto, nft.Dport}, sets: map[string]*nft.Set{}}
	if of == inet.IPv6 {
		l.table.Family = nft.IPv6
	}
	for _, def := range setDefs() {
		s := &nft.Set{Name: nftName(def.name), Key: l.place}
		switch def.key {
		case byAddress:
			s.Key = nft.Daddr
		case byClients:
			s.Key, s.Interval = append(l.place[:3:3], nft.Saddr), true
		case byMSS:
			s.Data = nft.Maxseg
		case behind:
			s.Key = nft.Concat{nft.Daddr, nft.Dport, nft.Saddr, nft.Sport}
		}
		l.sets[def.name] = s
	}
	l.restarts = newRestartsSet()
	l.oneArm = &nft.Set{Name: "onearm", Key: nft.Concat{nft.IifName, nft.OifName}}
	return l
}

// nftName is the name of a set in nf_tables, where "masquerade" is a word of the language.
func nftName(name string) string {
	if name == masqueradeSet {
		return "always"
	}
	return name
}

// chainOf is a chain with its rules.
type chainOf struct {
	nft.Chain
	rules []nft.Rule
}

// rule is a rule of statements.
func rule(do ...nft.Stmt) nft.Rule { return nft.Rule{Do: do} }

// at matches packets to a place that a set has.
func (l *layout) at(set string, then ...nft.Stmt) nft.Rule {
	return rule(append([]nft.Stmt{nft.In{Of: l.place, Set: l.sets[set]}}, then...)...)
}

// The matches are constants that the compiler can't make.
var (
	// isTCP matches TCP.
	isTCP = nft.Is{Field: nft.L4proto, Value: protocolTCP}
	// midway matches TCP that opens no connection.
	midway = nft.Flags{Mask: onlySYN, Value: nft.SYN, Not: true}
	// opening matches the first segment of either side.
	opening = nft.Flags{Mask: nft.SYN | nft.RST, Value: nft.SYN}
)

// concerns are what only some frontends ask for: special, that they are sorted further, restricted, by their source ranges, silent,
// that they give no answer, rejected, that they refuse, always and never, that endpoints see the node's address or the client's;
// direct, that their packets reach endpoints as they came; clamps, a bound of the segment size; owned, that this host is silent about
// addresses that another one has; roaming, that connections come from other hosts; dead and quiet, that there
// are such endpoints to which a client that opens a connection again could be led, or whose connections it could end. Packets pay for none
// that no frontend asks for.
type concerns struct{ special, restricted, silent, rejected, always, never, direct, clamps, owned, roaming, dead, quiet bool }

// concerns says which of them matter.
func (w *wanted) concerns() concerns {
	return concerns{
		special: w.special.some(), restricted: w.set(restrictedSet).some(),
		silent: w.set(silentSet).some(), rejected: w.set(rejectedSet).some(), always: w.set(masqueradeSet).some(), never: w.set(neverSet).some(),
		direct: w.mode.LocalIn && w.direct.some(), clamps: w.clamps.some(), owned: w.owned.some(), roaming: w.roaming(), dead: w.mode.Resets && w.set(deadSet).some(), quiet: w.mode.LocalIn && w.set(quietSet).some(),
	}
}

// roaming reports whether there are frontends whose connections come from other hosts, in a mode in which they can go on.
func (w *wanted) roaming() bool { return (w.mode.Resets || w.mode.LocalIn) && w.answers.some() }

// some reports whether the set has an entry, or shall have one.
func (m *members) some() bool { return len(m.count)+len(m.have) > 0 }

// chains are all chains for a mode.
func (l *layout) chains(m dataplane.Needs, bits markBits, with concerns) []chainOf {
	all := []chainOf{
		{nft.Chain{Name: "refuse-now"}, []nft.Rule{rule(isTCP, nft.ResetTCP), rule(nft.Unreachable)}},
		// The node's own datagrams are refused in input: a program is told that it may not send where that happens going out.
		{nft.Chain{Name: "refuse"}, []nft.Rule{rule(isTCP, nft.ResetTCP), rule(nft.Is{Field: nft.Oif, Value: loopback}, nft.Return), rule(nft.Unreachable)}},
		{nft.Chain{Name: "by-policy"}, l.policy(m, bits, with)},
		{nft.Chain{Name: "arriving"}, l.arriving(with)},
		{base("prerouting", nft.NAT, nft.Prerouting, sortPriority), append(l.others(with), l.sorted(m, bits, with, "arriving")...)},
		{base("output", nft.NAT, nft.Output, sortPriority), append(l.sorted(m, bits, with, "by-policy"), l.own(bits, with)...)},
		{base("input", nft.Filter, nft.Input, inputPriority), l.input(m, bits, with.direct)},
	}
	all = append(all, l.sizes(m, bits, with.clamps)...)
	if m.Forward {
		all = append(all,
			chainOf{base("source", nft.NAT, nft.Postrouting, sourcePriority), []nft.Rule{
				rule(nft.Bits{Field: nft.CtMark, Mask: bits.ours | bits.never, Value: bits.ours, Not: true}, nft.Return),
				rule(nft.Is{Field: nft.Oif, Value: loopback}, nft.Return), // there are no replies to miss
				// A program of this host, whose packets come in by none: the route to a VIP gives it one source for all endpoints, and
				// one behind another interface may have no route to that address, or filter it by reverse path.
				rule(nft.Is{Field: nft.Iif, Value: 0}, nft.Masquerade),
				rule(nft.In{Of: l.oneArm.Key, Set: l.oneArm}, nft.Masquerade),
				rule(nft.Bits{Field: nft.CtMark, Mask: bits.masquerade, Value: bits.masquerade}, nft.Masquerade),
			}},
		)
	}
	if with.direct {
		all = append(all, l.direct(bits)...)
	}
	if with.dead || with.quiet {
		all = append(all, l.restarted(with)...)
	}
	return all
}

func base(name string, kind nft.ChainType, at nft.Point, priority int32) nft.Chain {
	return nft.Chain{Name: name, Hook: &nft.Hook{Type: kind, Point: at, Priority: priority}}
}

// others are the rules about what other hosts serve.
func (l *layout) others(with concerns) (rules []nft.Rule) {
	// What comes by the network of an address that another host has is not for this one, whatever rules a mode has for it. The gate
	// of vipd owner says the same of all packets, but stands only once vipd has told it about the address. Connections from other
	// networks, of containers on this host, say, are served here.
	if with.owned {
		rules = append(rules, rule(nft.In{Of: nft.Daddr, Set: l.sets[ownedSet]}, nft.GoesBack{}, nft.Drop))
	}
	// An endpoint may be the first that goes on with a connection which comes from another host. Taken for a new one its packet would
	// leave untranslated, and the client's next packets would belong to none. The endpoint sends it again, after the client.
	if with.roaming {
		from := nft.In{Of: nft.Concat{nft.Saddr, nft.L4proto, nft.Sport}, Set: l.sets[answersSet]}
		rules = append(rules, rule(isTCP, midway, from, nft.Drop))
	}
	return rules
}

// sorted tells the packets that open connections to frontends from all others. Where conntrack alone knows connections, TCP
// without a SYN that is new to it belongs to one that was cut, or that conntrack has lost: translated anew, maybe for another
// endpoint, it would hang. Virtual servers leave such packets to the host, which resets them (sloppy_tcp), and so do the
// sockets of a mode that ends connections itself; connections that these still know go on, unless a mode with resets serves
// beside them, whose translation such packets meet first. To a roaming frontend it belongs to a connection that comes from
// another host: translated anew, it goes on. Where there are any, virtual servers take such packets for all frontends
// (sloppy_tcp), so that those for the others are reset here.
func (l *layout) sorted(m dataplane.Needs, bits markBits, with concerns, then string) (rules []nft.Rule) {
	ours := nft.AddBits{Field: nft.CtMark, Bits: bits.ours}
	if m.Resets || with.roaming {
		stray := []nft.Stmt{isTCP, midway, nft.In{Of: l.place, Set: l.sets[servedSet]}}
		if with.roaming {
			stray = append(stray, nft.In{Of: l.place, Set: l.sets[roamingSet], Not: true})
		}
		rules = append(rules, rule(append(stray, ours, nft.ResetTCP)...))
	}
	if with.special {
		rules = append(rules, l.at(specialSet, nft.Goto(then)))
	}
	if !m.Marked {
		rules = append(rules, l.at(frontendsSet, ours))
	}
	return rules
}

// own refuses the node's own connections going out: what has gone out conntrack knows, and would lead nowhere when its port is used
// again.
func (l *layout) own(bits markBits, with concerns) []nft.Rule {
	if !with.rejected {
		return nil
	}
	return []nft.Rule{rule(isTCP, nft.In{Of: l.place, Set: l.sets[rejectedSet]}, nft.AddBits{Field: nft.CtMark, Bits: bits.ours}, nft.ResetTCP)}
}

// arriving keeps out who may not connect.
func (l *layout) arriving(with concerns) (rules []nft.Rule) {
	if with.restricted {
		rules = append(rules,
			rule(nft.Is{Field: nft.Iif, Value: loopback}, nft.Goto("by-policy")), // the node itself always may
			l.at(restrictedSet, nft.In{Of: l.sets[allowedSet].Key, Set: l.sets[allowedSet], Not: true}, nft.Drop))
	}
	return append(rules, rule(nft.Goto("by-policy")))
}

// policy is what frontends ask for besides being recognised. A refusal bears the mark of the connection, by which it is accepted.
func (l *layout) policy(m dataplane.Needs, bits markBits, with concerns) (rules []nft.Rule) {
	mark := func(bit uint32) nft.Stmt { return nft.AddBits{Field: nft.CtMark, Bits: bit} }
	if with.silent {
		rules = append(rules, l.at(silentSet, nft.Drop))
	}
	rules = append(rules, rule(mark(bits.ours)), l.at(rejectedSet, nft.Goto("refuse")))
	if m.Forward && with.always {
		rules = append(rules, l.at(masqueradeSet, mark(bits.masquerade)))
	}
	if m.Forward && with.never {
		rules = append(rules, l.at(neverSet, mark(bits.never)))
	}
	return rules
}

// input keeps held addresses closed but for the ports of services, and ping. Before the first frontend of an address is
// applied they are silent: clients try again after silence, but not after a refusal. For the same reason a port is silent to
// connections that conntrack does not translate because it knew them before the frontend was applied. They are forgotten soon.
func (l *layout) input(m dataplane.Needs, bits markBits, direct bool) []nft.Rule {
	icmp := uint32(protocolICMP)
	if l.table.Family == nft.IPv6 {
		icmp = protocolICMPv6
	}
	rules := []nft.Rule{rule(nft.State(nft.Established|nft.Related), nft.Accept)}
	if direct { // the rest of connections that were opened before
		rules = append(rules, rule(nft.State(nft.Untracked), isTCP, midway, nft.In{Of: l.place, Set: l.sets[directSet]}, nft.Accept))
	}
	rules = append(rules,
		l.at(rejectedSet, nft.Goto("refuse-now")),
		// A redirect may lead to a held address, as may a translation to a program of this host.
		rule(nft.Bits{Field: nft.CtMark, Mask: bits.ours, Value: bits.ours}, nft.Translated{}, nft.Accept),
		rule(nft.In{Of: nft.Daddr, Set: l.sets[heldSet], Not: true}, nft.Accept),
		rule(nft.Is{Field: nft.L4proto, Value: icmp}, nft.Accept),
	)
	if m.TranslatesAll {
		rules = append(rules, rule(nft.State(nft.New), nft.In{Of: l.place, Set: l.sets[servedSet]}, nft.Drop))
	}
	return append(rules,
		l.at(servedSet, nft.Accept),
		rule(nft.In{Of: nft.Daddr, Set: l.sets[pendingSet]}, nft.Drop),
		rule(nft.Goto("refuse-now")),
	)
}

// direct keeps the connections of direct frontends from being tracked, restricts what opens them, for chains of type nat see
// tracked ones alone, and marks their packets for rules that accept them. Refusals are left to input, whose answers come from
// the VIP.
func (l *layout) direct(bits markBits) []chainOf {
	to := nft.In{Of: l.place, Set: l.sets[directSet]}
	from := nft.In{Of: nft.Concat{nft.Saddr, nft.L4proto, nft.Sport}, Set: l.sets[directSet]} // of endpoints on this node, and refusals
	silent := nft.In{Of: l.place, Set: l.sets[silentSet]}
	mark := nft.AddBits{Field: nft.Mark, Bits: bits.ours}
	tunnel, icmp := uint32(protocolIPIP), uint32(protocolICMP)
	if l.table.Family == nft.IPv6 {
		tunnel, icmp = protocolIPv6, protocolICMPv6
	}
	untracked := []nft.Rule{rule(to, nft.Notrack), rule(from, nft.Notrack)}
	return []chainOf{
		{base("untracked", nft.Filter, nft.Prerouting, rawPriority), untracked},
		{base("untracked-output", nft.Filter, nft.Output, rawPriority), untracked},
		{base("direct", nft.Filter, nft.Prerouting, manglePriority), []nft.Rule{
			rule(to, mark), rule(isTCP, midway, nft.Return), rule(to, silent, nft.Drop), rule(nft.Is{Field: nft.Iif, Value: loopback}, nft.Return),
			rule(to, nft.In{Of: l.place, Set: l.sets[restrictedSet]}, nft.In{Of: l.sets[allowedSet].Key, Set: l.sets[allowedSet], Not: true}, nft.Drop),
		}},
		{base("direct-output", nft.Filter, nft.Output, manglePriority), []nft.Rule{
			rule(to, mark), rule(from, mark),
			rule(nft.Is{Field: nft.L4proto, Value: tunnel}, nft.In{Of: nft.Daddr, Set: l.sets[tunnelsSet]}, mark),
			rule(nft.Is{Field: nft.L4proto, Value: icmp}, nft.In{Of: nft.Saddr, Set: l.sets[heldSet]}, mark), // that less fits into a tunnel
			rule(isTCP, midway, nft.Return), rule(to, silent, nft.Drop),
		}},
	}
}

// sizes bound the segment size that both ends of our TCP connections announce: by the links that packets take, where the mode
// forwards them, and, with clamps, by what their frontends ask for.
func (l *layout) sizes(m dataplane.Needs, bits markBits, clamps bool) (all []chainOf) {
	ours := nft.Bits{Field: nft.CtMark, Mask: bits.ours, Value: bits.ours}
	links := rule(isTCP, opening, ours, nft.ClampMSS{})
	var leaving []nft.Rule
	if m.Forward {
		leaving = append(leaving, links)
	}
	if m.LocalIn { // virtual servers put the VIP into answers at the end of forward, and no link leads there
		all = append(all, chainOf{base("segment-size-forward", nft.Filter, nft.Forward, manglePriority), []nft.Rule{links}})
	}
	if clamps {
		opened := nft.Concat{nft.CtDaddr, nft.L4proto, nft.CtDport} // what answers have in common with what they answer
		clamp := rule(isTCP, opening, ours, nft.SetField{Field: nft.Maxseg, To: nft.Lookup{Key: opened, In: l.sets[clampsSet]}})
		leaving = append(leaving, clamp)
		all = append(all, chainOf{base("segment-size-input", nft.Filter, nft.Input, manglePriority), []nft.Rule{clamp}})
	}
	if leaving != nil {
		all = append(all, chainOf{base("segment-size", nft.Filter, nft.Postrouting, manglePriority), leaving})
	}
	return all
}

// optional are the names of the chains that some modes have.
var optional = []string{"segment-size", "segment-size-input", "segment-size-forward", "source", "untracked", "untracked-output", "direct", "direct-output", "restarts", "restarts-output"}

// writeSets makes the table and its sets, unless they are there.
func (l *layout) writeSets(tx *nft.Tx) {
	tx.AddTable(l.table)
	for _, def := range setDefs() {
		tx.AddSet(l.table, l.sets[def.name])
	}
	tx.AddSet(l.table, l.restarts)
	tx.AddSet(l.table, l.oneArm)
}

// write makes the table have the sets and these chains, and no others.
func (l *layout) write(tx *nft.Tx, chains []chainOf) {
	l.writeSets(tx)
	has := map[string]bool{}
	for _, c := range chains {
		has[c.Name] = true
		tx.AddChain(l.table, &c.Chain)
		tx.FlushChain(l.table, c.Name)
	}
	for _, c := range chains {
		for _, r := range c.rules {
			tx.AddRule(l.table, c.Name, r)
		}
	}
	for _, name := range optional {
		if !has[name] {
			tx.AddChain(l.table, &nft.Chain{Name: name}) // to delete one that is not there fails
			tx.FlushChain(l.table, name)
			tx.DeleteChain(l.table, name)
		}
	}
}

// element is an entry of a set.
func element(e entry) nft.Elem {
	key := nft.Bytes{}.Addr(e.Addr)
	if e.To.IsValid() {
		return nft.Elem{Key: key.Port(e.Port).Addr(e.To.Addr()).Port(e.To.Port())}
	}
	if e.Port != 0 {
		key = key.Proto(e.Proto).Port(e.Port)
	}
	if e.MSS != 0 {
		return nft.Elem{Key: key, Data: nft.Bytes{}.Port(e.MSS)}
	}
	if !e.Net.IsValid() {
		return nft.Elem{Key: key}
	}
	first := append(key[:len(key):len(key)], nft.Bytes{}.Addr(e.Net.Masked().Addr())...)
	last := append(key[:len(key):len(key)], nft.Bytes{}.Addr(nft.Last(e.Net))...)
	return nft.Elem{Key: first, KeyEnd: last}
}

func elements(entries []entry) []nft.Elem {
	all := make([]nft.Elem, len(entries))
	for i, e := range entries {
		all[i] = element(e)
	}
	return all
}

// oneArms are the pairs of interfaces by which connections need the node's address for a source: those that leave where they
// came in, as hosts of one segment would answer each other past this node.
func oneArms(m dataplane.Needs, interfaces []Interface) (pairs []nft.Elem) {
	if !m.Forward {
		return nil
	}
	for _, i := range interfaces {
		pairs = append(pairs, nft.Elem{Key: nft.Bytes{}.Name(i.Name).Name(i.Name)})
	}
	return pairs
}

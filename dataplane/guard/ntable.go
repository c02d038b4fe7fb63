package guard

import (
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// tableName is the name of the guard's table in each family.
const tableName = "vipd-guard"

// These are the priorities of the guard's chains. Classification precedes each mode's translation
// (nftables -105, redirects -103, iptables -100, IPVS -98). The source chain follows the chain of
// nftables mode that clears its register in postrouting (95), and precedes srcnat (100).
const (
	rawPriority      = -300
	manglePriority   = -150
	sortPriority     = -110
	redirectPriority = -103
	inputPriority    = -5
	sourcePriority   = 96
	onlySYN          = nft.FIN | nft.SYN | nft.RST | nft.ACK
	loopback         = 1
	protocolTCP      = 6
	protocolUDP      = 17
	protocolSCTP     = 132
	protocolICMP     = 1
	protocolICMPv6   = 58
	protocolIPIP     = 4  // IPPROTO_IPIP
	protocolIPv6     = 41 // IPPROTO_IPV6
)

// layout is one family's guard table: its sets, and its chains for a mode.
type layout struct {
	table nft.Table
	place nft.Concat
	// sets holds the sets by name in setDefs.
	sets map[string]*nft.Set
	// ranges maps the address and open ports of each frontend with a port range to that range's
	// number. inRange is the layout for these frontends: its keys have the range's number instead
	// of a port, and its inRange is nil.
	ranges  *nft.Set
	inRange *layout
	// restarts holds the clients that have sent a new SYN or INIT to a dead endpoint.
	restarts *nft.Set
	// limits maps places (the address, protocol and port of a frontend) to the chains of their
	// limits. full holds the places whose meters were full recently.
	limits, full *nft.Set
	// oneArm holds the pairs of incoming and outgoing interfaces of connections whose replies would
	// bypass this node. It contains names instead of indices, because nft refuses a saved rule set
	// with the index of an interface that does not exist at boot.
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
	l.limits, l.full = newLimitsMap("limits", l.place), newFullSet(l.place)
	l.inRange = l.newInRange()
	l.ranges = &nft.Set{Name: "ranges", Key: l.place, Data: nft.Priority, Interval: true}
	l.restarts = newRestartsSet()
	l.oneArm = &nft.Set{Name: "onearm", Key: nft.Concat{nft.IifName, nft.OifName}}
	return l
}

// nftName returns the name of a set in nf_tables. It differs for "masquerade", because that is an
// nft keyword.
func nftName(name string) string {
	if name == masqueradeSet {
		return "always"
	}
	return name
}

// chainRules is a chain and its rules.
type chainRules struct {
	nft.Chain
	rules []nft.Rule
}

func rule(do ...nft.Stmt) nft.Rule { return nft.Rule{Do: do} }

// matchPlace returns a rule that runs the statements for packets to the places in a set.
func (l *layout) matchPlace(set string, then ...nft.Stmt) nft.Rule {
	return rule(append([]nft.Stmt{nft.In{Of: l.place, Set: l.sets[set]}}, then...)...)
}

// These matches never change. They are variables because Go has no constants of their types.
var (
	// isTCP matches TCP.
	isTCP = nft.Is{Field: nft.L4proto, Value: protocolTCP}
	// midway matches TCP segments that do not open a connection.
	midway = nft.Flags{Mask: onlySYN, Value: nft.SYN, Not: true}
	// opening matches the first segment of each side.
	opening = nft.Flags{Mask: nft.SYN | nft.RST, Value: nft.SYN}
)

func (l *layout) chains(m dataplane.Needs, bits markBits, with features) []chainRules {
	all := []chainRules{
		{nft.Chain{Name: "refuse-now"}, []nft.Rule{rule(isTCP, nft.ResetTCP), rule(nft.Unreachable)}},
		// Datagrams from this node's programs are refused in input. If they were refused in output,
		// sendto would return EPERM.
		{nft.Chain{Name: "refuse"}, []nft.Rule{rule(isTCP, nft.ResetTCP), rule(nft.Is{Field: nft.Oif, Value: loopback}, nft.Return), rule(nft.Unreachable)}},
		{nft.Chain{Name: "by-policy"}, l.policyRules(m, bits, with)},
		{nft.Chain{Name: "arriving"}, l.admissionRules(with, "by-policy")},
		{base("prerouting", nft.NAT, nft.Prerouting, sortPriority), l.prerouting(m, bits, with)},
		{base("output", nft.NAT, nft.Output, sortPriority), l.output(m, bits, with)},
		{base("input", nft.Filter, nft.Input, inputPriority), l.inputRules(m, bits, with)},
	}
	all = append(l.rangeChains(m, bits, with), all...)
	all = append(all, packetMarkChains(bits)...)
	all = append(all, l.segmentSizeChains(m, bits, with)...)
	if m.Forward {
		all = append(all,
			chainRules{base("source", nft.NAT, nft.Postrouting, sourcePriority), []nft.Rule{
				rule(nft.Bits{Field: nft.CtMark, Mask: bits.ours | bits.never, Value: bits.ours, Not: true}, nft.Return),
				rule(nft.Is{Field: nft.Oif, Value: loopback}, nft.Return), // replies on loopback always reach the node
				// A connection from a program on this host has no incoming interface. The route to
				// the VIP determines its source address, whichever endpoint the connection gets. An
				// endpoint behind another interface may have no route to that address, or may drop
				// it because of reverse path filtering.
				rule(nft.Is{Field: nft.Iif, Value: 0}, nft.Masquerade),
				rule(nft.In{Of: l.oneArm.Key, Set: l.oneArm}, nft.Masquerade),
				rule(nft.Bits{Field: nft.CtMark, Mask: bits.masquerade, Value: bits.masquerade}, nft.Masquerade),
			}},
		)
	}
	if with.direct {
		all = append(all, l.directChains(bits, with)...)
	}
	if with.dead || with.quiet {
		all = append(all, l.restartChains(with)...)
	}
	return all
}

func (l *layout) prerouting(m dataplane.Needs, bits markBits, with features) []nft.Rule {
	rules := append(l.otherHostRules(with), l.classifyRules(m, bits, with, "arriving")...)
	if with.ranges {
		rules = append(rules, l.toRange(nft.Goto("ranges-in")))
	}
	return rules
}

// output returns the rules for packets from the host's programs.
func (l *layout) output(m dataplane.Needs, bits markBits, with features) []nft.Rule {
	rules := append(l.classifyRules(m, bits, with, "by-policy"), l.refuseOwnRules(bits, with)...)
	if with.ranges {
		rules = append(rules, l.toRange(nft.Goto("ranges-out")))
	}
	return rules
}

func base(name string, kind nft.ChainType, at nft.Point, priority int32) nft.Chain {
	return nft.Chain{Name: name, Hook: &nft.Hook{Type: kind, Point: at, Priority: priority}}
}

// packetMarkChains returns the chains that clear vipd's bits in packet marks. Other programs copy a
// connection's mark to its packets for policy routing (CONNMARK
// --restore-mark), and a routing rule such as "fwmark 1" does not match if other bits are set.
// These programs copy the mark at manglePriority.
func packetMarkChains(bits markBits) []chainRules {
	all := bits.masquerade | bits.ours | bits.never
	rules := []nft.Rule{rule(
		nft.Bits{Field: nft.Mark, Mask: all, Value: 0, Not: true},
		nft.Bits{Field: nft.CtMark, Mask: bits.ours, Value: bits.ours},
		nft.ClearBits{Field: nft.Mark, Bits: all},
	)}
	return []chainRules{
		{base("packet-marks", nft.Filter, nft.Prerouting, manglePriority+1), rules},
		{base("packet-marks-output", nft.Route, nft.Output, manglePriority+1), rules},
	}
}

// otherHostRules returns the rules for packets to other hosts' addresses, and for replies in
// connections that have moved here from other hosts.
func (l *layout) otherHostRules(with features) (rules []nft.Rule) {
	// If another host has an address, packets from the address's own network are not meant for this
	// host, regardless of the mode's rules. vipd owner's gate also drops such packets, but only
	// after vipd has passed the address to vipd owner. Connections from other networks, such as
	// containers on this host, are served here.
	if with.owned {
		rules = append(rules, rule(nft.In{Of: nft.Daddr, Set: l.sets[ownedSet]}, nft.GoesBack{}, nft.Drop))
	}
	// After a connection has moved here from another host, its first packet here may come from the
	// endpoint. If that packet opened a connection in conntrack, it would leave this host
	// untranslated, and the client's next packets would match no connection. So the packet is
	// dropped, and the endpoint retransmits it after the client's packet.
	if with.roaming {
		from := nft.In{Of: nft.Concat{nft.Saddr, nft.L4proto, nft.Sport}, Set: l.sets[answersSet]}
		rules = append(rules, rule(isTCP, midway, from, nft.Drop))
	}
	return rules
}

// classifyRules returns the rules that recognize packets that open connections to frontends. A TCP
// packet without SYN that is new to conntrack belongs to a connection that was cut or lost. In a
// mode in which only conntrack has connections, translating such a packet again, perhaps to another
// endpoint, would make the connection hang. Virtual servers without sloppy_tcp leave such packets
// to the host, which resets the connection. Sockets also cause a reset, in a mode that terminates
// connections itself. Connections that virtual servers or sockets still have continue, unless a
// mode with resets runs next to them, because its translation precedes them. A packet to a movable
// frontend belongs to a connection from another host, and is translated so that it continues. If
// there are movable frontends, virtual servers accept such packets for all frontends (sloppy_tcp),
// so packets to the other frontends are reset here.
func (l *layout) classifyRules(m dataplane.Needs, bits markBits, with features, then string) (rules []nft.Rule) {
	ours := nft.AddBits{Field: nft.CtMark, Bits: bits.ours}
	if m.Resets || with.roaming {
		stray := []nft.Stmt{isTCP, midway, nft.In{Of: l.place, Set: l.sets[servedSet]}}
		if with.roaming {
			stray = append(stray, nft.In{Of: l.place, Set: l.sets[roamingSet], Not: true})
		}
		rules = append(rules, rule(append(stray, ours, nft.ResetTCP)...))
	}
	if with.special {
		rules = append(rules, l.matchPlace(specialSet, nft.Goto(then)))
	}
	if !m.Marked {
		rules = append(rules, l.matchPlace(frontendsSet, ours))
	}
	return rules
}

// refuseOwnRules returns the output rules that reset the node's own TCP connections to rejected
// frontends. Otherwise conntrack would create an entry without a destination, and the entry would
// affect a later connection from the same port.
func (l *layout) refuseOwnRules(bits markBits, with features) []nft.Rule {
	if !with.rejected {
		return nil
	}
	return []nft.Rule{rule(isTCP, nft.In{Of: l.place, Set: l.sets[rejectedSet]}, nft.AddBits{Field: nft.CtMark, Bits: bits.ours}, nft.ResetTCP)}
}

// admissionRules returns the rules that drop packets of clients that may not connect, and limit
// other clients' connections.
func (l *layout) admissionRules(with features, then string) (rules []nft.Rule) {
	if with.restricted || with.limited {
		rules = append(rules, rule(nft.Is{Field: nft.Iif, Value: loopback}, nft.Goto(then))) // this node's own clients may always connect
	}
	if with.restricted {
		rules = append(rules,
			l.matchPlace(restrictedSet, nft.In{Of: l.sets[allowedSet].Key, Set: l.sets[allowedSet], Not: true}, nft.Drop))
	}
	return append(append(rules, l.toLimits(with)...), rule(nft.Goto(then)))
}

// policyRules returns the rules that drop, refuse or mark packets, depending on the features of
// their frontends. A refusal has the connection's mark, so other programs' filters accept it.
func (l *layout) policyRules(m dataplane.Needs, bits markBits, with features) (rules []nft.Rule) {
	mark := func(bit uint32) nft.Stmt { return nft.AddBits{Field: nft.CtMark, Bits: bit} }
	if with.silent {
		rules = append(rules, l.matchPlace(silentSet, nft.Drop))
	}
	rules = append(rules, rule(mark(bits.ours)), l.matchPlace(rejectedSet, nft.Goto("refuse")))
	if m.Forward && with.always {
		rules = append(rules, l.matchPlace(masqueradeSet, mark(bits.masquerade)))
	}
	if m.Forward && with.never {
		rules = append(rules, l.matchPlace(neverSet, mark(bits.never)))
	}
	return rules
}

// inputRules returns rules that close held addresses, except for ping and the ports of services.
// Before its first frontend is applied, an address is silent, because clients retry after silence,
// but not after a refusal. For the same reason, a port is silent to connections that are older than
// the applied frontend, which conntrack does not translate. The mode soon makes conntrack forget
// such connections.
func (l *layout) inputRules(m dataplane.Needs, bits markBits, with features) []nft.Rule {
	icmp := uint32(protocolICMP)
	if l.table.Family == nft.IPv6 {
		icmp = protocolICMPv6
	}
	rules := []nft.Rule{rule(nft.State(nft.Established|nft.Related), nft.Accept)}
	if with.direct { // accept packets of connections that were already open
		rules = append(rules, rule(nft.State(nft.Untracked), isTCP, midway, nft.In{Of: l.place, Set: l.sets[directSet]}, nft.Accept))
	}
	rules = append(rules, l.matchPlace(rejectedSet, nft.Goto("refuse-now")))
	if with.ranges {
		rules = append(rules, l.toRange(nft.Jump("ranges-rejected")))
	}
	rules = append(rules,
		// The destination of a redirect, or of a translation to a program on this host, may be a
		// held address.
		rule(nft.Bits{Field: nft.CtMark, Mask: bits.ours, Value: bits.ours}, nft.Translated{}, nft.Accept),
		rule(nft.In{Of: nft.Daddr, Set: l.sets[heldSet], Not: true}, nft.Accept),
		rule(nft.Is{Field: nft.L4proto, Value: icmp}, nft.Accept),
	)
	rules = append(rules, l.servedRules(m)...)
	if with.ranges {
		rules = append(rules, l.toRange(nft.Jump("ranges-served")))
	}
	return append(rules,
		rule(nft.In{Of: nft.Daddr, Set: l.sets[pendingSet]}, nft.Drop),
		rule(nft.Goto("refuse-now")),
	)
}

// servedRules returns the rules for packets to this host that no mode has translated.
func (l *layout) servedRules(m dataplane.Needs) (rules []nft.Rule) {
	if m.TranslatesAll {
		rules = append(rules, rule(nft.State(nft.New), nft.In{Of: l.place, Set: l.sets[servedSet]}, nft.Drop))
	}
	if l.inRange == nil { // a virtual server forwards the packet with its priority
		return append(rules, l.matchPlace(servedSet, nft.ClearPriority{}, nft.Accept))
	}
	return append(rules, l.matchPlace(servedSet, nft.Accept))
}

// segmentSizeChains returns chains that limit the segment size announced by both ends of our TCP
// connections: to the path MTU, and to the frontend's limit. Looking up the path's MTU is the most
// expensive statement of a first packet, and even an established packet enters the chains. So they
// exist only while a limit can have an effect.
func (l *layout) segmentSizeChains(m dataplane.Needs, bits markBits, with features) (all []chainRules) {
	ours := nft.Bits{Field: nft.CtMark, Mask: bits.ours, Value: bits.ours}
	links := rule(isTCP, opening, ours, nft.ClampMSS{})
	var leaving []nft.Rule
	if with.links {
		leaving = append(leaving, links)
	}
	if with.links && m.LocalIn { // virtual servers translate replies at the end of forward; rules after that can't match them
		all = append(all, chainRules{base("segment-size-forward", nft.Filter, nft.Forward, manglePriority), []nft.Rule{links}})
	}
	if with.clamps {
		opened := nft.Concat{nft.CtDaddr, nft.L4proto, nft.CtDport} // the same for both directions of a connection
		clamp := rule(isTCP, opening, ours, nft.SetField{Field: nft.Maxseg, To: nft.Lookup{Key: opened, In: l.sets[clampsSet]}})
		leaving = append(leaving, clamp)
		all = append(all, chainRules{base("segment-size-input", nft.Filter, nft.Input, manglePriority), []nft.Rule{clamp}})
	}
	if leaving != nil {
		all = append(all, chainRules{base("segment-size", nft.Filter, nft.Postrouting, manglePriority), leaving})
	}
	return all
}

// optionalChains lists the names of the chains that only some modes have.
var optionalChains = []string{"segment-size", "segment-size-input", "segment-size-forward", "source", "untracked", "untracked-output", "direct", "direct-output", "restarts", "restarts-output",
	"ranges-in", "ranges-out", "ranges-arriving", "ranges-policy", "ranges-rejected", "ranges-served", "ranges-restarts",
}

// writeSets creates the table and its sets if they do not exist.
func (l *layout) writeSets(tx *nft.Tx, with features) {
	tx.AddTable(l.table)
	for _, def := range setDefs() {
		tx.AddSet(l.table, l.sets[def.name])
	}
	if with.limited {
		tx.AddSet(l.table, l.limits)
		tx.AddSet(l.table, l.full)
		tx.AddSet(l.table, l.inRange.limits)
	}
	if with.ranges {
		tx.AddSet(l.table, l.ranges)
		for _, def := range setDefs() {
			if s := l.inRange.sets[def.name]; s != l.sets[def.name] {
				tx.AddSet(l.table, s)
			}
		}
	}
	tx.AddSet(l.table, l.restarts)
	tx.AddSet(l.table, l.oneArm)
}

// write writes the table's sets and chains for a mode. The chains of limits are separate.
func (l *layout) write(tx *nft.Tx, m dataplane.Needs, bits markBits, with features) {
	chains, has := l.chains(m, bits, with), map[string]bool{}
	for _, c := range chains {
		has[c.Name] = true
	}
	l.writeSets(tx, with)
	for _, c := range chains {
		tx.AddChain(l.table, &c.Chain)
		tx.FlushChain(l.table, c.Name)
	}
	for _, c := range chains {
		for _, r := range c.rules {
			tx.AddRule(l.table, c.Name, r)
		}
	}
	for _, name := range optionalChains {
		if !has[name] {
			tx.AddChain(l.table, &nft.Chain{Name: name}) // added first because deleting a missing chain fails
			tx.FlushChain(l.table, name)
			tx.DeleteChain(l.table, name)
		}
	}
}

// oneArmPairs returns the interface pairs whose connections must be masqueraded. Such a connection
// leaves through the interface on which it arrived, so an endpoint on the same link as the client
// would reply directly.
func oneArmPairs(m dataplane.Needs, interfaces []Interface) (pairs []nft.Elem) {
	if !m.Forward {
		return nil
	}
	for _, i := range interfaces {
		pairs = append(pairs, nft.Elem{Key: nft.Bytes{}.Name(i.Name).Name(i.Name)})
	}
	return pairs
}

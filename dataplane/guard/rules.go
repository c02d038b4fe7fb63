package guard

import (
	"fmt"
	"net/netip"
	"slices"

	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// plan is all that the guard's rules depend on.
type plan struct {
	family inet.Family
	bits   markBits
	// mode is the one in use.
	mode dataplane.Needs
	// sources: the kernel has the sets for source ranges; arrivals, that rules note there where packets came in; hairpin,
	// that it runs the program which finds packets to their own source; randomFully, that it chooses ports of masqueraded
	// connections at random; clamp, that it changes the segment size that TCP connections announce.
	sources, arrivals, hairpin, randomFully, clamp bool
	// vips contain the addresses of all frontends that are looked for, held those that vipd added, and direct those of
	// the frontends whose packets reach endpoints as they came; none: there are none.
	vips, held, direct cover
	// owned contain the addresses that another host may have.
	owned cover
	// roaming: connections come from other hosts.
	roaming bool
	// directed: there are frontends of the last kind, for the rules beside a guard in nf_tables.
	directed bool
	// clamps are the bounds of segment sizes, sorted.
	clamps []ipset.Entry
	// interfaces are those that packets are forwarded between, by name.
	interfaces []string
	// redirects are rules that lead to ports of this host, see Redirects.
	redirects []string
}

// markBits are the bits of marks that the guard uses.
type markBits struct {
	// masquerade in a packet's mark: the connection that it opens gets the node's address for a source.
	masquerade uint32
	// ours in a connection's mark: it was opened to a frontend. It is another bit than masquerade, because others copy
	// marks of connections to packets (CONNMARK --restore-mark).
	ours uint32
	// never in a connection's mark: its source is not changed, for whatever reason.
	never uint32
}

// newMarkBits returns the bits from the one that is configured on; after the highest comes the lowest.
func newMarkBits(bit int) markBits {
	at := func(i int) uint32 { return 1 << ((bit + i) % 32) }
	return markBits{masquerade: at(0), ours: at(1), never: at(2)}
}

// mark is the rule that makes a connection ours.
func (b markBits) mark() string { return "-j CONNMARK --set-xmark " + both(b.ours) }

// Mark is the rule of iptables, without "-A" and a chain's name, by which a mode marks the connections to its frontends, where
// dataplane.Needs.Marked says that it does. The bit is Options.MasqueradeBit.
func Mark(bit int) string { return newMarkBits(bit).mark() }

// partDef is a piece of the guard in one table, that comes and goes by itself.
type partDef struct {
	name  string
	table string
	// forward: it is of use only where the mode forwards.
	forward bool
	// special: where the mode marks connections, it is of use only to frontends that ask for more.
	special bool
	// direct: it is of use only to frontends whose packets reach endpoints as they came.
	direct bool
	// clamps: it is of use only to frontends with a bound of the segment size.
	clamps bool
	// others: it is of use only to frontends on addresses that other hosts have, too.
	others bool
	chains func(*plan) []xtables.Chain
	jumps  func(*plan) []jump
}

// jump is a rule of one of the kernel's own chains that leads to one of ours, as iptables -S writes it.
type jump struct {
	base string
	rule string
}

// always are jumps that do not depend on the plan.
func always(jumps ...jump) func(*plan) []jump { return func(*plan) []jump { return jumps } }

// insertion is the line that puts the jump before all that others have there.
func (j jump) insertion() string { return "-I " + j.base + " 1 " + j.rule }

// othersPart is the part about what other hosts serve, marksPart the one that restricts, verdictsPart the one that lets our connections through, untrackedPart
// the one that keeps connections from being tracked, and clampsPart the one that bounds segment sizes.
const (
	othersPart    = "other hosts"
	marksPart     = "marks"
	verdictsPart  = "verdicts"
	untrackedPart = "half connections"
	clampsPart    = "segment sizes"
)

// parts is the whole of the guard, in the order in which it is put up.
func parts() []partDef {
	return []partDef{
		{name: "held addresses", table: "filter", chains: heldChains, jumps: always(jump{"INPUT", "-j VIPD-HELD"})},
		{name: othersPart, table: "mangle", others: true, chains: otherChains, jumps: always(jump{"PREROUTING", "-j VIPD-OTHERS"})},
		// Before every mode's own place: IPVS takes traffic before filter OUTPUT, NAT rewrites its destination.
		{name: marksPart, table: "mangle", special: true, chains: markChains, jumps: always(jump{"PREROUTING", "-j VIPD-PREROUTING"}, jump{"OUTPUT", "-j VIPD-OUTPUT"})},
		{name: untrackedPart, table: "raw", forward: true, direct: true, chains: untrackedChains, jumps: always(jump{"PREROUTING", "-j VIPD-UNTRACKED"}, jump{"OUTPUT", "-j VIPD-UNTRACKED"})},
		{name: "direct verdicts", table: "filter", forward: true, direct: true, chains: directChains, jumps: always(jump{"INPUT", "-j VIPD-DIRECT-IN"}, jump{"OUTPUT", "-j VIPD-DIRECT-OUT"})},
		{name: verdictsPart, table: "filter", chains: verdictChains, jumps: verdictJumps},
		{name: clampsPart, table: "mangle", clamps: true, chains: clampChains, jumps: clampJumps},
		{name: "masquerade", table: "nat", forward: true, chains: masqueradeChains, jumps: masqueradeJumps},
	}
}

// fresh are the states of packets that open connections, as far as is known.
const fresh = "-m conntrack --ctstate NEW,UNTRACKED"

// heldChains keep the held addresses closed but for the ports of services, and ping. Before the first of an address's
// frontends is applied they are silent.
func heldChains(p *plan) []xtables.Chain {
	icmp := "icmp"
	if p.family == inet.IPv6 {
		icmp = "ipv6-icmp"
	}
	guarded := []string{
		p.notIn(heldSet, "dst") + " -j RETURN",
		"-p " + icmp + " -j RETURN",
	}
	if p.mode.TranslatesAll { // see layout.input
		guarded = append(guarded, older+" "+p.in(servedSet, "dst,dst")+" -j DROP")
	}
	guarded = append(guarded, p.in(servedSet, "dst,dst")+" -j RETURN")
	if len(p.direct) > 0 {
		guarded = append(guarded, halfway+" "+p.in(directSet, "dst,dst")+" -j RETURN")
	}
	guarded = append(guarded, p.in(pendingSet, "dst")+" -j DROP") // clients try again after silence, but not after a refusal
	return []xtables.Chain{
		xtables.NewChain("VIPD-HELD", dispatch(p.held, "VIPD-GUARD")...), xtables.NewChain("VIPD-GUARD", append(guarded, refusal(p.family)...)...),
	}
}

// older matches new packets that conntrack did not translate because it knew their flow before.
const older = "-m conntrack ! --ctstate DNAT"

// otherChains are layout.others in iptables. It can't tell by which interface an address is reached, so that connections from other
// networks to what another host has meet silence, too.
func otherChains(p *plan) []xtables.Chain {
	var rules []string
	for _, n := range p.owned {
		rules = append(rules, fmt.Sprintf("-d %s -m addrtype ! --dst-type LOCAL %s -j DROP", n, p.in(ownedSet, "dst")))
	}
	if p.roaming {
		rules = append(rules, stray+" "+p.in(answersSet, "src,src")+" -j DROP")
	}
	return []xtables.Chain{xtables.NewChain("VIPD-OTHERS", rules...)}
}

// stray matches TCP packets that are new to conntrack and open no connection.
const stray = "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -m conntrack --ctstate NEW"

// markChains recognise the packets that open connections to frontends, and mark them and their connections.
func markChains(p *plan) []xtables.Chain {
	special := []string{"-g VIPD-POLICY"}
	if p.sources {
		special = []string{
			"-i lo -g VIPD-POLICY", // the node itself always may
			p.in(restrictedSet, "dst,dst") + " " + p.notIn(allowedSet, "dst,dst,src") + " -j DROP",
			"-g VIPD-POLICY",
		}
	}
	policy := []string{p.in(silentSet, "dst,dst") + " -j DROP"}
	if p.mode.Forward {
		policy = append(policy,
			p.in(masqueradeSet, "dst,dst")+" -j MARK --set-xmark "+both(p.bits.masquerade),
			p.in(neverSet, "dst,dst")+" -j CONNMARK --set-xmark "+both(p.bits.never),
		)
	}
	sorted := func(then string) (rules []string) {
		if len(p.direct) > 0 {
			rules = append(rules, halfway+" -j RETURN")
		}
		if !p.mode.Marked {
			rules = append(rules, p.in(frontendsSet, "dst,dst")+" -g VIPD-OURS")
		}
		return append(rules, p.in(specialSet, "dst,dst")+" -g "+then)
	}
	ours := []string{p.bits.mark()}
	if p.arrivals {
		ours = append([]string{"! -i lo -j SET --add-set " + setName(arrivedSet, p.family) + " src,src --exist"}, ours...)
	}
	return []xtables.Chain{
		xtables.NewChain("VIPD-PREROUTING", dispatch(p.vips, "VIPD-ARRIVING")...),
		xtables.NewChain("VIPD-OUTPUT", dispatch(p.vips, "VIPD-LEAVING")...),
		xtables.NewChain("VIPD-ARRIVING", sorted("VIPD-SPECIAL")...),
		xtables.NewChain("VIPD-LEAVING", sorted("VIPD-POLICY")...),
		xtables.NewChain("VIPD-SPECIAL", special...),
		xtables.NewChain("VIPD-POLICY", append(policy, "-g VIPD-OURS")...),
		xtables.NewChain("VIPD-OURS", ours...),
	}
}

const opensTCP = "-p tcp -m tcp --tcp-flags SYN,RST SYN"

// clampChains have a rule for each frontend with a bound, for no set matches the place that a connection was opened to, which
// is all that answers have in common with it. Only packets that open our connections meet them.
func clampChains(p *plan) []xtables.Chain {
	c := xtables.NewChain("VIPD-MSS")
	for _, e := range p.clamps {
		c.Rules = append(c.Rules, fmt.Sprintf("%s -m conntrack --ctorigdst %s --ctorigdstport %d -j TCPMSS --set-mss %d", opensTCP, e.Addr, e.Port, e.MSS))
	}
	return []xtables.Chain{c}
}

// clampJumps see packets on their way out, to endpoints and clients, and to programs of this host.
func clampJumps(p *plan) []jump {
	to := fmt.Sprintf("%s -m connmark --mark %s -j VIPD-MSS", opensTCP, both(p.bits.ours))
	return []jump{{"POSTROUTING", to}, {"INPUT", to}}
}

// clampRule bounds the segment size that both ends of a TCP connection announce by the links that packets really take. A
// program of the host announces 65495, what fits the loopback device of the VIP's route, and a client what fits its own
// link. Where a link to the endpoint takes less and the messages that say so are filtered, the connection would hang.
const clampRule = opensTCP + " -j TCPMSS --clamp-mss-to-pmtu"

// verdictChains let in and through what belongs to our connections, and refuse for frontends without active backends.
func verdictChains(p *plan) []xtables.Chain {
	const (
		known      = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
		translated = "-m conntrack --ctstate DNAT"
	)
	refused := p.in(rejectedSet, "dst,dst") + " -g VIPD-REFUSE"
	var oneArm []string
	for _, name := range p.interfaces {
		oneArm = append(oneArm, fmt.Sprintf("-i %s -o %s -m connmark ! --mark %s -j MARK --set-xmark %s",
			name, name, both(p.bits.never), both(p.bits.masquerade)))
	}
	// A datagram that stays on the host is refused when it comes in: a program is told that it may not send, not that nothing listens,
	// where that happens going out. A connection is not: what has gone out conntrack knows, and would lead nowhere when its port is used
	// again.
	leaving := []string{"-p tcp -m conntrack --ctstate NEW " + refused, "! -o lo -m conntrack --ctstate NEW " + refused}
	if p.mode.LocalIn { // what virtual servers forward goes out here; what programs of this host begin is for others to judge
		leaving = append([]string{known, "-m addrtype ! --src-type LOCAL -j ACCEPT"}, leaving...)
	}
	if p.mode.Forward {
		// The route to a VIP gives programs of this host one source for all endpoints. An endpoint behind another interface
		// may have no route to that address, or filter it by reverse path.
		leaving = append(leaving, fmt.Sprintf("-m conntrack --ctstate NEW -m connmark ! --mark %s -j MARK --set-xmark %s",
			both(p.bits.never), both(p.bits.masquerade)))
	}
	cut := p.cut()
	leaving = append(cut, leaving...)
	forward := slices.Concat([]string{known}, cut, []string{translated + " -g VIPD-FORWARD-NEW", refused})
	if p.clamp && p.mode.Forward {
		forward, leaving = append([]string{clampRule}, forward...), append([]string{clampRule}, leaving...)
	}
	untranslated := []string{p.in(servedSet, "dst,dst") + " -j ACCEPT"}
	if p.mode.TranslatesAll { // VIPD-GUARD drops it
		untranslated = nil
	}
	return []xtables.Chain{
		xtables.NewChain("VIPD-FORWARD", forward...),
		xtables.NewChain("VIPD-FORWARD-NEW", "-j VIPD-ONE-ARM", "-j ACCEPT"),
		xtables.NewChain("VIPD-ONE-ARM", oneArm...),
		xtables.NewChain("VIPD-INPUT", slices.Concat([]string{known}, cut, []string{translated + " -j ACCEPT"}, untranslated, []string{refused})...),
		xtables.NewChain("VIPD-OUTPUT", leaving...),
		xtables.NewChain("VIPD-REFUSE", refusal(p.family)...),
	}
}

// cut are the rules that reset TCP connections which are new to conntrack without a SYN: they were cut, or conntrack has
// lost them. Where conntrack alone knows their endpoints, such a packet was translated anew, maybe for another endpoint,
// which answers with its own reset or, from TIME_WAIT, with none. Virtual servers leave such packets to the
// host, which resets them (sloppy_tcp), and so do the sockets of a mode that ends connections itself; connections that
// these still know go on, unless a mode with resets serves beside them, whose translation such packets meet first. What is for
// a roaming frontend, or was translated for an endpoint of one, goes on: it comes from another host. Where there are any,
// virtual servers take such packets for all frontends.
func (p *plan) cut() []string {
	if !p.mode.Resets && !p.roaming {
		return nil
	}
	rule := stray
	if p.roaming {
		rule += " " + p.notIn(answersSet, "dst,dst") + " " + p.notIn(roamingSet, "dst,dst")
	}
	return []string{rule + " -j REJECT --reject-with tcp-reset"}
}

func verdictJumps(p *plan) []jump {
	marked := "-m connmark --mark " + both(p.bits.ours) + " -j "
	return []jump{{"FORWARD", marked + "VIPD-FORWARD"}, {"INPUT", marked + "VIPD-INPUT"}, {"OUTPUT", marked + "VIPD-OUTPUT"}}
}

// masqueradeChains give connections the node's address for a source where replies would miss it otherwise.
func masqueradeChains(p *plan) []xtables.Chain {
	rules := []string{"-m mark --mark " + both(p.bits.masquerade) + " -g VIPD-MASQUERADE"}
	// VIPD-ONE-ARM marks what comes from its own destination, too, for it goes out where it came in: a mode that sends
	// all packets through FORWARD needs no more.
	if p.hairpin && !p.mode.Marked {
		rules = append(rules, "-m bpf --bytecode \""+hairpinProgram(p.family)+"\" -g VIPD-MASQUERADE")
	}
	if p.arrivals {
		rules = append(rules, p.in(arrivedSet, "src,dst")+" -g VIPD-MASQUERADE") // it leaves where it came in
	}
	masquerade := "-j MASQUERADE"
	if p.randomFully {
		masquerade += " --random-fully"
	}
	return []xtables.Chain{
		xtables.NewChain("VIPD-POSTROUTING", rules...),
		xtables.NewChain("VIPD-MASQUERADE", fmt.Sprintf("-j MARK --set-xmark 0x0/%#x", p.bits.masquerade), masquerade),
	}
}

// masqueradeJumps leave alone what is never to change, and what stays on the host: there are no replies to miss.
func masqueradeJumps(p *plan) []jump {
	if p.mode.Marked {
		return []jump{{"POSTROUTING", "! -o lo -m mark --mark " + both(p.bits.masquerade) + " -j VIPD-POSTROUTING"}}
	}
	return []jump{{"POSTROUTING", fmt.Sprintf("! -o lo -m connmark --mark %#x/%#x -j VIPD-POSTROUTING", p.bits.ours, p.bits.ours|p.bits.never)}}
}

// halfway matches packets of connections that are not tracked, but for those that open one.
const halfway = "-p tcp ! --syn -m conntrack --ctstate UNTRACKED"

// untrackedChains keep the connections of direct frontends from being tracked. Their answers pass by this node, so to it
// they would stay new forever, what follows the first packet would belong to none, and what is idle for two minutes
// would be new once more.
func untrackedChains(p *plan) []xtables.Chain {
	var rules []string
	for _, n := range p.direct {
		rules = append(rules, fmt.Sprintf("-d %s %s -j CT --notrack", n, p.in(directSet, "dst,dst")))
	}
	for _, n := range p.direct { // of endpoints on this node, and refusals
		rules = append(rules, fmt.Sprintf("-s %s %s -j CT --notrack", n, p.in(directSet, "src,src")))
	}
	return []xtables.Chain{xtables.NewChain("VIPD-UNTRACKED", rules...)}
}

// directChains let in and out what belongs to direct frontends, and tunnels to their endpoints.
func directChains(p *plan) []xtables.Chain {
	tunnel, icmp, errors := "4", "-p icmp -m icmp --icmp-type", []int{3} // IPPROTO_IPIP; unreachable
	if p.family == inet.IPv6 {
		tunnel, icmp, errors = "41", "-p ipv6-icmp -m icmp6 --icmpv6-type", []int{1, 2} // IPPROTO_IPV6; unreachable, too big
	}
	leaving := []string{
		"-m conntrack --ctstate INVALID,UNTRACKED -j VIPD-DIRECT", // a refusal is the answer to nothing that is known
		"-p " + tunnel + " " + p.in(tunnelsSet, "dst") + " -j ACCEPT",
	}
	for _, n := range p.direct {
		for _, e := range errors { // refusals, and that less fits into a tunnel
			leaving = append(leaving, fmt.Sprintf("-s %s %s %d -j ACCEPT", n, icmp, e))
		}
	}
	to := p.in(directSet, "dst,dst")
	return []xtables.Chain{
		xtables.NewChain("VIPD-DIRECT-OUT", leaving...),
		xtables.NewChain("VIPD-DIRECT-IN", "-m conntrack --ctstate UNTRACKED -g VIPD-DIRECT"),
		xtables.NewChain("VIPD-DIRECT", to+" -g VIPD-DIRECT-TO", p.in(directSet, "src,src")+" -j ACCEPT"),
		xtables.NewChain("VIPD-DIRECT-TO", append([]string{
			halfway + " -j ACCEPT",
			p.in(servedSet, "dst,dst") + " -j ACCEPT",
			p.notIn(rejectedSet, "dst,dst") + " -j RETURN",
		}, refusal(p.family)...)...),
	}
}

// dispatch sends what opens connections to some networks on to a chain.
func dispatch(to []netip.Prefix, target string) []string {
	var rules []string
	for _, n := range to {
		rules = append(rules, fmt.Sprintf("-d %s %s -g %s", n, fresh, target))
	}
	return rules
}

// refusal are the rules that tell clients no.
func refusal(family inet.Family) []string {
	unreachable := "icmp-port-unreachable"
	if family == inet.IPv6 {
		unreachable = "icmp6-port-unreachable"
	}
	return []string{"-p tcp -j REJECT --reject-with tcp-reset", "-j REJECT --reject-with " + unreachable}
}

// in matches packets that a set has; notIn those that it has not.
func (p *plan) in(set, how string) string {
	return "-m set --match-set " + setName(set, p.family) + " " + how
}

func (p *plan) notIn(set, how string) string {
	return "-m set ! --match-set " + setName(set, p.family) + " " + how
}

// both writes a bit as value and mask.
func both(bit uint32) string { return fmt.Sprintf("%#x/%#x", bit, bit) }

// MarkBits are the bits of a connection's mark that say it was opened to a frontend, for modes that mark connections by
// themselves (dataplane.Needs.Marked). The bit is Options.MasqueradeBit.
func MarkBits(bit int) uint32 { return newMarkBits(bit).ours }

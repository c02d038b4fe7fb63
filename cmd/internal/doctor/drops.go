package doctor

import (
	"fmt"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
)

// reach is how much of the traffic something drops.
type reach int

const (
	nothing reach = iota
	some
	all
)

// verdict is what a list of rules does to connections to VIPs.
type verdict struct {
	drops reach
	// by are the rules of the list that drop.
	by []string
}

// before returns the rules of others that stand in front of vipd's own jump, and that jump; "" without one.
func (b *backend) before(chain string) (others []string, jump string) {
	rules := b.chainOf("filter", chain).rules
	for i, rule := range rules {
		if target(rule) == "VIPD-"+chain {
			return rules[:i], rule
		}
	}
	return nil, ""
}

// deepest bounds how far jumps are followed. The kernel allows no loops, and iptables' own rule sets are flatter.
const deepest = 16

// judge says what rules of the table filter drop of the connections to VIPs.
func (v *visit) judge(b *backend, rules []string, depth int) verdict {
	var sum verdict
	returns := false
	for _, rule := range rules {
		matchesAll := unconditional(rule)
		to := target(rule)
		drops := nothing
		switch {
		case to == "ACCEPT" && (matchesAll || v.letsVIPsThrough(rule)):
			return sum
		case to == "RETURN" && matchesAll:
			return sum
		case to == "RETURN":
			returns = true
		case irrelevant(rule):
		case to == "DROP" || to == "REJECT":
			drops = all
		case depth < deepest && b.tables["filter"][to] != nil && !strings.HasPrefix(to, "VIPD-"):
			drops = v.judge(b, b.tables["filter"][to].rules, depth+1).drops
		}
		if drops == all && (!matchesAll || returns) {
			drops = some
		}
		if drops > nothing {
			sum.by = append(sum.by, rule)
		}
		if sum.drops = max(sum.drops, drops); sum.drops == all {
			return sum
		}
	}
	return sum
}

// target is where a rule sends what it matches; "" means it has none.
func target(rule string) string {
	words := strings.Fields(rule)
	for i := len(words) - 2; i >= 0; i-- {
		if words[i] == "-j" || words[i] == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// unconditional reports whether a rule matches every packet: whether there is nothing but a comment before its target.
func unconditional(rule string) bool {
	rest := withoutComment(rule)
	return strings.HasPrefix(rest, "-j ") || strings.HasPrefix(rest, "-g ")
}

// irrelevant reports whether a rule is about packets that vipd accepts nowhere: those that belong to no connection, and
// pings.
func irrelevant(rule string) bool {
	words := strings.Fields(rule)
	is := func(option string, values ...string) bool {
		i := slices.Index(words, option)
		return i >= 0 && i+1 < len(words) && slices.Contains(values, words[i+1]) && (i == 0 || words[i-1] != "!")
	}
	return is("--ctstate", "INVALID") || is("--state", "INVALID") || is("-p", "icmp", "ipv6-icmp", "icmpv6")
}

// connectionMark is the bit in a connection's mark that says that it is to a frontend.
func (v *visit) connectionMark() uint32 { return 1 << ((v.Config.IPTables.MasqueradeBit + 1) % 32) }

// translates reports whether connection tracking knows connections to VIPs as translated. It does not know of what
// virtual servers translate.
func (v *visit) translates() bool { return v.mode().Name != config.IPVSMode }

// letsVIPsThrough reports whether the condition of a rule is one that connections to VIPs fulfil.
func (v *visit) letsVIPsThrough(rule string) bool {
	mark := v.connectionMark()
	parts := []string{fmt.Sprintf("-m connmark --mark %#x/%#x ", mark, mark)}
	if v.translates() {
		parts = append(parts, "-m conntrack --ctstate DNAT ", "-m conntrack --ctstatus DNAT ")
	}
	return slices.ContainsFunc(parts, func(part string) bool { return strings.HasPrefix(rule, part) })
}

// dropsBefore looks for rules of others that drop before vipd's jump accepts, and reports whether it has found any.
func (v *visit) dropsBefore(b *backend, chain string) bool {
	others, jump := b.before(chain)
	verdict := v.judge(b, others, 0)
	if verdict.drops == nothing {
		return false
	}
	const remedy = "before vipd's rule accepts them; the command moves that rule to the front"
	mend := fmt.Sprintf("%s -D %s %s; %s -I %s %s", b.program, chain, jump, b.program, chain, jump)
	place := fmt.Sprintf("in %s of %s, ", chain, b.program)
	if verdict.drops == all {
		v.add(problem(place+"a rule of another program comes before vipd's and drops everything: "+verdict.by[len(verdict.by)-1],
			"connections to VIPs are lost "+remedy, mend))
	} else {
		v.add(warning(place+"rules of other programs stand before vipd's and drop some packets: "+list(verdict.by),
			"connections to VIPs that match are lost "+remedy, mend))
	}
	return true
}

// filtered are the chains that connections to VIPs pass.
func (v *visit) filtered() []string {
	chains := []string{"INPUT"}
	if v.mode().Forward { // else they end on this host
		chains = append(chains, "FORWARD")
	}
	if v.mode().Name == config.IPVSMode { // what virtual servers send on goes out here
		chains = append(chains, "OUTPUT")
	}
	return chains
}

// policies are the findings about one backend's ends of those chains, and about what drops there before vipd accepts.
func (v *visit) policies(b *backend, isOurs bool) {
	for _, name := range v.filtered() {
		dropped := isOurs && v.dropsBefore(b, name)
		if b.chainOf("filter", name).policy != "DROP" {
			continue
		}
		switch {
		case !isOurs:
			v.add(v.otherPolicy(b, name))
		case !dropped:
			v.add(v.ownPolicy(b, name))
		}
	}
}

// ownPolicy is the finding about a policy DROP in the backend that vipd uses.
func (v *visit) ownPolicy(b *backend, name string) Finding {
	drops := fmt.Sprintf("%s of %s drops what no rule accepts", name, b.program)
	_, jump := b.before(name)
	switch {
	case jump != "":
		return fine(drops + "; vipd accepts its own connections there")
	case v.Status == nil:
		return fine(drops + "; a vipd that serves accepts its own connections there")
	}
	return note(drops+", and vipd has no rule there now",
		"it makes one, before all others, with the first frontend for which its mode needs it", b.program+" -S "+name)
}

// otherPolicy is the finding about a policy DROP in the backend that vipd does not use.
func (v *visit) otherPolicy(b *backend, name string) Finding {
	drops := fmt.Sprintf("%s of %s drops what no rule accepts, and vipd uses the other backend", name, b.program)
	for _, rule := range b.chainOf("filter", name).rules {
		if target(rule) == "ACCEPT" && (unconditional(rule) || v.letsVIPsThrough(rule)) {
			return note(drops+"; a rule there lets connections to VIPs through: "+rule, "", "")
		}
	}
	f := warning(drops,
		"what vipd accepts in its backend is dropped in this one: an accept in one does not overrule a drop in the other",
		fmt.Sprintf("%s -P %s ACCEPT", b.program, name))
	if v.has(b.family == "iptables") {
		f.Level = Problem
	}
	return f
}

package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
)

// reach is the extent to which rules drop connections to VIPs: none, some or all of them.
type reach int

const (
	nothing reach = iota
	some
	all
)

// verdict describes which connections to VIPs a list of rules drops.
type verdict struct {
	drops reach
	by    []string
}

// before returns the rules that precede vipd's jump in a filter table chain, and the jump itself.
// If vipd's jump is missing, it returns nil and "".
func (b *iptablesRules) before(chain string) (others []string, jump string) {
	rules := b.chainOf("filter", chain).rules
	for i, rule := range rules {
		if target(rule) == "VIPD-"+chain {
			return rules[:i], rule
		}
	}
	return nil, ""
}

// maxJumps is the maximum depth to which jumps between chains are followed. Real rule sets are
// shallower, and the kernel rejects loops.
const maxJumps = 16

// judge returns whether the rules, which are from the filter table, drop none, some or all of the
// connections to VIPs, and which rules drop them. It follows jumps to other chains.
func judge(o *observed, b *iptablesRules, rules []string, depth int) verdict {
	var sum verdict
	returns := false
	for _, rule := range rules {
		matchesAll := unconditional(rule)
		to := target(rule)
		drops := nothing
		switch {
		case to == "ACCEPT" && (matchesAll || letsVIPsThrough(o, rule)):
			return sum
		case to == "RETURN" && matchesAll:
			return sum
		case to == "RETURN":
			returns = true
		case irrelevant(rule):
		case to == "DROP" || to == "REJECT":
			drops = all
		case depth < maxJumps && b.tables["filter"][to] != nil && !strings.HasPrefix(to, "VIPD-"):
			drops = judge(o, b, b.tables["filter"][to].rules, depth+1).drops
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

func target(rule string) string {
	words := strings.Fields(rule)
	for i := len(words) - 2; i >= 0; i-- {
		if words[i] == "-j" || words[i] == "-g" {
			return words[i+1]
		}
	}
	return ""
}

// unconditional reports whether a rule matches every packet: only a comment, if anything, precedes
// its target.
func unconditional(rule string) bool {
	rest := withoutComment(rule)
	return strings.HasPrefix(rest, "-j ") || strings.HasPrefix(rest, "-g ")
}

// irrelevant reports whether a rule matches only packets that vipd never serves: invalid packets
// and ICMP.
func irrelevant(rule string) bool {
	words := strings.Fields(rule)
	hasOption := func(option string, values ...string) bool {
		i := slices.Index(words, option)
		return i >= 0 && i+1 < len(words) && slices.Contains(values, words[i+1]) && (i == 0 || words[i-1] != "!")
	}
	return hasOption("--ctstate", "INVALID") || hasOption("--state", "INVALID") || hasOption("-p", "icmp", "ipv6-icmp", "icmpv6")
}

// letsVIPsThrough reports whether a rule matches connections to VIPs because it matches vipd's mark
// or translated connections.
func letsVIPsThrough(o *observed, rule string) bool {
	mark := o.connectionMark()
	parts := []string{fmt.Sprintf("-m connmark --mark %#x/%#x ", mark, mark)}
	if o.translates() {
		parts = append(parts, "-m conntrack --ctstate DNAT ", "-m conntrack --ctstatus DNAT ")
	}
	return slices.ContainsFunc(parts, func(part string) bool { return strings.HasPrefix(rule, part) })
}

// dropsBefore looks for other programs' rules that drop packets to VIPs ahead of vipd's jump, which
// would accept them.
func dropsBefore(o *observed, b *iptablesRules, chain string) []Finding {
	others, jump := b.before(chain)
	verdict := judge(o, b, others, 0)
	if verdict.drops == nothing {
		return nil
	}
	const remedy = "before vipd's rule accepts them; the command moves vipd's rule to the front"
	fix := fmt.Sprintf("%s -D %s %s; %s -I %s %s", b.program, chain, jump, b.program, chain, jump)
	place := fmt.Sprintf("in %s of %s, ", chain, b.program)
	if verdict.drops == all {
		return []Finding{problem(place+"another program's rule comes before vipd's and drops everything: "+verdict.by[len(verdict.by)-1],
			"connections to VIPs are lost "+remedy, fix)}
	}
	return []Finding{warning(place+"other programs' rules come before vipd's and drop some packets: "+list(verdict.by),
		"connections to VIPs that match are lost "+remedy, fix)}
}

// filtered returns the filter table's chains that connections to VIPs pass through.
func filtered(o *observed) []string {
	chains := []string{"INPUT"}
	if o.mode().Forward { // in other modes, connections end on this host
		chains = append(chains, "FORWARD")
	}
	if o.mode().Name == config.IPVSMode { // packets from virtual servers leave through OUTPUT
		chains = append(chains, "OUTPUT")
	}
	return chains
}

// checkRules looks for iptables policies, and rules ahead of vipd's rules, that drop connections to
// VIPs.
func checkRules(ctx context.Context, o *observed) (found []Finding) {
	if !o.Root {
		return []Finding{note("firewalls were not read: only root can read them", "", "sudo vipctl doctor")}
	}
	for _, b := range o.backends {
		isOurs := b.kind == ours(ctx, o, b.family)
		for _, name := range filtered(o) {
			drops := b.chainOf("filter", name).policy == "DROP"
			if !isOurs {
				if drops {
					found = append(found, otherPolicy(o, b, name))
				}
				continue
			}
			before := dropsBefore(o, b, name)
			if len(before) == 0 && drops {
				before = []Finding{ownPolicy(o, b, name)}
			}
			found = append(found, before...)
		}
	}
	return found
}

// ownPolicy returns the finding about a chain with policy DROP in the iptables backend that vipd
// uses.
func ownPolicy(o *observed, b *iptablesRules, name string) Finding {
	drops := fmt.Sprintf("%s of %s drops packets that no rule accepts", name, b.program)
	_, jump := b.before(name)
	switch {
	case jump != "":
		return fine(drops + "; vipd accepts its own connections there")
	case o.Status == nil:
		return fine(drops + "; vipd accepts its own connections there while it serves")
	}
	return note(drops+", and vipd has no rule there now",
		"if its mode needs it, vipd will insert a rule that accepts its connections before all other rules", b.program+" -S "+name)
}

// otherPolicy returns the finding about a chain with policy DROP in the iptables backend that vipd
// does not use.
func otherPolicy(o *observed, b *iptablesRules, name string) Finding {
	drops := fmt.Sprintf("%s of %s drops packets that no rule accepts, and vipd uses the other backend", name, b.program)
	for _, rule := range b.chainOf("filter", name).rules {
		if target(rule) == "ACCEPT" && (unconditional(rule) || letsVIPsThrough(o, rule)) {
			return note(drops+"; a rule there lets connections to VIPs through: "+rule, "", "")
		}
	}
	f := warning(drops,
		"packets that vipd accepts in its backend are dropped in this backend: an accept in one does not overrule a drop in the other",
		fmt.Sprintf("%s -P %s ACCEPT", b.program, name))
	if o.hasFamily(b.family == "iptables") {
		f.Level = Problem
	}
	return f
}

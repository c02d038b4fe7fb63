package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
)

// outward looks for what of OUTPUT drops that this host itself sends to endpoints: health checks, what userspace mode sends on, and
// connections of local programs. vipd's own rules accept none of that but the last.
func (v *visit) outward(b *backend) {
	lost := map[string][]string{}
	seen := map[balancer.Key]bool{}
	for _, f := range v.Frontends {
		for _, e := range f.Backends {
			to := balancer.Key{Addr: e.Addr(), Port: e.Port(), Proto: f.Proto}
			if seen[to] || e.Addr().Is4() != (b.family == "iptables") {
				continue
			}
			seen[to] = true
			if fate, by := v.fateOf(b, to, "OUTPUT", 0); fate == dropped {
				lost[by] = append(lost[by], fmt.Sprintf("%s of %s", e, f.Service))
			}
		}
	}
	for _, by := range slices.Sorted(maps.Keys(lost)) {
		v.add(warning(fmt.Sprintf("OUTPUT of %s drops what this host sends to %s: %s", b.program, list(lost[by]), by),
			"health checks from here fail, and so do userspace mode and programs of this host", b.program+" -S OUTPUT"))
	}
}

// fate is what becomes of a packet in a chain.
type fate int

const (
	undecided fate = iota
	accepted
	dropped
)

// fateOf is what a chain of the table filter does with the first packet to an endpoint, and the rule that drops it. A rule that may match
// for reasons that are not known here accepts, and drops only where it names the endpoint's address.
func (v *visit) fateOf(b *backend, to balancer.Key, name string, depth int) (fate, string) {
	c := b.chainOf("filter", name)
	for _, rule := range c.rules {
		is := matching(rule, to)
		jump := target(rule)
		switch {
		case is == never:
		case jump == "ACCEPT":
			return accepted, ""
		case jump == "DROP" || jump == "REJECT":
			if is == always || is == perhapsNamed {
				return dropped, rule
			}
		case jump == "RETURN" && is == always:
			return undecided, ""
		case depth < deepest && b.tables["filter"][jump] != nil && !strings.HasPrefix(jump, "VIPD-"):
			if fate, by := v.fateOf(b, to, jump, depth+1); fate == accepted || fate == dropped && is != perhaps {
				return fate, by
			}
		}
	}
	if c.policy == "DROP" {
		return dropped, "its policy is DROP, and no rule accepts it"
	}
	return undecided, ""
}

// match is whether a rule matches a packet.
type match int

const (
	never match = iota
	perhaps
	perhapsNamed // for it names the address of the endpoint
	always
)

// matching reports whether a rule of iptables-save matches the first packet to an endpoint, as far as its conditions tell.
func matching(rule string, to balancer.Key) match {
	conditions, _, _ := strings.Cut(strings.Replace(withoutComment(rule), "-g ", "-j ", 1), "-j ")
	words := strings.Fields(conditions)
	is, not := always, false
	named := slices.Contains(words, "-d")
	for i := 0; i < len(words); i++ {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		if words[i] == "-m" {
			i++
			continue
		}
		if words[i] == "!" {
			not = true
			continue
		}
		fits, known := condition(words[i], value, to)
		switch {
		case known && fits == not:
			return never
		case known:
			i++
		case named:
			is = perhapsNamed
		default:
			is = perhaps
		}
		not = false
	}
	return is
}

// withoutComment is a rule without what was noted in it.
func withoutComment(rule string) string {
	before, text, there := strings.Cut(rule, "-m comment --comment ")
	if !there {
		return rule
	}
	_, after, _ := strings.Cut(text, " ")
	if strings.HasPrefix(text, `"`) {
		_, after, _ = strings.Cut(text[1:], `" `)
	}
	return before + after
}

// condition reports whether the first packet to an endpoint fulfils a condition, and whether that is known.
func condition(option, value string, to balancer.Key) (fits, known bool) {
	switch option {
	case "-d":
		network, err := netip.ParsePrefix(value)
		return err == nil && network.Contains(to.Addr), err == nil
	case "-p":
		return value == string(to.Proto), true
	case "--dport":
		return portIn(value, to.Port), true
	case "--ctstate", "--state":
		return slices.Contains(strings.Split(value, ","), "NEW"), true
	case "-o":
		return to.Addr.IsLoopback(), value == "lo"
	}
	return false, false
}

// portIn reports whether a port is one of FIRST:LAST, or the one that is named.
func portIn(ports string, port uint16) bool {
	low, high, isRange := strings.Cut(ports, ":")
	first, err := strconv.ParseUint(low, 10, 16)
	last := first
	if isRange && err == nil {
		last, err = strconv.ParseUint(high, 10, 16)
	}
	return err == nil && uint64(port) >= first && uint64(port) <= last
}

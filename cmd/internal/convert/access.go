package convert

import (
	"net/netip"
	"slices"
	"strings"
)

// accessRule accepts or refuses clients. The first rule that matches a client decides.
type accessRule struct {
	line    int
	accept  bool
	clients netset
	// unknown reports whether the rule depends on more than the client's address.
	unknown bool
}

const (
	// maxTurns is the maximum number of times that the rules may alternate between accepting and
	// refusing.
	maxTurns = 256
	// maxRanges is the maximum length of source_ranges.
	maxRanges = 4096
)

// restrict sets source_ranges to the clients that the rules accept. rest reports whether a client
// that matches no rule is accepted. If the rules can't be converted, restrict disables the service,
// because clients that the origin refuses could otherwise use it.
func (d *draft) restrict(s *service, rules []accessRule, rest bool) {
	if i := unknownRefusal(rules, rest); i >= 0 {
		d.disable(s, rules[i].line, "the rule refuses clients by criteria other than their address, but vipd would serve them: the nearest setting is source_ranges, the networks that may connect")
		return
	}
	rules = slices.DeleteFunc(slices.Clone(rules), func(r accessRule) bool { return r.unknown })
	line := 0
	allowed := netset(nil)
	undecided := everyone()
	turns := 0
	for i := 0; i < len(rules); {
		first, matched := rules[i], netset(nil)
		for ; i < len(rules) && rules[i].accept == first.accept; i++ {
			matched = append(matched, rules[i].clients...)
			if !first.accept || line == 0 {
				line = rules[i].line
			}
		}
		if turns++; turns > maxTurns {
			d.disable(s, first.line, "the rules alternate between accepting and refusing more than %d times: write the networks that may connect as source_ranges", maxTurns)
			return
		}
		matched = merged(matched)
		if first.accept {
			allowed = allowed.union(undecided.intersection(matched))
		}
		undecided = undecided.minus(matched)
	}
	if rest {
		allowed = allowed.union(undecided)
	}
	d.limit(s, line, allowed)
}

// unknownRefusal returns the index of a rule that can't be converted and has an effect, or -1 if
// there is none. A rule that accepts clients has no effect if all other clients are also accepted.
func unknownRefusal(rules []accessRule, rest bool) int {
	refusesLater := !rest
	for i, r := range slices.Backward(rules) {
		refusesLater = refusesLater || !r.accept
		if r.unknown && refusesLater {
			return i
		}
	}
	return -1
}

// limit removes the clients that are not in allowed from source_ranges.
func (d *draft) limit(s *service, line int, allowed netset) {
	if s.clients == nil {
		s.clients = everyone()
	}
	s.clients = s.clients.intersection(allowed)
	reachable, all := netset(nil), true
	for _, v4 := range []bool{true, false} {
		if len(s.vips) > 0 && !slices.ContainsFunc(s.vips, func(e listElement) bool { return strings.Contains(e.value.(string), ".") == v4 }) {
			continue // the service has no VIP of this family
		}
		family := s.clients.family(v4)
		reachable = append(reachable, family...)
		all = all && slices.Equal(family, everyone().family(v4))
	}
	if all {
		return
	}
	switch {
	case len(reachable) == 0:
		d.disable(s, line, "no client may connect")
	default:
		networks := reachable.networks()
		if len(networks) > maxRanges {
			d.disable(s, line, "the clients that may connect form %d networks; vipd supports at most %d", len(networks), maxRanges)
			return
		}
		ranges := make([]any, len(networks))
		for i, p := range networks {
			ranges[i] = p.String()
		}
		s.set(line, "source_ranges", ranges)
	}
}

// parseNetworks reads addresses and networks. It returns false if a word is neither.
func parseNetworks(words []string) (netset, bool) {
	networks := make([]netip.Prefix, 0, len(words))
	for _, word := range words {
		if addr, err := netip.ParseAddr(word); err == nil && addr.Zone() == "" {
			addr = addr.Unmap()
			networks = append(networks, netip.PrefixFrom(addr, addr.BitLen()))
		} else if prefix, err := netip.ParsePrefix(word); err == nil {
			networks = append(networks, prefix)
		} else {
			return nil, false
		}
	}
	return newNetset(networks...), true
}

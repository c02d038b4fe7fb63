package doctor

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
)

// conditions holds the conditions in another program's iptables or nft rule, as far as vipd
// understands them.
type conditions struct {
	to, from [][]netip.Prefix // the rule matches only if each list contains the address
	notTo    []netip.Prefix
	// toPorts and fromPorts are the destination and source ports. If nil, every port matches.
	toPorts, fromPorts []portRange
	protocols          []string // if nil, every protocol matches
	// never reports whether the rule is assumed to match no packets in connections to VIPs. It is
	// also true if a condition can't be evaluated, such as a named set.
	never bool
	// more reports whether the rule has unknown conditions, such as a device.
	more bool
}

type portRange struct{ first, last uint16 }

// overlaps reports whether r and ports have a common port.
func (r portRange) overlaps(ports balancer.PortRange) bool {
	return r.first <= ports.Last() && ports.First() <= r.last
}

// sample is an example of a packet of a connection to a VIP, with any port of a range. The unknown
// field of from and to is zero.
type sample struct{ from, to balancer.Key }

// match reports whether the rule may match the packet.
func (c *conditions) match(p sample) bool {
	if c.never || c.protocols != nil && !slices.Contains(c.protocols, string(cmp.Or(p.to.Proto, p.from.Proto))) {
		return false
	}
	in := func(lists [][]netip.Prefix, ports []portRange, payload balancer.Key) bool {
		if !payload.Addr.IsValid() {
			return lists == nil && ports == nil
		}
		for _, list := range lists {
			if !slices.ContainsFunc(list, func(n netip.Prefix) bool { return n.Contains(payload.Addr) }) {
				return false
			}
		}
		return ports == nil || slices.ContainsFunc(ports, func(r portRange) bool { return r.overlaps(payload.Port) })
	}
	except := slices.ContainsFunc(c.notTo, func(n netip.Prefix) bool { return n.Contains(p.to.Addr) })
	return in(c.to, c.toPorts, p.to) && in(c.from, c.fromPorts, p.from) && !except
}

// conditionsOf parses a rule in iptables-save's syntax.
func conditionsOf(rule string) (c conditions) {
	text, _, _ := strings.Cut(strings.Replace(withoutComment(rule), "-g ", "-j ", 1), "-j ")
	words := append(strings.Fields(text), "")
	for i, option := range words {
		if !strings.HasPrefix(option, "-") || option == "-m" {
			continue // a value, "!", or the module of the following options
		}
		c.add(option, words[i+1], i > 0 && words[i-1] == "!")
	}
	return c
}

// add adds the condition that an iptables option sets. not reports whether "!" precedes the option.
func (c *conditions) add(option, value string, not bool) {
	network, err := netip.ParsePrefix(value)
	switch {
	case option == "-d" && err == nil && not:
		c.notTo = append(c.notTo, network)
	case option == "-d" && err == nil:
		c.to = append(c.to, []netip.Prefix{network})
	case option == "-s" && err == nil && !not:
		c.from = append(c.from, []netip.Prefix{network})
	case option == "-p" && !not:
		c.protocols = []string{value}
	case (option == "--dport" || option == "--dports") && !not:
		c.toPorts = portRanges(value)
	case (option == "--sport" || option == "--sports") && !not:
		c.fromPorts = portRanges(value)
	case option == "-i" && value == "lo", option == "--dst-type" && value == "LOCAL":
		c.never = c.never || (option == "-i") != not
	case option == "--match-set":
		c.never = true
	default:
		c.more = true
	}
}

// portRanges parses a list of ports in iptables' syntax, such as 80,443,8000:8100.
func portRanges(text string) (all []portRange) {
	for _, part := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(part, ":")
		if !isRange {
			high = low
		}
		first, err := strconv.ParseUint(low, 10, 16)
		last, err2 := strconv.ParseUint(high, 10, 16)
		if err == nil && err2 == nil {
			all = append(all, portRange{uint16(first), uint16(last)})
		}
	}
	return all
}

// nftMatch is a match expression in nft's JSON.
type nftMatch struct {
	Op   string `json:"op"`
	Left struct {
		Payload struct {
			Protocol string `json:"protocol"`
			Field    string `json:"field"`
		} `json:"payload"`
		Meta struct {
			Key string `json:"key"`
		} `json:"meta"`
		FIB struct {
			Result string `json:"result"`
		} `json:"fib"`
	} `json:"left"`
	Right json.RawMessage `json:"right"`
}

// conditions returns the rule's conditions.
func (r *nftRule) conditions() (c conditions) {
	for _, e := range r.Expr {
		if e["match"] == nil {
			continue
		}
		var m nftMatch
		if json.Unmarshal(e["match"], &m) != nil {
			c.more = true
			continue
		}
		c.addMatch(&m)
	}
	return c
}

func (c *conditions) addMatch(m *nftMatch) {
	equal, text := m.Op == "==" || m.Op == "in", strings.Trim(string(m.Right), `"`)
	payload := m.Left.Payload
	switch networks := prefixes(m.Right); {
	case strings.HasPrefix(text, "@"):
		c.never = true // a named set
	case payload.Field == "daddr" && equal:
		c.to = append(c.to, networks)
	case payload.Field == "daddr" && m.Op == "!=":
		c.notTo = append(c.notTo, networks...)
	case payload.Field == "saddr" && equal:
		c.from = append(c.from, networks)
	case payload.Field == "dport" && equal:
		c.toPorts, c.protocols = nftPorts(m.Right), portProtocols(payload.Protocol)
	case payload.Field == "sport" && equal:
		c.fromPorts, c.protocols = nftPorts(m.Right), portProtocols(payload.Protocol)
	case equal && (payload.Field == "protocol" || payload.Field == "nexthdr" || m.Left.Meta.Key == "l4proto"):
		c.protocols = wordsOf(m.Right)
	case m.Left.Meta.Key == "iif" || m.Left.Meta.Key == "iifname":
		c.never, c.more = c.never || equal && text == "lo", c.more || text != "lo"
	case m.Left.FIB.Result == "type" && text == "local":
		c.never = c.never || !equal
	default:
		c.more = true
	}
}

// portProtocols returns the protocol whose header contains a port, such as "tcp". It returns nil
// for the header "th", which stands for every protocol with ports.
func portProtocols(header string) []string {
	if header == "th" {
		return nil
	}
	return []string{header}
}

// wordsOf returns the strings on the right side of a match: a single string, or the elements of a
// set.
func wordsOf(from json.RawMessage) []string {
	var one string
	if json.Unmarshal(from, &one) == nil {
		return []string{one}
	}
	var more struct {
		Set []string `json:"set"`
	}
	_ = json.Unmarshal(from, &more) // other values match nothing
	return more.Set
}

// nftPorts returns the ports on the right side of a match: a port, a range, or a set of ports and
// ranges.
func nftPorts(from json.RawMessage) []portRange {
	var port uint16
	if json.Unmarshal(from, &port) == nil {
		return []portRange{{port, port}}
	}
	var more struct {
		Range []uint16          `json:"range"`
		Set   []json.RawMessage `json:"set"`
	}
	all := []portRange{} // if no port can be read, no port matches
	if json.Unmarshal(from, &more) != nil {
		return all
	}
	if len(more.Range) == 2 {
		return append(all, portRange{more.Range[0], more.Range[1]})
	}
	for _, m := range more.Set {
		all = append(all, nftPorts(m)...)
	}
	return all
}

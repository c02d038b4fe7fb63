package netfilter

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// match reads an option of a match, whose name was read. head: the kernel looks at it before all modules. No match and
// no error: the option belongs to one that was there.
func (p *ruleParser) match(option string) (m match, head bool, err error) {
	switch option {
	case "-s", "--source", "-d", "--destination":
		m, err = p.address(option == "-d" || option == "--destination")
		return m, true, err
	case "-p", "--protocol":
		m, err = p.protocol()
		return m, true, err
	case "-i", "--in-interface", "-o", "--out-interface":
		m, err = p.device(option == "-o" || option == "--out-interface")
		return m, true, err
	case "--dport", "--destination-port", "--sport", "--source-port":
		m, err = p.ports(option[2] == 'd')
		return m, false, err
	}
	module, read := p.moduleOf(option)
	if read == nil {
		return nil, false, fmt.Errorf("it is not known here")
	}
	if err := p.use(module); err != nil {
		return nil, false, err
	}
	value, err := p.next()
	if err != nil {
		return nil, false, err
	}
	m, err = read(value)
	return m, false, err
}

// moduleOf returns the module of an option, and what reads its value.
func (p *ruleParser) moduleOf(option string) (string, func(value string) (match, error)) {
	switch option {
	case "--comment":
		return "comment", func(string) (match, error) { return func(*flow) bool { return true }, nil }
	case "--match-set":
		return "set", p.matchSet
	case "--ctstate":
		return "conntrack", parseStates
	case "--mark":
		if used, loaded := p.modules["connmark"]; loaded && !used {
			return "connmark", func(v string) (match, error) {
				return parseMark(v, func(f *flow) uint32 { return f.conn.Mark })
			}
		}
		return "mark", func(v string) (match, error) { return parseMark(v, func(f *flow) uint32 { return f.mark }) }
	case "--mode", "--probability", "--every", "--packet":
		return "statistic", func(v string) (match, error) { return p.stat.option(option, v) }
	case "--bytecode":
		return "bpf", parseBytecode
	case "--dst-type", "--src-type":
		return "addrtype", func(v string) (match, error) { return parseAddrType(v, option == "--dst-type") }
	}
	return "", nil
}

func (p *ruleParser) address(dst bool) (match, error) {
	text, err := p.next()
	if err != nil {
		return nil, err
	}
	n, err := netip.ParsePrefix(text)
	if err != nil {
		var a netip.Addr
		if a, err = netip.ParseAddr(text); err != nil {
			return nil, fmt.Errorf("%s is no address: %w", text, err)
		}
		n = netip.PrefixFrom(a, a.BitLen())
	}
	if n.Addr().Is6() != p.family.v6 {
		return nil, fmt.Errorf("%s is of the other family", n)
	}
	n = n.Masked()
	if dst {
		return func(f *flow) bool { return n.Contains(f.dst.Addr()) }, nil
	}
	return func(f *flow) bool { return n.Contains(f.src.Addr()) }, nil
}

func (p *ruleParser) protocol() (match, error) {
	text, err := p.next()
	if err != nil {
		return nil, err
	}
	switch text {
	case "icmpv6":
		p.proto = ICMPv6
	case "tcp", "udp", "sctp", "icmp", "ipv6-icmp":
		p.proto = Protocol(text)
	case "all":
		return func(*flow) bool { return true }, nil
	default:
		return nil, fmt.Errorf("protocol %s is not known here", text)
	}
	proto := p.proto
	return func(f *flow) bool { return f.proto == proto }, nil
}

func (p *ruleParser) device(out bool) (match, error) {
	name, err := p.next()
	if err != nil {
		return nil, err
	}
	if len(name) > 15 {
		return nil, fmt.Errorf("%s is too long a name for an interface", name)
	}
	p.in, p.out = p.in || !out, p.out || out
	of := func(f *flow) string { return f.in }
	if out {
		of = func(f *flow) string { return f.out }
	}
	if start, many := strings.CutSuffix(name, "+"); many {
		return func(f *flow) bool { return strings.HasPrefix(of(f), start) }, nil
	}
	return func(f *flow) bool { return of(f) == name }, nil
}

// ports reads a port, or a range such as 80:90, :90 or 80:.
func (p *ruleParser) ports(dst bool) (match, error) {
	if !p.proto.hasPorts() {
		return nil, fmt.Errorf("it needs -p with a protocol that has ports")
	}
	text, err := p.next()
	if err != nil {
		return nil, err
	}
	low, high, isRange := strings.Cut(text, ":")
	if !isRange {
		high = low
	} else if low == "" {
		low = "0"
	}
	if high == "" {
		high = "65535"
	}
	from, err := strconv.ParseUint(low, 10, 16)
	if err != nil {
		return nil, err
	}
	to, err := strconv.ParseUint(high, 10, 16)
	if err != nil {
		return nil, err
	}
	return func(f *flow) bool {
		port := f.src.Port()
		if dst {
			port = f.dst.Port()
		}
		return uint64(port) >= from && uint64(port) <= to
	}, nil
}

// matchSet reads what follows --match-set, whose set was read.
func (p *ruleParser) matchSet(name string) (match, error) {
	s, sides, err := p.setAndSides(name)
	if err != nil {
		return nil, err
	}
	return func(f *flow) bool { return f.inSet(s, sides) }, nil
}

func (p *ruleParser) setAndSides(name string) (*set, []string, error) {
	s := p.sets[name]
	if s == nil {
		return nil, nil, fmt.Errorf("there is no set %s", name)
	}
	if s.v6 != p.family.v6 {
		return nil, nil, fmt.Errorf("set %s is of the other family, and would never match", name)
	}
	text, err := p.next()
	if err != nil {
		return nil, nil, err
	}
	sides := strings.Split(text, ",")
	if len(sides) != len(s.kinds) {
		return nil, nil, fmt.Errorf("set %s has entries of %d parts, not %d", name, len(s.kinds), len(sides))
	}
	for _, side := range sides {
		if side != "src" && side != "dst" {
			return nil, nil, fmt.Errorf("%s is neither src nor dst", side)
		}
	}
	return s, sides, nil
}

func parseStates(list string) (match, error) {
	states := map[State]bool{}
	for _, s := range strings.Split(list, ",") {
		switch State(s) {
		case New, Established, Related, Invalid, Untracked, "DNAT", "SNAT":
			states[State(s)] = true
		default:
			return nil, fmt.Errorf("state %s is not known here", s)
		}
	}
	return func(f *flow) bool {
		dnat, snat := f.translated()
		return states[f.conn.State] || dnat && states["DNAT"] || snat && states["SNAT"]
	}, nil
}

func parseMark(text string, of func(*flow) uint32) (match, error) {
	value, mask, err := parseMasked(text)
	if err != nil {
		return nil, err
	}
	return func(f *flow) bool { return of(f)&mask == value }, nil
}

// parseMasked reads VALUE or VALUE/MASK.
func parseMasked(text string) (value, mask uint32, err error) {
	v, m, found := strings.Cut(text, "/")
	if !found {
		m = "0xffffffff"
	}
	n, err := strconv.ParseUint(v, 0, 32)
	if err != nil {
		return 0, 0, err
	}
	k, err := strconv.ParseUint(m, 0, 32)
	return uint32(n), uint32(k), err
}

func parseAddrType(kind string, dst bool) (match, error) {
	if kind != "LOCAL" {
		return nil, fmt.Errorf("address type %s is not known here", kind)
	}
	return func(f *flow) bool {
		at := f.src
		if dst {
			at = f.dst
		}
		local, _ := f.host.Route(at.Addr())
		return local
	}, nil
}

package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// target reads what follows -j or, with leap, -g: all that is left.
func (p *ruleParser) target(leap bool) error {
	name, err := p.next()
	if err != nil {
		return err
	}
	t := &p.rule.target
	if t.name != "" {
		return fmt.Errorf("the rule has two targets")
	}
	t.name = name
	read := p.targetNamed(name)
	switch {
	case read == nil:
		if slices.Contains(unknownTargets(), name) || slices.Contains(baseChains(p.table.name), name) {
			return fmt.Errorf("target %s is not known here", name)
		}
		t.chain, t.leap = true, leap
		return nil
	case leap:
		return fmt.Errorf("-g %s: it leads to chains only", name)
	}
	if t.act, err = read(); err != nil {
		return fmt.Errorf("target %s: %w", name, err)
	}
	return nil
}

// unknownTargets are targets of the kernel's that would be taken for the names of missing chains otherwise.
func unknownTargets() []string {
	return []string{"SNAT", "LOG", "NFLOG", "QUEUE", "NFQUEUE", "CT", "NOTRACK", "TPROXY", "HMARK", "CLASSIFY", "NETMAP", "TCPMSS", "TRACE", "BALANCE"}
}

func verdictOf(v verdict) func() (func(*flow) verdict, error) {
	return func() (func(*flow) verdict, error) { return func(*flow) verdict { return v }, nil }
}

// targetNamed returns what reads a target's options; nil: it is not a target.
func (p *ruleParser) targetNamed(name string) func() (func(*flow) verdict, error) {
	only := func(table string, read func() (func(*flow) verdict, error)) func() (func(*flow) verdict, error) {
		if p.table.name == table {
			return read
		}
		return func() (func(*flow) verdict, error) { return nil, fmt.Errorf("it is for the table %s", table) }
	}
	switch name {
	case "ACCEPT":
		return verdictOf(accept)
	case "RETURN":
		return verdictOf(back)
	case "DROP":
		if p.table.name == "nat" {
			return func() (func(*flow) verdict, error) { return nil, fmt.Errorf("the table nat is not for filtering") }
		}
		return verdictOf(drop)
	case "REJECT":
		return only("filter", p.reject)
	case "DNAT":
		return only("nat", p.dnat)
	case "REDIRECT":
		return only("nat", p.redirect)
	case "MASQUERADE":
		return only("nat", p.masquerade)
	case "MARK":
		return p.setMark
	case "CONNMARK":
		return p.setConnmark
	case "SET":
		return p.addToSet
	}
	return nil
}

func (p *ruleParser) reject() (func(*flow) verdict, error) {
	kinds := []string{
		"icmp-port-unreachable", "icmp-net-unreachable", "icmp-host-unreachable", "icmp-proto-unreachable",
		"icmp-net-prohibited", "icmp-host-prohibited", "icmp-admin-prohibited", "tcp-reset",
	}
	if p.family.v6 {
		kinds = []string{"icmp6-port-unreachable", "icmp6-no-route", "icmp6-adm-prohibited", "icmp6-addr-unreachable", "tcp-reset"}
	}
	kind := kinds[0]
	if p.take("--reject-with") {
		var err error
		if kind, err = p.next(); err != nil {
			return nil, err
		}
	}
	if !slices.Contains(kinds, kind) {
		return nil, fmt.Errorf("%s is not known here", kind)
	}
	if kind == "tcp-reset" && p.proto != TCP {
		return nil, fmt.Errorf("tcp-reset needs -p tcp")
	}
	return func(f *flow) verdict {
		f.v.Fate, f.v.RejectWith = Rejected, kind
		return drop
	}, nil
}

func (p *ruleParser) dnat() (func(*flow) verdict, error) {
	if !p.take("--to-destination") {
		return nil, fmt.Errorf("it needs --to-destination")
	}
	text, err := p.next()
	if err != nil {
		return nil, err
	}
	to, err := netip.ParseAddrPort(text)
	keepPort := err != nil
	if keepPort {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%s is no address with or without port", text)
		}
		to = netip.AddrPortFrom(a, 0)
	} else if !p.proto.hasPorts() {
		return nil, fmt.Errorf("a port needs -p with a protocol that has ports")
	}
	if to.Addr().Is6() != p.family.v6 {
		return nil, fmt.Errorf("%s is of the other family", to)
	}
	return func(f *flow) verdict {
		if f.dst = to; keepPort {
			f.dst = netip.AddrPortFrom(to.Addr(), f.conn.asked.Port())
		}
		return accept
	}, p.ended()
}

func (p *ruleParser) redirect() (func(*flow) verdict, error) {
	port := ""
	if p.take("--to-ports") {
		var err error
		if port, err = p.next(); err != nil {
			return nil, err
		}
	}
	to := uint64(0)
	if port != "" {
		var err error
		if to, err = strconv.ParseUint(port, 10, 16); err != nil {
			return nil, fmt.Errorf("reading the port: %w", err)
		}
		if !p.proto.hasPorts() {
			return nil, fmt.Errorf("a port needs -p with a protocol that has ports")
		}
	}
	return func(f *flow) verdict {
		n := uint16(to)
		if port == "" {
			n = f.dst.Port()
		}
		f.dst = netip.AddrPortFrom(f.redirectAddr(), n)
		return accept
	}, p.ended()
}

func (p *ruleParser) masquerade() (func(*flow) verdict, error) {
	p.take("--random-fully")
	return func(f *flow) verdict {
		f.conn.source = netip.AddrPortFrom(f.host.Address(f.out, f.family.v6), f.src.Port())
		f.masqueraded = true
		return accept
	}, p.ended()
}

// change reads the option of a mark: the bits of clear are cleared, and those of flip flipped.
func (p *ruleParser) change() (clear, flip uint32, err error) {
	option, err := p.next()
	if err != nil {
		return 0, 0, err
	}
	text, err := p.next()
	if err != nil {
		return 0, 0, err
	}
	value, mask, err := parseMasked(text)
	if err != nil {
		return 0, 0, err
	}
	switch option {
	case "--set-xmark":
		return mask, value, p.ended()
	case "--set-mark":
		return mask | value, value, p.ended()
	case "--or-mark":
		return value, value, p.ended()
	case "--and-mark":
		return ^value, 0, p.ended()
	case "--xor-mark":
		return 0, value, p.ended()
	}
	return 0, 0, fmt.Errorf("option %s is not known here", option)
}

func (p *ruleParser) setMark() (func(*flow) verdict, error) {
	clear, flip, err := p.change()
	return func(f *flow) verdict {
		f.mark = f.mark&^clear ^ flip
		return goOn
	}, err
}

func (p *ruleParser) setConnmark() (func(*flow) verdict, error) {
	clear, flip, err := p.change()
	return func(f *flow) verdict {
		f.conn.Mark = f.conn.Mark&^clear ^ flip
		return goOn
	}, err
}

func (p *ruleParser) addToSet() (func(*flow) verdict, error) {
	if !p.take("--add-set") {
		return nil, fmt.Errorf("it needs --add-set")
	}
	name, err := p.next()
	if err != nil {
		return nil, err
	}
	s, sides, err := p.setAndSides(name)
	if err != nil {
		return nil, err
	}
	if slices.Contains(s.kinds, "net") {
		return nil, fmt.Errorf("set %s holds networks", name)
	}
	exist, ends := false, s.timeout
	for len(p.words) > 0 {
		switch option, _ := p.next(); option {
		case "--exist":
			exist = true
		case "--timeout":
			text, err := p.next()
			if err != nil {
				return nil, err
			}
			n, err := strconv.ParseUint(text, 10, 31)
			if err != nil || !s.timed {
				return nil, fmt.Errorf("timeout %s of set %s, which has to be one with timeouts", text, name)
			}
			ends = time.Duration(n) * time.Second
		default:
			return nil, fmt.Errorf("option %s is not known here", option)
		}
	}
	return func(f *flow) verdict {
		f.addTo(s, sides, ends, exist)
		return goOn
	}, nil
}

// ended is an error if any word is left.
func (p *ruleParser) ended() error {
	if len(p.words) > 0 {
		return fmt.Errorf("option %s is not known here", p.words[0])
	}
	return nil
}

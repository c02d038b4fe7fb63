package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// set is an ipset of one of the hash types.
type set struct {
	name string
	v6   bool
	// kinds are the parts of an entry: ip, net or port.
	kinds []string
	// timed: entries can end; timeout is the default, 0: they don't.
	timed   bool
	timeout time.Duration
	// entries are when each ends, on the ruleset's clock; 0: never.
	entries map[entry]time.Duration
}

// entry is one entry. Addresses of kind ip are prefixes of full length.
type entry struct {
	first, second netip.Prefix
	proto         Protocol
	port          uint16
}

// parseSets reads ipset-restore lines.
func parseSets(text string) (map[string]*set, error) {
	sets := map[string]*set{}
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") || words[0] == "COMMIT" {
			continue
		}
		if err := parseSetLine(sets, words); err != nil {
			return nil, fmt.Errorf("sets: line %d: %q: %w", i+1, line, err)
		}
	}
	return sets, nil
}

func parseSetLine(sets map[string]*set, words []string) error {
	words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "-exist" || w == "-!" })
	if len(words) < 3 {
		return fmt.Errorf("it has too few words")
	}
	name, rest := words[1], words[2:]
	s := sets[name]
	switch words[0] {
	case "create":
		if s != nil {
			return fmt.Errorf("set %s is there already", name)
		}
		s, err := newSet(name, rest)
		sets[name] = s
		return err
	case "add":
		if s == nil {
			return fmt.Errorf("there is no set %s", name)
		}
		return s.parseAdd(rest)
	}
	return fmt.Errorf("%s is neither create nor add", words[0])
}

// newSet reads what follows the name in a create line.
func newSet(name string, words []string) (*set, error) {
	s := &set{name: name, entries: map[entry]time.Duration{}}
	switch words[0] {
	case "hash:ip", "hash:net", "hash:ip,port", "hash:net,port", "hash:ip,port,ip", "hash:ip,port,net":
		s.kinds = strings.Split(strings.TrimPrefix(words[0], "hash:"), ",")
	default:
		return nil, fmt.Errorf("sets of type %s are not known here", words[0])
	}
	for i := 1; i < len(words); i += 2 {
		if i+1 == len(words) {
			return nil, fmt.Errorf("option %s has no value, or is not known here", words[i])
		}
		value := words[i+1]
		switch words[i] {
		case "family":
			if value != "inet" && value != "inet6" {
				return nil, fmt.Errorf("family %s is neither inet nor inet6", value)
			}
			s.v6 = value == "inet6"
		case "timeout":
			n, err := strconv.ParseUint(value, 10, 31)
			if err != nil {
				return nil, fmt.Errorf("reading the timeout: %w", err)
			}
			s.timed, s.timeout = true, time.Duration(n)*time.Second
		case "hashsize", "maxelem", "bucketsize", "initval":
		default:
			return nil, fmt.Errorf("option %s is not known here", words[i])
		}
	}
	return s, nil
}

// parseAdd reads what follows the name in an add line.
func (s *set) parseAdd(words []string) error {
	e, err := s.parseEntry(words[0])
	if err != nil {
		return err
	}
	ends := s.timeout
	switch {
	case len(words) == 1:
	case len(words) == 3 && words[1] == "timeout" && s.timed:
		n, err := strconv.ParseUint(words[2], 10, 31)
		if err != nil {
			return fmt.Errorf("reading the timeout: %w", err)
		}
		ends = time.Duration(n) * time.Second
	default:
		return fmt.Errorf("options %q are not known here, or not for this set", words[1:])
	}
	s.entries[e] = ends
	return nil
}

func (s *set) parseEntry(text string) (e entry, err error) {
	parts := strings.Split(text, ",")
	if len(parts) != len(s.kinds) {
		return e, fmt.Errorf("%s has %d parts, set %s takes %d", text, len(parts), s.name, len(s.kinds))
	}
	for i, part := range parts {
		switch s.kinds[i] {
		case "port":
			if e.proto, e.port, err = parseSetPort(part); err != nil {
				return e, err
			}
			continue
		case "ip":
			var a netip.Addr
			if a, err = netip.ParseAddr(part); err == nil {
				err = s.put(&e, i, netip.PrefixFrom(a, a.BitLen()))
			}
		case "net":
			var n netip.Prefix
			if !strings.Contains(part, "/") {
				part += "/" + strconv.Itoa(s.bits())
			}
			if n, err = netip.ParsePrefix(part); err == nil {
				err = s.put(&e, i, n.Masked())
			}
		}
		if err != nil {
			return e, fmt.Errorf("reading %s: %w", part, err)
		}
	}
	return e, nil
}

func (s *set) bits() int {
	if s.v6 {
		return 128
	}
	return 32
}

// put makes n the entry's part i.
func (s *set) put(e *entry, i int, n netip.Prefix) error {
	switch {
	case n.Addr().Is6() != s.v6:
		return fmt.Errorf("set %s is of the other family", s.name)
	case n.Bits() == 0:
		return fmt.Errorf("the kernel's sets hold no network of all addresses")
	case i == 0:
		e.first = n
	default:
		e.second = n
	}
	return nil
}

func parseSetPort(text string) (Protocol, uint16, error) {
	proto, port, found := strings.Cut(text, ":")
	if !found {
		proto, port = "tcp", text
	}
	if !Protocol(proto).hasPorts() {
		return "", 0, fmt.Errorf("protocol %s is not known in sets here", proto)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return Protocol(proto), uint16(n), err
}

// key is what a packet looks for in the set, with these sides of it: "src" or "dst" for each part. There is none for
// packets without the ports that the set is about.
func (s *set) key(f *flow, sides []string) (e entry, ok bool) {
	for i, side := range sides {
		at := f.src
		if side == "dst" {
			at = f.dst
		}
		switch {
		case s.kinds[i] == "port" && !f.proto.hasPorts():
			return e, false
		case s.kinds[i] == "port":
			e.proto, e.port = f.proto, at.Port()
		case i == 0:
			e.first = netip.PrefixFrom(at.Addr(), at.Addr().BitLen())
		default:
			e.second = netip.PrefixFrom(at.Addr(), at.Addr().BitLen())
		}
	}
	return e, true
}

// has reports whether an entry covers the key at a time.
func (s *set) has(e entry, now time.Duration) bool {
	live := func(e entry) bool {
		ends, ok := s.entries[e]
		return ok && (ends == 0 || ends > now)
	}
	net := slices.Index(s.kinds, "net")
	if net < 0 {
		return live(e)
	}
	part := &e.first
	if net > 0 {
		part = &e.second
	}
	for a, bits := part.Addr(), part.Bits(); bits > 0; bits-- {
		*part = netip.PrefixFrom(a, bits).Masked()
		if live(e) {
			return true
		}
	}
	return false
}

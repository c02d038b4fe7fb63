package balancer

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// PortRange is a single port or a range of ports. A value up to 65535 is a single port. In a range,
// the upper 16 bits are the first port, and the lower 16 bits are the last port. Single ports
// therefore sort before ranges.
type PortRange uint32

// AllPorts is the range of all ports, for services that use a whole address.
const AllPorts PortRange = 1<<16 | 65535

const allPorts = "all"

// NewPortRange returns the range from first to last.
func NewPortRange(first, last uint16) PortRange {
	if first == last {
		return PortRange(first)
	}
	return PortRange(first)<<16 | PortRange(last)
}

// IsRange reports whether p has more than one port.
func (p PortRange) IsRange() bool { return p > 65535 }

// First returns the first port.
func (p PortRange) First() uint16 {
	if !p.IsRange() {
		return uint16(p)
	}
	return uint16(p >> 16)
}

// Last returns the last port.
func (p PortRange) Last() uint16 { return uint16(p) }

// Len returns the number of ports.
func (p PortRange) Len() int { return int(p.Last()) - int(p.First()) + 1 }

// Contains reports whether port is in the range.
func (p PortRange) Contains(port uint16) bool { return p.First() <= port && port <= p.Last() }

// Overlaps reports whether p and q have a common port.
func (p PortRange) Overlaps(q PortRange) bool { return p.First() <= q.Last() && q.First() <= p.Last() }

// conflicts reports whether p and q can't both be open at the same address. A single port may be
// inside a range, and a range inside AllPorts. The narrower range then gets the connections to its
// ports.
func (p PortRange) conflicts(q PortRange) bool {
	if p == q {
		return true
	}
	return p.IsRange() && q.IsRange() && p != AllPorts && q != AllPorts && p.Overlaps(q)
}

// String formats the range as 80, 8000-8999 or all.
func (p PortRange) String() string {
	switch {
	case p == AllPorts:
		return allPorts
	case p.IsRange():
		return fmt.Sprintf("%d-%d", p.First(), p.Last())
	}
	return strconv.Itoa(int(p))
}

// ParsePortRange parses the output of String.
func ParsePortRange(text string) (PortRange, error) {
	if text == allPorts {
		return AllPorts, nil
	}
	from, to, isRange := strings.Cut(text, "-")
	first, err := strconv.ParseUint(strings.TrimSpace(from), 10, 16)
	if !isRange {
		to = from
	}
	last, err2 := strconv.ParseUint(strings.TrimSpace(to), 10, 16)
	switch {
	case err != nil || err2 != nil || first == 0 || last == 0:
		return 0, fmt.Errorf(`%q is not a port, a range such as "8000-8999", or "all"`, text)
	case first > last:
		return 0, fmt.Errorf(`%q ends before it starts: write "%d-%d"`, text, last, first)
	}
	return NewPortRange(uint16(first), uint16(last)), nil
}

// Number returns a single port as a number. It returns false for a range, which is written as text.
func (p PortRange) Number() (n int64, ok bool) { return int64(p), !p.IsRange() }

// MarshalText formats the range like String.
func (p PortRange) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses a range. It refuses a single port, which must be a number without quotes.
func (p *PortRange) UnmarshalText(text []byte) error {
	parsed, err := ParsePortRange(string(text))
	if err == nil && !parsed.IsRange() && !strings.Contains(string(text), "-") {
		return fmt.Errorf("needs a number without quotes: write %s", parsed)
	}
	if err == nil {
		*p = parsed
	}
	return err
}

// MarshalJSON writes a single port as a number, and a range as text.
func (p PortRange) MarshalJSON() ([]byte, error) {
	if p.IsRange() {
		return json.Marshal(p.String())
	}
	return json.Marshal(uint16(p))
}

// UnmarshalJSON parses the output of MarshalJSON.
func (p *PortRange) UnmarshalJSON(raw []byte) error {
	var single uint16
	if err := json.Unmarshal(raw, &single); err == nil {
		*p = PortRange(single)
		return nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return err
	}
	return p.UnmarshalText([]byte(text))
}

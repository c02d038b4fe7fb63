package convert

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// parsePort parses a port from 1 to 65535.
func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port; use 1 to 65535", plain(text))
	}
	return uint16(n), nil
}

// portRange parses PORT or FIRST-LAST. form is the line's syntax, for the error.
func (d *draft) portRange(line int, text, form string) (first, last uint16, err error) {
	low, high, isRange := strings.Cut(text, "-")
	if first, err = parsePort(low); err != nil {
		return 0, 0, d.errorf(line, "%v: write %s", err, form)
	}
	if !isRange {
		return first, first, nil
	}
	if last, err = parsePort(high); err != nil || last < first || last-first > maxRange {
		return 0, 0, d.errorf(line, "%q is not a range of up to %d ports", plain(text), maxRange)
	}
	return first, last, nil
}

// parseAddr parses an address, which may be in brackets.
func parseAddr(text string) (netip.Addr, error) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		text = strings.TrimSuffix(inner, "]")
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an address", plain(text))
	}
	return addr.Unmap(), nil
}

// splitPort splits HOST:PORT, [HOST]:PORT, HOST or :PORT. In an IPv6 address without brackets, the
// port follows the last colon.
func splitPort(text string) (host, port string) {
	if strings.HasSuffix(text, "]") {
		return text, ""
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return text, ""
	}
	return text[:i], text[i+1:]
}

// parseSpan parses a duration with units, such as 10s, 1m30s, 500ms or 1d. A number without a unit
// is multiplied by unit.
func parseSpan(text string, unit time.Duration) (time.Duration, error) {
	const day, longest = 24 * time.Hour, 100 * 365 * 24 * time.Hour
	days, rest, hasDays := strings.Cut(text, "d")
	switch {
	case !hasDays:
		days, rest = "0", text
	case rest == "":
		rest = "0"
	}
	if _, err := strconv.ParseFloat(rest, 64); err == nil {
		rest += strings.TrimPrefix(unit.String(), "1")
	}
	n, errDays := strconv.ParseUint(days, 10, 16)
	span, err := time.ParseDuration(rest)
	span += time.Duration(n) * day
	if err != nil || errDays != nil || span < 0 || span > longest {
		return 0, fmt.Errorf("%q is not a time, such as 10s", plain(text))
	}
	return span, nil
}

// addresses returns the VIPs of the selected families, which replace a wildcard listener.
func (d *draft) addresses(line int, v4, v6 bool) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, a := range d.wildcard {
		if a.Is4() && v4 || !a.Is4() && v6 {
			out = append(out, a)
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	kind := "an address"
	if !v6 {
		kind = "an IPv4 address"
	} else if !v4 {
		kind = "an IPv6 address"
	}
	return nil, d.errorf(line, "%q listens on every address of its host, but vipd needs a VIP: give %s with --vip ADDRESS", d.lineText(line), kind)
}

// listening returns the addresses of a listener on host: host itself or, for a wildcard, the VIPs
// in Options. v4 and v6 select the families of "" and "*". "::" also includes IPv4 if both are
// true.
func (d *draft) listening(line int, host string, v4, v6 bool) ([]netip.Addr, error) {
	switch host {
	case "", "*":
		return d.addresses(line, v4, v6)
	case "0.0.0.0":
		return d.addresses(line, true, false)
	case "::", "[::]":
		return d.addresses(line, v4 && v6, true)
	case "localhost":
		host = "127.0.0.1"
	}
	addr, err := parseAddr(host)
	if err != nil {
		return nil, d.errorf(line, "%v; write the address that the name stands for", err)
	}
	return []netip.Addr{addr}, nil
}

// listeners returns a copy of the listener one for each address of host and each port in the range
// ports. word is the first word on the line, for errors.
func (d *draft) listeners(one listener, host, ports, word string, v4, v6 bool) ([]listener, error) {
	first, last, err := d.portRange(one.line, ports, word+" ADDRESS:PORT")
	if err != nil {
		return nil, err
	}
	var out []listener
	addresses, err := d.listening(one.line, host, v4, v6)
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		for port := int(first); port <= int(last); port++ {
			out = append(out, listener{a, uint16(port), one.proto, one.line})
		}
	}
	return out, nil
}

// span parses a duration like parseSpan. If the text is not a duration, it adds a note and returns
// false.
func (d *draft) span(line int, text string, unit time.Duration) (span, bool) {
	t, err := parseSpan(text, unit)
	if err != nil {
		d.note(line, "%v", err)
	}
	return span{time: t, line: line}, err == nil
}

// host parses an endpoint's address. If the text is not an address, it adds a note and returns
// false.
func (d *draft) host(line int, text string) (netip.Addr, bool) {
	if text == "localhost" {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), true
	}
	addr, err := parseAddr(text)
	if err != nil {
		d.note(line, "left out: %q is neither an address nor a DNS name; write its address, or let the server join with \"vipctl register\"", plain(text))
		return addr, false
	}
	return addr, true
}

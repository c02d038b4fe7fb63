package decode

import (
	"fmt"
	"net/netip"
	"strings"
)

// ParseAddr parses an IP address. An IPv4-mapped address (::ffff:10.0.0.1) becomes the IPv4
// address. A zone (fe80::1%eth0) is an error.
func ParseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.TrimSpace(text))
	if err != nil {
		if host, _, found := strings.Cut(text, "/"); found {
			if h, err := netip.ParseAddr(strings.TrimSpace(host)); err == nil {
				return netip.Addr{}, fmt.Errorf("%q is a network; write a single address, such as %s", shorten(text), h)
			}
		}
		if ap, err := netip.ParseAddrPort(strings.TrimSpace(text)); err == nil {
			return netip.Addr{}, fmt.Errorf("%q has a port; write only the address: %s", shorten(text), ap.Addr())
		}
		return netip.Addr{}, fmt.Errorf("%q is not an IP address, such as 192.168.1.11 or fd00::11", shorten(text))
	}
	if a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q has a zone, which is not supported here; write %s", shorten(text), a.WithZone(""))
	}
	return a.Unmap(), nil
}

// ParsePrefix parses a network. Host bits and a missing length are errors, whose text suggests the
// right network.
func ParsePrefix(text string) (netip.Prefix, error) {
	text = strings.TrimSpace(text)
	p, err := netip.ParsePrefix(text)
	if err != nil {
		if a, err := ParseAddr(text); err == nil {
			return netip.Prefix{}, fmt.Errorf("%q lacks a prefix length: write %s for this single address", text, netip.PrefixFrom(a, a.BitLen()))
		}
		return netip.Prefix{}, fmt.Errorf("%q is not a network, such as 10.0.0.0/8 or fd00::/64", shorten(text))
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	if m := p.Masked(); m != p {
		return netip.Prefix{}, fmt.Errorf("%q has host bits set: did you mean %s?", text, m)
	}
	return p, nil
}

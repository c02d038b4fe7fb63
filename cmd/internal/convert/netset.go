package convert

import (
	"net/netip"
	"slices"
)

// netset is a set of addresses: sorted ranges that neither overlap nor touch. IPv4 precedes IPv6.
type netset []addrRange

// addrRange is the range of addresses from first to last, which are of the same family.
type addrRange struct{ first, last netip.Addr }

// everyone returns all addresses of both families.
func everyone() netset {
	return newNetset(netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
}

// newNetset returns the set of all addresses in the networks.
func newNetset(networks ...netip.Prefix) netset {
	ranges := make([]addrRange, len(networks))
	for i, p := range networks {
		ranges[i] = addrRange{p.Masked().Addr(), lastOf(p)}
	}
	return merged(ranges)
}

// lastOf returns the last address of a network.
func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for i := range bytes {
		if hostBits := 8*(i+1) - p.Bits(); hostBits > 0 {
			bytes[i] |= byte(1<<min(hostBits, 8) - 1)
		}
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

// merged sorts ranges, and joins ranges that overlap or touch.
func merged(ranges []addrRange) netset {
	slices.SortFunc(ranges, func(a, b addrRange) int { return a.first.Compare(b.first) })
	var out netset
	for _, r := range ranges {
		if n := len(out); n > 0 && touches(out[n-1], r) {
			if out[n-1].last.Less(r.last) {
				out[n-1].last = r.last
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// touches reports whether b starts in a or directly after a. b must not start before a.
func touches(a, b addrRange) bool {
	if a.first.Is4() != b.first.Is4() {
		return false
	}
	return !a.last.Less(b.first) || a.last.Next() == b.first
}

func (n netset) union(other netset) netset { return merged(slices.Concat(n, other)) }

// minus returns the addresses in n that are not in other.
func (n netset) minus(other netset) netset { return n.intersection(other.complement()) }

func (n netset) intersection(other netset) netset {
	return n.complement().union(other.complement()).complement()
}

// complement returns all addresses that are not in n.
func (n netset) complement() netset {
	var out netset
	for _, all := range []addrRange{
		{netip.IPv4Unspecified(), lastOf(netip.PrefixFrom(netip.IPv4Unspecified(), 0))},
		{netip.IPv6Unspecified(), lastOf(netip.PrefixFrom(netip.IPv6Unspecified(), 0))},
	} {
		next := all.first // next is invalid after the last address of the family
		for _, r := range n {
			if r.first.Is4() != all.first.Is4() {
				continue
			}
			if next.Less(r.first) {
				out = append(out, addrRange{next, r.first.Prev()})
			}
			next = r.last.Next()
		}
		if next.IsValid() {
			out = append(out, addrRange{next, all.last})
		}
	}
	return out
}

// family returns the IPv4 addresses in n or, if v4 is false, the IPv6 addresses.
func (n netset) family(v4 bool) netset {
	return slices.DeleteFunc(slices.Clone(n), func(r addrRange) bool { return r.first.Is4() != v4 })
}

// networks returns the shortest list of networks that contains exactly the addresses in n.
func (n netset) networks() []netip.Prefix {
	var out []netip.Prefix
	for _, r := range n {
		for at := r.first; at.IsValid() && !r.last.Less(at); {
			bits := at.BitLen()
			for bits > 0 {
				wider := netip.PrefixFrom(at, bits-1)
				if wider.Masked().Addr() != at || r.last.Less(lastOf(wider)) {
					break
				}
				bits--
			}
			p := netip.PrefixFrom(at, bits)
			out = append(out, p)
			at = lastOf(p).Next()
		}
	}
	return out
}

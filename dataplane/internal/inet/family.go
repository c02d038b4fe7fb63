package inet

import (
	"math/bits"
	"net/netip"
)

// Family is an address family.
type Family string

// These are the families.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
)

// Families returns both families.
func Families() []Family { return []Family{IPv4, IPv6} }

// Of returns the family of an address.
func Of(a netip.Addr) Family { return choose(a.Is4(), IPv4, IPv6) }

// Digit returns "4" or "6".
func (f Family) Digit() string { return choose(f == IPv4, "4", "6") }

// Word returns the family's name in the syntax of ipset: inet or inet6.
func (f Family) Word() string { return choose(f == IPv4, "inet", "inet6") }

// Program returns the program for rules of the family: iptables or ip6tables.
func (f Family) Program() string { return choose(f == IPv4, "iptables", "ip6tables") }

// CommonBits returns the number of leading bits that two addresses of a family share.
func CommonBits(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if x[i] != y[i] {
			return 8*i + bits.LeadingZeros8(x[i]^y[i])
		}
	}
	return a.BitLen()
}

func choose[T any](four bool, v4, v6 T) T {
	if four {
		return v4
	}
	return v6
}

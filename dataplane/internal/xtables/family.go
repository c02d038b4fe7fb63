package xtables

import "net/netip"

// Family is the family of addresses that rules are for.
type Family string

// The families.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
)

// Families returns both.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamilyOf returns that of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

func (f Family) program() string {
	if f == IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// Variant is where the kernel keeps the rules.
type Variant string

// The variants: Auto follows the host.
const (
	Auto   Variant = "auto"
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

// Values lists what users may write.
func (Variant) Values() []string { return []string{"auto", "nft", "legacy"} }

func (v Variant) other() Variant {
	if v == NFT {
		return Legacy
	}
	return NFT
}

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

// Backend is where the kernel keeps the rules.
type Backend string

// The backends: Auto follows the host.
const (
	Auto   Backend = "auto"
	NFT    Backend = "nft"
	Legacy Backend = "legacy"
)

// Values lists what users may write.
func (Backend) Values() []string { return []string{"auto", "nft", "legacy"} }

func (b Backend) other() Backend {
	if b == NFT {
		return Legacy
	}
	return NFT
}

package quorum

import (
	"net/netip"

	"vipd/balancer"
)

// Checkers returns the nodes that check an address.
func Checkers(at netip.AddrPort, nodes []balancer.NodeName) []balancer.NodeName {
	return newElectorate(nodes).checkers(at)
}

package quorum

import (
	"net/netip"

	"vipd/balancer"
)

// Checkers are those that are chosen among nodes.
func Checkers(at netip.AddrPort, nodes []balancer.NodeName) []balancer.NodeName {
	return newElectorate(nodes).checkers(at)
}

package quorum

import "net/netip"

// Checkers are those that are chosen among nodes.
func Checkers(at netip.AddrPort, nodes []Node) []Node { return newElectorate(nodes).checkers(at) }

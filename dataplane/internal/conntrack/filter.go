package conntrack

import (
	"net/netip"

	"vipd/balancer"
)

// Family is the family of a flow's addresses.
type Family string

// The families.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
)

func familyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Filter chooses flows. Fields that are zero leave the choice open.
type Filter struct {
	Family Family
	Proto  balancer.Protocol
	// Dst and Port are the original destination's.
	Dst  netip.Addr
	Port uint16
	// Unreplied: the other side has not sent anything.
	Unreplied bool
}

// matches compares with what the kernel may have found too much.
func (f Filter) matches(flow *Flow) bool {
	to := flow.Orig.Dst
	return (f.Family == "" || f.Family == familyOf(to.Addr())) &&
		(f.Proto == "" || f.Proto == flow.Proto) &&
		(!f.Dst.IsValid() || f.Dst == to.Addr()) &&
		(f.Port == 0 || f.Port == to.Port()) &&
		!(f.Unreplied && flow.Status.Has(SeenReply))
}

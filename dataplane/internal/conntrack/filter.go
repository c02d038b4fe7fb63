package conntrack

import (
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
)

// Filter selects flows. Zero fields match everything.
type Filter struct {
	Family inet.Family
	Proto  balancer.Protocol
	// Dst and Port are the original destination.
	Dst  netip.Addr
	Port uint16
	// Unreplied selects flows without a packet from the other side.
	Unreplied bool
}

// matches reports whether a flow that the kernel found matches the filter, because the kernel may
// find too many.
func (f Filter) matches(flow *Flow) bool {
	to := flow.Orig.Dst
	return (f.Family == "" || f.Family == inet.Of(to.Addr())) &&
		(f.Proto == "" || f.Proto == flow.Proto) &&
		(!f.Dst.IsValid() || f.Dst == to.Addr()) &&
		(f.Port == 0 || f.Port == to.Port()) &&
		!(f.Unreplied && flow.Status.Has(SeenReply))
}

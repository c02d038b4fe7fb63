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
	// Unreplied selects flows in which the other side has not sent a packet.
	Unreplied bool
}

// matches reports whether a flow matches the filter. This check is necessary because the kernel may
// return other flows.
func (f Filter) matches(flow *Flow) bool {
	to := flow.Orig.Dst
	return (f.Family == "" || f.Family == inet.Of(to.Addr())) &&
		(f.Proto == "" || f.Proto == flow.Proto) &&
		(!f.Dst.IsValid() || f.Dst == to.Addr()) &&
		(f.Port == 0 || f.Port == to.Port()) &&
		!(f.Unreplied && flow.Status.Has(SeenReply))
}

package conntrack

import (
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
)

// Filter chooses flows. Fields that are zero leave the choice open.
type Filter struct {
	Family inet.Family
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
	return (f.Family == "" || f.Family == inet.Of(to.Addr())) &&
		(f.Proto == "" || f.Proto == flow.Proto) &&
		(!f.Dst.IsValid() || f.Dst == to.Addr()) &&
		(f.Port == 0 || f.Port == to.Port()) &&
		!(f.Unreplied && flow.Status.Has(SeenReply))
}

package userspace

import (
	"fmt"
	"net/netip"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
)

// openOrigins opens the connection to conntrack that is used to find the original destinations of
// datagrams to port ranges. UDP sockets, unlike TCP sockets, do not know the original destination.
func (r *redirect) openOrigins() error {
	if r.origins != nil {
		return nil
	}
	conn, err := conntrack.Open()
	if err != nil {
		return fmt.Errorf("opening conntrack for datagrams to port ranges: %w", err)
	}
	r.origins = conn
	return nil
}

// portOf implements interception. It returns 0 for a client that sends directly to the port of
// vipd's socket.
func (r *redirect) portOf(f *frontend, client, local netip.AddrPort) uint16 {
	if !local.Addr().IsValid() {
		return 0
	}
	replies := conntrack.Tuple{
		Src: netip.AddrPortFrom(local.Addr().WithZone(""), local.Port()), Dst: netip.AddrPortFrom(client.Addr().WithZone(""), client.Port()),
	}
	flow, found, err := r.origins.WithReplies(balancer.UDP, replies)
	if err != nil {
		r.d.seldom("dropping datagrams: their destination is unknown", "frontend", f.key, "err", err)
	}
	if !found || r.d.chains.at(flow.Frontend()) != f {
		return 0
	}
	return flow.Orig.Dst.Port()
}

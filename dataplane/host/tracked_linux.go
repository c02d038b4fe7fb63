package host

import (
	"context"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
)

// Tracked returns the VIPs that have an open TCP or SCTP connection in conntrack. A connection is
// open if the endpoint has replied and neither side has closed it. Tracked reads the whole
// conntrack table.
func (k *handles) Tracked(ctx context.Context, vips map[netip.Addr]bool) (map[netip.Addr]bool, error) {
	conn, err := conntrack.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the socket was only read
	ended := []string{"time-wait", "close", "closed", "syn-sent", "none"}
	found := map[netip.Addr]bool{}
	err = conn.Each(ctx, conntrack.Filter{}, func(f *conntrack.Flow) error {
		if a := f.Orig.Dst.Addr(); vips[a] && f.Proto != balancer.UDP && f.Status.Has(conntrack.SeenReply) && !slices.Contains(ended, f.State) {
			found[a] = true
		}
		return nil
	})
	return found, err
}

package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer/lib/wake"
	"vipd/dataplane/internal/nlsock"
)

// Routers returns this host's default gateways, sorted and without duplicates.
func Routers() (all []netip.Addr, err error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	add := func(gateway net.IP) {
		if a, ok := netip.AddrFromSlice(gateway); ok {
			all = append(all, a.Unmap())
		}
	}
	for _, r := range routes {
		if r.Dst != nil && !isDefault(r.Dst) {
			continue
		}
		add(r.Gw)
		for _, hop := range r.MultiPath {
			add(hop.Gw)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

func isDefault(dst *net.IPNet) bool {
	ones, _ := dst.Mask.Size()
	return ones == 0 && dst.IP.IsUnspecified()
}

// FollowRouters calls changed at the start, and when a default route or a device may have changed,
// until ctx is canceled. If the kernel can't report events, it calls changed once a second.
func FollowRouters(ctx context.Context, changed func()) {
	for ctx.Err() == nil {
		_ = followRoutes(ctx, changed) // the next iteration subscribes again
		wake.Sleep(ctx, time.Second)
	}
}

// followRoutes does the work of FollowRouters until ctx is canceled or the subscription fails.
func followRoutes(ctx context.Context, changed func()) error {
	const room = 1 << 20 // the kernel reports an overflow
	s, err := nlsock.Subscribe(unix.NETLINK_ROUTE, room, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		changed()
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Now()) })()
	for notify := true; ; {
		if notify {
			changed()
		}
		notify = false
		m, err := s.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			notify = true
		case err != nil:
			return errors.Join(fmt.Errorf("reading events: %w", err), s.Close())
		}
		for m.Next() {
			notify = notify || isDefaultRoute(m) || m.Kind == unix.RTM_NEWLINK || m.Kind == unix.RTM_DELLINK
		}
	}
}

// isDefaultRoute reports whether a message is about a default route. Other routes are ignored,
// because a host may have a million of them.
func isDefaultRoute(m nlsock.Messages) bool {
	const size = 1 // offset of rtm_dst_len in struct rtmsg
	return (m.Kind == unix.RTM_NEWROUTE || m.Kind == unix.RTM_DELROUTE) && len(m.Body) > size && m.Body[size] == 0
}

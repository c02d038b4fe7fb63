package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/dataplane/internal/nlsock"
)

// settleTime is how long FollowAddresses collects events before it calls changed once.
const settleTime = 100 * time.Millisecond

// LocalAddresses returns the node's own addresses that can serve node ports, sorted. It omits
// loopback, link-local and multicast addresses, and addresses that vipd or vipd owner added. If
// networks is not empty, it returns only addresses in these networks. networked holds the addresses
// that have a network on their device. vipd owner can't have added them, because it adds addresses
// without a network. The error may match ErrUnsettled.
func (h *Host) LocalAddresses(networks []netip.Prefix) (own, networked []netip.Addr, err error) {
	v, err := readView(h.nl)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, nil, ErrUnsettled
	}
	if err != nil {
		return nil, nil, err
	}
	p := h.public.Load()
	alone := func(a netip.Addr) bool {
		return !slices.ContainsFunc(v.addrs[a], func(at local) bool { return at.bits != a.BitLen() })
	}
	own = v.own(func(a netip.Addr) bool {
		now := p.addresses.At(a)
		return now.ours || now.held.Standing == balancer.Owned && alone(a)
	})
	own = slices.DeleteFunc(own, func(a netip.Addr) bool { return !within(a, networks) })
	return own, slices.DeleteFunc(slices.Clone(own), alone), nil
}

// Gateways returns the gateways through which the host currently reaches these addresses. It skips
// addresses without a gateway and unreachable addresses.
func (k *handles) Gateways(to []netip.Addr) []netip.Addr {
	var all []netip.Addr
	for _, a := range to {
		routes, err := k.nl.RouteGet(a.AsSlice())
		if err != nil {
			continue // the address is unreachable
		}
		for i := range routes {
			gateway := routes[i].Gw
			if via, ok := routes[i].Via.(*netlink.Via); ok {
				gateway = via.Addr // the gateway is of the other family
			}
			if g, ok := netip.AddrFromSlice(gateway); ok && !slices.Contains(all, g.Unmap()) {
				all = append(all, g.Unmap())
			}
		}
	}
	return all
}

// Sources returns the source addresses that the host currently uses for connections to these
// addresses. It skips unreachable addresses.
func (k *handles) Sources(to []netip.Addr) []netip.Addr {
	var all []netip.Addr
	for _, a := range to {
		routes, err := k.nl.RouteGet(a.AsSlice())
		if err != nil || len(routes) == 0 {
			continue // the address is unreachable
		}
		if s, ok := netip.AddrFromSlice(routes[0].Src); ok && !slices.Contains(all, s.Unmap()) {
			all = append(all, s.Unmap())
		}
	}
	return all
}

// FollowAddresses calls changed when this host's addresses may have changed, until ctx is done, and
// then returns ctx's error. Lost events count as a change. If the kernel refuses the subscription,
// FollowAddresses polls.
func (h *Host) FollowAddresses(ctx context.Context, changed func()) error {
	s, err := nlsock.Subscribe(unix.NETLINK_ROUTE, eventBuffer, eventGroups()...)
	if err != nil {
		h.log.Info("the host's addresses are polled, because the kernel refused to report changes", "every", pollInterval, "err", err)
		return poll(ctx, pollInterval, func() ([]netip.Addr, error) { own, _, err := h.LocalAddresses(nil); return own, err }, changed)
	}
	defer func() { _ = s.Close() }()
	defer context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })()
	for {
		m, err := s.Receive()
		seen := errors.Is(err, unix.ENOBUFS)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !seen:
			return fmt.Errorf("reading events: %w", err)
		}
		for m.Next() {
			c, ok := readEvent(&m)
			seen = seen || ok && c.addr.IsValid()
		}
		if seen || m.Err != nil {
			if !wake.Sleep(ctx, settleTime) {
				return ctx.Err()
			}
			s.Discard()
			changed()
		}
	}
}

package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routesTo are the routes to one local address.
type routesTo struct {
	ours, spare []netlink.Route
	// kernels reports whether the kernel's own route to the address exists.
	kernels bool
}

// readRoutes reads the local routes. It removes ours to addresses that vipd does not hold, and completes those of the others.
func (rs *routes) readRoutes() error {
	for _, r := range rs.all {
		r.source = netip.Addr{}
	}
	to := map[netip.Addr]*routesTo{}
	for _, r := range rs.localRoutes() {
		dst, _ := netip.AddrFromSlice(r.Dst.IP)
		at := to[dst.Unmap()]
		if at == nil {
			at = &routesTo{}
			to[dst.Unmap()] = at
		}
		switch r.Protocol {
		case routeProtocol:
			at.ours = append(at.ours, r)
		case spareProtocol:
			at.spare = append(at.spare, r)
		case unix.RTPROT_KERNEL:
			at.kernels = true
		}
	}
	var useless []netlink.Route
	var incomplete []*address
	for dst, at := range to {
		source, rest := rs.judge(dst, at)
		useless = append(useless, rest...)
		if !source.IsValid() {
			continue
		}
		r := rs.at(dst)
		r.source = source
		switch {
		case dst.Is4() && (at.kernels || len(at.spare) == 0):
			incomplete = append(incomplete, r)
		case dst.Is6() && at.kernels:
			r.shadowed = true
			rs.reopen(r)
		}
	}
	for _, r := range useless {
		if err := rs.dropRoute(r); err != nil {
			return err
		}
	}
	if _, err := rs.holder(); err == nil {
		rs.spare(incomplete)
	}
	return nil
}

// judge returns the source that our route to an address carries, and which of our routes are of no use.
func (rs *routes) judge(dst netip.Addr, at *routesTo) (source netip.Addr, useless []netlink.Route) {
	link := rs.view.link(rs.ledger.Addresses[dst]) // 0 if it is not ours
	for _, r := range at.ours {
		src, ok := netip.AddrFromSlice(r.Src) // none if the kernel has dropped the address
		if link != 0 && r.LinkIndex == link && ok && !source.IsValid() {
			source = src.Unmap()
		} else {
			useless = append(useless, r)
		}
	}
	for _, r := range at.spare {
		if link == 0 || r.LinkIndex != link {
			useless = append(useless, r)
		}
	}
	return source, useless
}

// routesIntact looks whether our routes are there, if one was removed: vipd itself may have put it back since.
func (rs *routes) routesIntact() string {
	if !rs.lost {
		return ""
	}
	rs.lost = false
	there := map[netip.Addr]bool{}
	for _, r := range rs.ourRoutes(routeProtocol) {
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			there[a.Unmap()] = true
		}
	}
	for a, r := range rs.all {
		if r.source.IsValid() && !there[a] {
			return fmt.Sprintf("the route to %s is gone from %s", a, rs.device.name)
		}
	}
	return ""
}

// sourceChanged reports whether connections to held VIPs should leave with another address of the node.
func (rs *routes) sourceChanged() string {
	if len(rs.ledger.Addresses) == 0 {
		return ""
	}
	for i, s := range rs.source {
		if s.IsValid() && len(rs.view.addrs[s]) == 0 {
			return fmt.Sprintf("the node's address %s is gone", s)
		}
		if s.IsValid() || !rs.renumbered[i] || !rs.holds(i) {
			continue
		}
		if found := rs.anySource(i); found.IsValid() {
			return fmt.Sprintf("the node has an address for connections to its VIPs now: %s", found)
		}
		rs.renumbered[i] = false
	}
	return ""
}

// dropRoute removes a route that is of no use, where it is there.
func (k *kernel) dropRoute(r netlink.Route) error {
	if err := k.nl.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("removing the route to %s: %w", r.Dst.IP, err)
	}
	return nil
}

// ourRoutes lists the local routes that bear one of our marks.
func (k *kernel) ourRoutes(mark netlink.RouteProtocol) []netlink.Route {
	return slices.DeleteFunc(k.localRoutes(), func(r netlink.Route) bool { return r.Protocol != mark })
}

// localRoutes lists the host's routes to its own addresses, those to the same address in their order.
func (k *kernel) localRoutes() []netlink.Route {
	var out []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
		routes, err := again(func() ([]netlink.Route, error) {
			return k.nl.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		})
		if err != nil {
			continue // a kernel without the family
		}
		for _, r := range routes {
			if r.Dst != nil {
				out = append(out, r)
			}
		}
	}
	return out
}

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

type routesTo struct {
	ours, plain []netlink.Route
	// hasKernelRoute reports whether the kernel's own route to the address exists.
	hasKernelRoute bool
}

// readRoutes reads the local routes. It removes vipd's routes to addresses that vipd does not hold,
// and adds missing routes.
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
		case plainProtocol:
			at.plain = append(at.plain, r)
		case unix.RTPROT_KERNEL:
			at.hasKernelRoute = true
		}
	}
	var useless []netlink.Route
	var incomplete []*address
	for dst, at := range to {
		source, rest := rs.classifyRoutes(dst, at)
		useless = append(useless, rest...)
		if !source.IsValid() {
			continue
		}
		r := rs.at(dst)
		r.source = source
		switch {
		case dst.Is4() && (at.hasKernelRoute || len(at.plain) == 0):
			incomplete = append(incomplete, r)
		case dst.Is6() && at.hasKernelRoute:
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
		rs.replaceKernelRoutes(incomplete)
	}
	return nil
}

// classifyRoutes returns the source of vipd's route to an address, and vipd's other, useless routes
// to it.
func (rs *routes) classifyRoutes(dst netip.Addr, at *routesTo) (source netip.Addr, useless []netlink.Route) {
	link := rs.view.link(rs.ledger.Addresses[dst]) // 0 if the address is not ours
	for _, r := range at.ours {
		src, ok := netip.AddrFromSlice(r.Src) // missing if the kernel has removed the source address
		if link != 0 && r.LinkIndex == link && ok && !source.IsValid() {
			source = src.Unmap()
		} else {
			useless = append(useless, r)
		}
	}
	for _, r := range at.plain {
		if link == 0 || r.LinkIndex != link {
			useless = append(useless, r)
		}
	}
	return source, useless
}

// routesIntact describes a missing route that vipd added, or returns "". It reads the routes only
// if a route was removed since the last check, because vipd may have restored that route.
func (rs *routes) routesIntact() string {
	if !rs.removed {
		return ""
	}
	rs.removed = false
	there := map[netip.Addr]bool{}
	for _, r := range rs.ourRoutes(routeProtocol) {
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			there[a.Unmap()] = true
		}
	}
	for a, r := range rs.all {
		if r.source.IsValid() && !there[a] {
			return fmt.Sprintf("the route to %s is missing from %s", a, rs.device.name)
		}
	}
	return ""
}

// sourceChanged describes why connections to held VIPs need another source, or returns "".
func (rs *routes) sourceChanged() string {
	if len(rs.ledger.Addresses) == 0 {
		return ""
	}
	for i, s := range rs.source {
		if s.IsValid() && len(rs.view.addrs[s]) == 0 {
			return fmt.Sprintf("the node no longer has the address %s", s)
		}
		if s.IsValid() || !rs.renumbered[i] || !rs.holds(i) {
			continue
		}
		if found := rs.anySource(i); found.IsValid() {
			if _, err := rs.holder(); err != nil {
				return "" // routes need the device, and without it, every VIP already has a problem
			}
			return fmt.Sprintf("the node now has an address for connections to its VIPs: %s", found)
		}
		rs.renumbered[i] = false
	}
	return ""
}

// dropRoute removes a useless route. A missing route or privilege is not an error.
func (k *handles) dropRoute(r netlink.Route) error {
	if err := k.nl.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("removing the route to %s: %w", r.Dst.IP, err)
	}
	return nil
}

// ourRoutes returns the local routes that have the protocol mark.
func (k *handles) ourRoutes(mark netlink.RouteProtocol) []netlink.Route {
	return slices.DeleteFunc(k.localRoutes(), func(r netlink.Route) bool { return r.Protocol != mark })
}

// localRoutes returns the host's routes to its own addresses. Routes to the same address are in the
// kernel's order.
func (k *handles) localRoutes() []netlink.Route {
	var out []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
		routes, err := retryInterrupted(func() ([]netlink.Route, error) {
			return k.nl.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		})
		if err != nil {
			continue // the kernel does not support this family
		}
		for _, r := range routes {
			if r.Dst != nil {
				out = append(out, r)
			}
		}
	}
	return out
}

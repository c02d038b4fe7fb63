package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/internal/rtnl"
)

// routes maintains the local routes that select a source address for the host's connections to held
// VIPs.
type routes struct {
	*state
	// source holds the node's own addresses, IPv4 and IPv6, that the routes select as the source.
	source [2]netip.Addr
	// removed reports whether one of vipd's routes may have been removed since the last check,
	// perhaps by another program.
	removed bool
	// renumbered reports, for each family, whether the host's other addresses have changed since
	// the source was chosen.
	renumbered [2]bool
	// asleep reports whether routes wait for the device to be up.
	asleep bool
}

// routeProtocol marks vipd's routes, so vipd recognizes them without a ledger. The number is unused
// in iproute2's list.
const routeProtocol = 118

// plainProtocol marks the routes that replace the kernel's own routes to IPv4 addresses (see
// route). The number is also unused in iproute2's list.
const plainProtocol = 119

// probeDestinations returns an address of each family that is reserved for documentation (RFC 5737,
// RFC 3849). The kernel's route to it shows which source the node uses by default.
func probeDestinations() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
}

// anySource returns the node's own address that connections to VIPs of a family should use as their
// source. It prefers the source of the default route, then the first address of the host. An
// address that is also a service's VIP is the last choice. If no address is usable, the result is
// invalid.
func (rs *routes) anySource(family int) netip.Addr {
	own := rs.view.own(func(a netip.Addr) bool {
		r := rs.all[a]
		return familyOf(a) != family || rs.ledger.Addresses[a] != "" || r != nil && r.standing == balancer.Owned
	})
	private := slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { r := rs.all[a]; return r != nil && r.needed() })
	if len(private) > 0 {
		own = private
	}
	if len(own) == 0 {
		return netip.Addr{}
	}
	routes, err := rs.nl.RouteGet(net.IP(probeDestinations()[family].AsSlice()))
	if err == nil && len(routes) > 0 {
		if a, ok := netip.AddrFromSlice(routes[0].Src); ok && slices.Contains(own, a.Unmap()) {
			return a.Unmap()
		}
	}
	return slices.MinFunc(own, func(a, b netip.Addr) int { return rs.rank(a) - rs.rank(b) })
}

// rank returns a number that orders addresses as sources, the best address first. Addresses that
// the kernel avoids are last. Other addresses are ordered by the age of their device.
func (rs *routes) rank(a netip.Addr) int {
	const last = 1 << 30
	best := 2 * last
	for _, p := range rs.view.addrs[a] {
		rank := min(p.link, last-1)
		if p.deprecated() {
			rank += last
		}
		best = min(best, rank)
	}
	return best
}

// route adds a local route for each held address in some, so this host's connections to it use the
// node's own address as their source. It returns an error or nil for each address.
//
// For IPv4, the route precedes a route without a source, so the VIP stays local when the node's
// address is removed. The route without a source replaces the kernel's own route, which selects the
// VIP as the source. The kernel scans all its own routes for each new address. With 10,000
// addresses, these scans took half of the time.
//
// For IPv6, the kernel's own route has a metric that no other route can have. So it is removed when
// vipd's route exists (see unshadow). If the node's address is removed, the kernel keeps vipd's
// route without the source.
func (rs *routes) route(family int, some []*address) []error {
	src := rs.source[family]
	errs := make([]error, len(some))
	if !src.IsValid() {
		return errs
	}
	flags := uint16(unix.NLM_F_CREATE) // the route precedes all routes with the same destination
	if family == 1 {
		flags |= unix.NLM_F_REPLACE // IPv6 treats routes that differ only in the source as equal
	}
	var put, drop []rtnl.Message
	var routed, replaced []int
	var fresh []*address
	for i, r := range some {
		if r.source != src {
			put, routed = append(put, rtnl.LocalRoute(unix.RTM_NEWROUTE, flags, r.addr, src, rs.device.index, routeProtocol)), append(routed, i)
			fresh = append(fresh, r)
		}
	}
	for j, err := range rs.batches.Do(put) {
		i := routed[j]
		r := some[i]
		if err != nil && !errors.Is(err, syscall.EEXIST) {
			errs[i] = fmt.Errorf("adding the route to %s from %s: %w", r.addr, src, err)
			continue
		}
		old := r.source
		r.source = src
		if family == 1 {
			r.shadowed = true
			rs.reopen(r)
		} else if old.IsValid() {
			drop, replaced = append(drop, rtnl.LocalRoute(unix.RTM_DELROUTE, 0, r.addr, old, rs.device.index, routeProtocol)), append(replaced, i)
		}
	}
	if family == 0 {
		rs.replaceKernelRoutes(fresh)
	}
	for j, err := range rs.batches.Do(drop) {
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			errs[replaced[j]] = fmt.Errorf("removing the old route to %s: %w", some[replaced[j]].addr, err)
		}
	}
	return errs
}

// replaceKernelRoutes replaces the kernel's own routes to these addresses with routes without a
// source.
func (rs *routes) replaceKernelRoutes(some []*address) {
	var put, drop []rtnl.Message
	for _, r := range some {
		put = append(put, rtnl.LocalRoute(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, r.addr, netip.Addr{}, rs.device.index, plainProtocol))
	}
	for i, err := range rs.batches.Do(put) {
		if a := some[i].addr; err == nil || errors.Is(err, syscall.EEXIST) { // otherwise the kernel's route remains, which also works
			drop = append(drop, rtnl.LocalRoute(unix.RTM_DELROUTE, 0, a, a, rs.device.index, unix.RTPROT_KERNEL))
		}
	}
	rs.batches.Do(drop) // errors are harmless
}

// unroute removes vipd's route to an address.
func (rs *routes) unroute(record *address) error {
	a := record.addr
	if !record.source.IsValid() {
		return nil
	}
	r := &netlink.Route{Dst: single(a), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	if a.Is4() {
		r.Scope = unix.RT_SCOPE_HOST
	}
	for _, protocol := range []netlink.RouteProtocol{routeProtocol, plainProtocol} {
		r.Protocol = protocol
		if err := rs.nl.RouteDel(r); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("removing the route to %s: %w", a, err)
		}
	}
	record.source = netip.Addr{}
	return nil
}

const notYet = "vipd has not tried to add it yet"

// rerouteAll adds missing routes of held addresses, and replaces all routes of a family whose
// source has changed.
func (rs *routes) rerouteAll() error {
	if _, err := rs.holder(); err != nil {
		return nil // routes need a device, and without it every VIP already has a problem
	}
	var all []error
	rs.asleep = false
	for family := range rs.source {
		if !rs.holds(family) {
			continue
		}
		if rs.sourceLost(family) {
			rs.source[family], rs.renumbered[family] = rs.anySource(family), false
			for a := range rs.ledger.Addresses {
				if r := rs.at(a); familyOf(a) == family && r.held.Where == rs.device.name && r.unrouted == "" {
					r.unrouted = notYet
					rs.reopen(r)
				}
			}
		}
		all = append(all, rs.reroute(family, rs.leftover(func(r *address) bool {
			return r.unrouted != "" && familyOf(r.addr) == family && r.held.Where == rs.device.name
		})))
	}
	return errors.Join(all...)
}

// sourceLost reports whether to search for a family's source again. It returns true if the node no
// longer has the source, or if the node had none and its addresses have changed since the last
// search.
func (rs *routes) sourceLost(family int) bool {
	s := rs.source[family]
	return s.IsValid() && len(rs.view.addrs[s]) == 0 || !s.IsValid() && rs.renumbered[family]
}

// reroute adds the routes to addresses of a family, or records why they can't be added. A device
// that is down is not an error, because vipd adds the routes when the device is up.
func (rs *routes) reroute(family int, some []*address) error {
	if !rs.view.devices[rs.device.index].up {
		for _, r := range some {
			rs.asleep = true
			rs.unroutable(r, "device "+rs.device.name+" is down")
		}
		return nil
	}
	var all []error
	for i, err := range rs.route(family, some) {
		r := some[i]
		if err != nil {
			rs.unroutable(r, err.Error())
			all = append(all, err)
			continue
		}
		r.unrouted = ""
		rs.show(r, Held{Addr: r.addr, Where: rs.device.name, Note: rs.device.note})
	}
	return errors.Join(all...)
}

// unroutable records the reason why an address has no route.
func (rs *routes) unroutable(r *address, reason string) {
	r.unrouted = reason
	rs.show(r, Held{Addr: r.addr, Where: rs.device.name, Note: "its route is pending: " + reason})
}

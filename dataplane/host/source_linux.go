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

// routes are the local routes by which connections from this host to held VIPs leave.
type routes struct {
	*state
	// source are the node's own addresses, IPv4 and IPv6, that they leave with.
	source [2]netip.Addr
	// lost: a route of ours was, or may have been, removed since they were looked at, perhaps by others.
	lost bool
	// renumbered: others' addresses of the family have changed since a source was looked for.
	renumbered [2]bool
	// asleep reports whether routes wait for the device to come up.
	asleep bool
}

// routeProtocol marks our routes, so that they are recognised without any memory. The number is unused in
// iproute2's list.
const routeProtocol = 118

// spareProtocol marks the routes that stand in for the kernel's own to IPv4 addresses, see route. It is unused, too.
const spareProtocol = 119

// Addresses for documentation (RFC 5737, RFC 3849): asking the kernel for the way there gives the address with which the
// node speaks to the world.
func world() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
}

// anySource finds the node's own address that connections to VIPs of a family should leave with: the one that it speaks
// to the world with, else, without a default route, the first that it has. One that is a service's VIP as well is the
// last choice. It is invalid where the node has none.
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
	routes, err := rs.nl.RouteGet(net.IP(world()[family].AsSlice()))
	if err == nil && len(routes) > 0 {
		if a, ok := netip.AddrFromSlice(routes[0].Src); ok && slices.Contains(own, a.Unmap()) {
			return a.Unmap()
		}
	}
	return slices.MinFunc(own, func(a, b netip.Addr) int { return rs.rank(a) - rs.rank(b) })
}

// rank orders addresses as sources: those that the kernel avoids come last, then by device, oldest first.
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

// route makes connections from this host to held addresses of a family leave with the node's own address. It returns an
// error or nil for each.
//
// For IPv4 the route comes before one without a source: when the node's address goes, the VIP is still local. That one takes the
// place of the kernel's own, which has the VIP for its source, and all of which the kernel walks through for each address that
// comes: this was half of the time that ten thousand addresses take.
// For IPv6 the kernel's own has a metric that others can't have, so it goes once ours is there, see unshadow; should
// the node's address go, the kernel keeps our route without it.
func (rs *routes) route(family int, some []*address) []error {
	src := rs.source[family]
	errs := make([]error, len(some))
	if !src.IsValid() {
		return errs
	}
	flags := uint16(unix.NLM_F_CREATE) // before those with the same destination, whatever their number
	if family == 1 {
		flags |= unix.NLM_F_REPLACE // IPv6 takes routes that differ in the source alone for the same
	}
	var put, drop []rtnl.Message
	var routed, replaced []int // by their places among some
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
		rs.spare(fresh)
	}
	for j, err := range rs.batches.Do(drop) {
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			errs[replaced[j]] = fmt.Errorf("removing the old route to %s: %w", some[replaced[j]].addr, err)
		}
	}
	return errs
}

// spare puts a route without a source in the place of the kernel's own to these addresses.
func (rs *routes) spare(some []*address) {
	var put, drop []rtnl.Message
	for _, r := range some {
		put = append(put, rtnl.LocalRoute(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, r.addr, netip.Addr{}, rs.device.index, spareProtocol))
	}
	for i, err := range rs.batches.Do(put) {
		if a := some[i].addr; err == nil || errors.Is(err, syscall.EEXIST) { // or else the kernel's stays, which does as well
			drop = append(drop, rtnl.LocalRoute(unix.RTM_DELROUTE, 0, a, a, rs.device.index, unix.RTPROT_KERNEL))
		}
	}
	rs.batches.Do(drop) // one that is gone already, or stays, does no harm
}

// unroute removes our route to an address.
func (rs *routes) unroute(record *address) error {
	a := record.addr
	if !record.source.IsValid() {
		return nil
	}
	r := &netlink.Route{Dst: single(a), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	if a.Is4() {
		r.Scope = unix.RT_SCOPE_HOST
	}
	for _, r.Protocol = range []netlink.RouteProtocol{routeProtocol, spareProtocol} {
		if err := rs.nl.RouteDel(r); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("removing the route to %s: %w", a, err)
		}
	}
	record.source = netip.Addr{}
	return nil
}

// notYet is why a route is missing that was not tried yet.
const notYet = "it was not tried yet"

// rerouteAll gives held addresses their routes: those that have none yet, and all where the source has changed.
func (rs *routes) rerouteAll() error {
	if _, err := rs.holder(); err != nil {
		return nil // there is nothing that routes could lead to, which is a problem of every VIP already
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

// sourceLost reports whether a family's source is none of the node's addresses any more, or none was found before those
// changed.
func (rs *routes) sourceLost(family int) bool {
	s := rs.source[family]
	return s.IsValid() && len(rs.view.addrs[s]) == 0 || !s.IsValid() && rs.renumbered[family]
}

// reroute gives addresses of a family their routes, or notes why they have none. That the device is down is no error: it
// will come up.
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

// unroutable notes why an address has no route.
func (rs *routes) unroutable(r *address, reason string) {
	r.unrouted = reason
	rs.show(r, Held{Addr: r.addr, Where: rs.device.name, Note: "its route is pending: " + reason})
}

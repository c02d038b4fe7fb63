package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/dataplane/internal/rtnl"
)

// routes are how connections from this host to held VIPs leave.
type routes struct {
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
func (h *Host) anySource(family int) netip.Addr {
	own := h.view.own(func(a netip.Addr) bool {
		r := h.all[a]
		return familyOf(a) != family || h.ledger.Addresses[a] != "" || r != nil && r.standing == balancer.Owned
	})
	private := slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { r := h.all[a]; return r != nil && r.needed() })
	if len(private) > 0 {
		own = private
	}
	if len(own) == 0 {
		return netip.Addr{}
	}
	routes, err := h.nl.RouteGet(net.IP(world()[family].AsSlice()))
	if err == nil && len(routes) > 0 {
		if a, ok := netip.AddrFromSlice(routes[0].Src); ok && slices.Contains(own, a.Unmap()) {
			return a.Unmap()
		}
	}
	return slices.MinFunc(own, func(a, b netip.Addr) int { return h.rank(a) - h.rank(b) })
}

// rank orders addresses as sources: those that the kernel avoids come last, then by device, oldest first.
func (h *Host) rank(a netip.Addr) int {
	const last = 1 << 30
	best := 2 * last
	for _, p := range h.view.addrs[a] {
		rank := min(p.link, last-1)
		if p.deprecated() {
			rank += last
		}
		best = min(best, rank)
	}
	return best
}

// routesTo are the routes to one local address.
type routesTo struct {
	ours, spare []netlink.Route
	// kernels reports whether the kernel's own route to the address exists.
	kernels bool
}

// readRoutes reads the local routes. It removes ours to addresses that vipd does not hold, and completes those of the others.
func (h *Host) readRoutes() error {
	for _, r := range h.all {
		r.source = netip.Addr{}
	}
	to := map[netip.Addr]*routesTo{}
	for _, r := range h.localRoutes() {
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
		source, rest := h.judge(dst, at)
		useless = append(useless, rest...)
		if !source.IsValid() {
			continue
		}
		r := h.at(dst)
		r.source = source
		switch {
		case dst.Is4() && (at.kernels || len(at.spare) == 0):
			incomplete = append(incomplete, r)
		case dst.Is6() && at.kernels:
			r.shadowed = true
			h.reopen(r)
		}
	}
	for _, r := range useless {
		if err := h.dropRoute(r); err != nil {
			return err
		}
	}
	if _, err := h.holder(); err == nil {
		h.spare(incomplete)
	}
	return nil
}

// judge returns the source that our route to an address carries, and which of our routes are of no use.
func (h *Host) judge(dst netip.Addr, at *routesTo) (source netip.Addr, useless []netlink.Route) {
	link := h.view.link(h.ledger.Addresses[dst]) // 0 if it is not ours
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

// dropRoute removes a route that is of no use, where it is there.
func (h *Host) dropRoute(r netlink.Route) error {
	if err := h.nl.RouteDel(&r); err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("removing the route to %s: %w", r.Dst.IP, err)
	}
	return nil
}

// ourRoutes lists the local routes that bear one of our marks.
func (h *Host) ourRoutes(mark netlink.RouteProtocol) []netlink.Route {
	return slices.DeleteFunc(h.localRoutes(), func(r netlink.Route) bool { return r.Protocol != mark })
}

// localRoutes lists the host's routes to its own addresses, those to the same address in their order.
func (h *Host) localRoutes() []netlink.Route {
	var out []netlink.Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
		routes, err := again(func() ([]netlink.Route, error) {
			return h.nl.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
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

// route makes connections from this host to held addresses of a family leave with the node's own address. It returns an
// error or nil for each.
//
// For IPv4 the route comes before one without a source: when the node's address goes, the VIP is still local. That one takes the
// place of the kernel's own, which has the VIP for its source, and all of which the kernel walks through for each address that
// comes: this was half of the time that ten thousand addresses take.
// For IPv6 the kernel's own has a metric that others can't have, so it goes once ours is there, see unshadow; should
// the node's address go, the kernel keeps our route without it.
func (h *Host) route(family int, some []*address) []error {
	src := h.source[family]
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
			put, routed = append(put, rtnl.LocalRoute(unix.RTM_NEWROUTE, flags, r.addr, src, h.device.index, routeProtocol)), append(routed, i)
			fresh = append(fresh, r)
		}
	}
	for j, err := range h.batches.Do(put) {
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
			h.reopen(r)
		} else if old.IsValid() {
			drop, replaced = append(drop, rtnl.LocalRoute(unix.RTM_DELROUTE, 0, r.addr, old, h.device.index, routeProtocol)), append(replaced, i)
		}
	}
	if family == 0 {
		h.spare(fresh)
	}
	for j, err := range h.batches.Do(drop) {
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			errs[replaced[j]] = fmt.Errorf("removing the old route to %s: %w", some[replaced[j]].addr, err)
		}
	}
	return errs
}

// spare puts a route without a source in the place of the kernel's own to these addresses.
func (h *Host) spare(some []*address) {
	var put, drop []rtnl.Message
	for _, r := range some {
		put = append(put, rtnl.LocalRoute(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, r.addr, netip.Addr{}, h.device.index, spareProtocol))
	}
	for i, err := range h.batches.Do(put) {
		if a := some[i].addr; err == nil || errors.Is(err, syscall.EEXIST) { // or else the kernel's stays, which does as well
			drop = append(drop, rtnl.LocalRoute(unix.RTM_DELROUTE, 0, a, a, h.device.index, unix.RTPROT_KERNEL))
		}
	}
	h.batches.Do(drop) // one that is gone already, or stays, does no harm
}

// unshadow removes the kernel's own routes to IPv6 addresses that have ours. The kernel ends the adding of an address
// in its own work queue, where it puts its route back if that is gone: so this waits for the event from there. If the event of a
// fresh address is late, as on a busy host, its route is left for when it comes, see Intact.
func (h *Host) unshadow(ctx context.Context, fresh []*address) error {
	shadowed := func(r *address) bool { return r.shadowed }
	if len(h.leftover(shadowed)) == 0 {
		return nil
	}
	const patience, pause = time.Second, 2 * time.Millisecond
	arriving := func(r *address) bool { return r.arriving }
	for deadline := time.Now().Add(patience); !h.stale && slices.ContainsFunc(fresh, arriving) && time.Now().Before(deadline) && wake.Sleep(ctx, pause); {
		h.catchUp()
	}
	return h.dropShadows(h.leftover(shadowed))
}

// dropArrived removes the kernel's routes of those addresses that have come after unshadow. Where their device is gone, so are they.
func (h *Host) dropArrived() error {
	come := h.leftover(func(r *address) bool { return r.shadowed && !r.arriving })
	if len(come) == 0 {
		return nil
	}
	if d, err := h.holder(); err != nil || d.index == 0 {
		for _, r := range come {
			r.shadowed = false
		}
		return nil //nolint:nilerr // status has it, and what comes to the device is shadowed anew
	}
	return h.dropShadows(come)
}

// dropShadows removes the kernel's routes to shadowed addresses. Those that are still arriving remain shadowed.
func (h *Host) dropShadows(shadowed []*address) error {
	if len(shadowed) == 0 {
		return nil
	}
	// The event comes first, then the route, both under the lock that this request has to take.
	if _, err := h.nl.LinkByIndex(h.device.index); err != nil {
		return fmt.Errorf("looking at device %s: %w", h.device.name, err)
	}
	var drop []rtnl.Message
	for _, r := range shadowed {
		drop = append(drop, rtnl.LocalRoute(unix.RTM_DELROUTE, 0, r.addr, netip.Addr{}, h.device.index, unix.RTPROT_KERNEL))
	}
	var all []error
	for i, err := range h.batches.Do(drop) {
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			all = append(all, fmt.Errorf("removing the kernel's route to %s: %w", shadowed[i].addr, err))
		}
	}
	for _, r := range shadowed {
		r.shadowed = r.arriving
	}
	return errors.Join(all...)
}

// unroute removes our route to an address.
func (h *Host) unroute(record *address) error {
	a := record.addr
	if !record.source.IsValid() {
		return nil
	}
	r := &netlink.Route{Dst: single(a), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	if a.Is4() {
		r.Scope = unix.RT_SCOPE_HOST
	}
	for _, r.Protocol = range []netlink.RouteProtocol{routeProtocol, spareProtocol} {
		if err := h.nl.RouteDel(r); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("removing the route to %s: %w", a, err)
		}
	}
	record.source = netip.Addr{}
	return nil
}

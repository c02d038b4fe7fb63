package direct

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// layoutOf reads the layout for these endpoints. While an endpoint's device is down, it uses the
// endpoint's device from the map before. Otherwise the endpoint's connections would be sent to NAT,
// which would reset them.
func layoutOf(nl *netlink.Handle, endpoints map[netip.Addr]bool, before map[netip.Addr]uint32) (layout, error) {
	all := layout{via: map[netip.Addr]uint32{}}
	links, err := nl.LinkList()
	if err != nil {
		return all, fmt.Errorf("listing devices: %w", err)
	}
	kinds, down := map[int]string{}, map[uint32]bool{}
	for _, l := range links {
		kinds[l.Attrs().Index] = l.Type()
		down[uint32(l.Attrs().Index)] = l.Attrs().Flags&net.FlagUp == 0
	}
	used := map[uint32]bool{}
	for a := range endpoints {
		index := before[a]
		if !down[index] {
			if index, err = deviceTo(nl, a); err != nil {
				return all, err
			}
		}
		if index != 0 {
			all.via[a], used[index] = index, true
		}
	}
	for _, l := range links {
		d := device{name: l.Attrs().Name, index: uint32(l.Attrs().Index)}
		master := kinds[l.Attrs().MasterIndex]
		if l.Attrs().Flags&net.FlagLoopback == 0 && (master == "" || master == "vrf") { // frames that a bridge's or bond's port receives arrive on the bridge or bond
			all.arriving = append(all.arriving, d)
		}
		if used[d.index] {
			all.leaving = append(all.leaving, d)
		}
	}
	slices.SortFunc(all.arriving, func(a, b device) int { return int(a.index) - int(b.index) })
	slices.SortFunc(all.leaving, func(a, b device) int { return int(a.index) - int(b.index) })
	return all, nil
}

// deviceTo returns the index of the device through which this host reaches an address directly, or
// 0 if it uses a router.
func deviceTo(nl *netlink.Handle, a netip.Addr) (uint32, error) {
	routes, err := nl.RouteGet(a.AsSlice())
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL} { // errors for route types that have no device
		if errors.Is(err, none) {
			return 0, nil
		}
	}
	if err != nil {
		return 0, fmt.Errorf("finding the route to %s: %w", a, err)
	}
	if len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST || routes[0].Gw != nil || routes[0].Via != nil {
		return 0, nil
	}
	return uint32(routes[0].LinkIndex), nil
}

// retryInterrupted calls the function read, and calls it again if the devices changed during the
// call.
func retryInterrupted(read func() (layout, error)) (all layout, err error) {
	for range 10 {
		if all, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, err
}

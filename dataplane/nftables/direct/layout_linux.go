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

// layout describes the devices and routes on which the table depends.
type layout struct {
	// arriving are the devices on which clients may arrive, and leaving the devices of endpoints.
	arriving, leaving []device
	// via maps each endpoint that this host reaches without a router to the endpoint's device.
	via map[netip.Addr]uint32
}

// layoutOf reads the layout for these endpoints.
func layoutOf(nl *netlink.Handle, endpoints map[netip.Addr]bool) (layout, error) {
	all := layout{via: map[netip.Addr]uint32{}}
	links, err := nl.LinkList()
	if err != nil {
		return all, fmt.Errorf("listing devices: %w", err)
	}
	for a := range endpoints {
		routes, err := nl.RouteGet(a.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_UNICAST && routes[0].Gw == nil && routes[0].Via == nil {
			all.via[a] = uint32(routes[0].LinkIndex)
		}
	}
	kinds := map[int]string{}
	for _, l := range links {
		kinds[l.Attrs().Index] = l.Type()
	}
	for _, l := range links {
		d := device{name: l.Attrs().Name, index: uint32(l.Attrs().Index)}
		master := kinds[l.Attrs().MasterIndex]
		if l.Attrs().Flags&net.FlagLoopback == 0 && (master == "" || master == "vrf") { // frames of a bridge's or bond's ports arrive on the bridge or bond
			all.arriving = append(all.arriving, d)
		}
		for _, index := range all.via {
			if index == d.index {
				all.leaving = append(all.leaving, d)
				break
			}
		}
	}
	slices.SortFunc(all.arriving, func(a, b device) int { return int(a.index) - int(b.index) })
	slices.SortFunc(all.leaving, func(a, b device) int { return int(a.index) - int(b.index) })
	return all, nil
}

// retryInterrupted calls the function read, and repeats the call if another program changes the
// devices during the call.
func retryInterrupted(read func() (layout, error)) (all layout, err error) {
	for range 10 {
		if all, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, err
}

package host

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteTo asks the kernel for the way to an address.
func RouteTo(a netip.Addr) (Route, error) {
	found, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(found) == 0 {
		return Route{}, fmt.Errorf("looking for the way to %s: %w", a, err)
	}
	return Route{Local: found[0].Type == unix.RTN_LOCAL, Index: found[0].LinkIndex}, nil
}

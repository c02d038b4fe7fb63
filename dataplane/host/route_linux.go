package host

import (
	"fmt"
	"net/netip"
	"strings"

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

// Unforwarded names the sysctl that keeps the kernel from forwarding what a host sends that the route leads to; "" means that none
// does.
func Unforwarded(sender netip.Addr, by Route) string {
	is := func(name, value string) bool {
		has, err := procSysctls{}.Read(name)
		return err == nil && has == value
	}
	if sender.Is6() && !is(forward6, "0") {
		return ""
	}
	link, err := netlink.LinkByIndex(by.Index)
	if err != nil {
		return ""
	}
	switch one := "net.ipv4.conf." + strings.ReplaceAll(link.Attrs().Name, ".", "/") + ".forwarding"; {
	case sender.Is6() && is(forced6(link.Attrs().Name), "1"):
		return ""
	case sender.Is6():
		return forward6
	case !is(one, "0"):
		return ""
	case is(forward4, "0"):
		return forward4
	default:
		return one
	}
}

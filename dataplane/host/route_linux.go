package host

import (
	"fmt"
	"net"
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

// Unforwarded names the sysctl that keeps the kernel from forwarding what a client sends that the route leads to; "" means that none
// does.
func Unforwarded(client netip.Addr, by Route) string {
	off := func(name string) bool {
		value, err := procSysctls{}.Read(name)
		return err == nil && value == "0"
	}
	if client.Is6() {
		if off(forward6) {
			return forward6
		}
		return ""
	}
	device, err := net.InterfaceByIndex(by.Index)
	if err != nil {
		return ""
	}
	switch name := "net.ipv4.conf." + strings.ReplaceAll(device.Name, ".", "/") + ".forwarding"; {
	case !off(name):
		return ""
	case off(forward4):
		return forward4
	default:
		return name
	}
}

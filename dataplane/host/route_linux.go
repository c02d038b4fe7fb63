package host

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RouteTo returns the kernel's route to an address.
func RouteTo(a netip.Addr) (Route, error) {
	found, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(found) == 0 {
		return Route{}, fmt.Errorf("finding the route to %s: %w", a, err)
	}
	return Route{Local: found[0].Type == unix.RTN_LOCAL, Index: found[0].LinkIndex}, nil
}

// Unforwarded returns the sysctl that prevents the kernel from forwarding packets from sender. The
// packets arrive on the interface of by, the host's route to sender. Unforwarded returns "" if the
// kernel forwards them or the interface is unknown.
func Unforwarded(sender netip.Addr, by Route) string {
	isSet := func(name, value string) bool {
		has, err := procSysctls{}.Read(name)
		return err == nil && has == value
	}
	if sender.Is6() && !isSet(forward6, "0") {
		return ""
	}
	link, err := netlink.LinkByIndex(by.Index)
	if err != nil {
		return ""
	}
	switch perDevice := "net.ipv4.conf." + strings.ReplaceAll(link.Attrs().Name, ".", "/") + ".forwarding"; {
	case sender.Is6() && isSet(forceForwarding6(link.Attrs().Name), "1"):
		return ""
	case sender.Is6():
		return forward6
	case !isSet(perDevice, "0"):
		return ""
	case isSet(forward4, "0"):
		return forward4
	default:
		return perDevice
	}
}

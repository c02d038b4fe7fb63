package host

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NeighborAt returns the kernel's neighbor entry for an address that this host reaches without a
// router.
func NeighborAt(a netip.Addr) (n Neighbor, err error) {
	n.Addr = a
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil {
		return n, fmt.Errorf("finding the route to %s: %w", a, err)
	}
	if len(routes) == 0 || routes[0].Type != unix.RTN_UNICAST || routes[0].Gw != nil || routes[0].Via != nil {
		return n, nil
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return n, fmt.Errorf("reading the device of the route to %s: %w", a, err)
	}
	n.Device = link.Attrs().Name
	known, err := netlink.NeighList(routes[0].LinkIndex, netlink.FAMILY_ALL)
	if err != nil {
		return n, fmt.Errorf("listing the neighbors on %s: %w", n.Device, err)
	}
	for _, entry := range known {
		if at, ok := netip.AddrFromSlice(entry.IP); ok && at.Unmap() == a {
			n.Silent = entry.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) != 0
			if !n.Silent {
				n.MAC = entry.HardwareAddr.String()
			}
		}
	}
	return n, nil
}

// BridgeFilter checks whether the device on a route to a client is a bridge whose frames pass
// through netfilter. Netfilter then translates packets before they arrive on the bridge. It returns
// the names of the device and of the sysctl that causes this, or "".
func BridgeFilter(client netip.Addr, to Route) (device, sysctl string) {
	link, err := netlink.LinkByIndex(to.Index)
	if err != nil || link.Type() != "bridge" {
		return "", ""
	}
	name := "net.bridge.bridge-nf-call-iptables"
	if client.Is6() {
		name = "net.bridge.bridge-nf-call-ip6tables"
	}
	if value, err := (procSysctls{}).Read(name); err != nil || value == "0" {
		return "", ""
	}
	return link.Attrs().Name, name
}

package failover

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AdvertSources returns the addresses of an interface that adverts are sent from: the first IPv4
// address and the link-local IPv6 address that are not VIPs. An address is the zero Addr if the
// interface has none or it may not be used yet.
func AdvertSources(name string, vips []netip.Addr) (v4, v6 netip.Addr) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return v4, v6
	}
	all, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return v4, v6
	}
	const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	for _, one := range all {
		a, ok := netip.AddrFromSlice(one.IP)
		a = a.Unmap()
		switch {
		case !ok || one.Flags&unusable != 0 || slices.Contains(vips, a):
		case a.Is4() && !v4.IsValid():
			v4 = a
		case a.IsLinkLocalUnicast() && a.Is6() && !v6.IsValid():
			v6 = a
		}
	}
	return v4, v6
}

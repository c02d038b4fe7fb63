package failover

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AdvertSources returns the addresses of an interface from which adverts may be sent, in the
// kernel's order. It omits VIPs, and addresses that can't be used yet. A missing interface has no
// source addresses.
func AdvertSources(name string, vips []netip.Addr) (all []netip.Addr, err error) {
	link, err := netlink.LinkByName(name)
	if _, ok := errors.AsType[netlink.LinkNotFoundError](err); ok {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading interface %s: %w", name, err)
	}
	held, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of %s: %w", name, err)
	}
	const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	for _, one := range held {
		a, ok := netip.AddrFromSlice(one.IP)
		if a = a.Unmap(); ok && one.Flags&unusable == 0 && !slices.Contains(vips, a) {
			all = append(all, a)
		}
	}
	return all, nil
}

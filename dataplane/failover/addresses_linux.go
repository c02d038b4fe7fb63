package failover

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/rtnl"
)

// Addresses adds owned VIPs to devices, and removes them. It is not safe for concurrent use.
type Addresses struct{ batches *rtnl.Batches }

// NewAddresses opens the netlink sockets. It does not change any address.
func NewAddresses() (*Addresses, error) {
	b, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	return &Addresses{b}, nil
}

// Close closes the netlink sockets. It leaves the addresses on their devices.
func (x *Addresses) Close() error { return x.batches.Close() }

// Add adds VIPs to a device as single addresses. IPv6 addresses skip duplicate address detection,
// which would take a second. An address that already exists counts as added. Add waits until the
// kernel accepts packets for all added addresses. It returns an error or nil for each address.
func (x *Addresses) Add(device int, vips []netip.Addr) []error {
	messages := make([]rtnl.Message, len(vips))
	for i, a := range vips {
		messages[i] = rtnl.NewAddress(a, device)
	}
	errs := x.do("adding", device, vips, messages, syscall.EEXIST)
	end := time.Now().Add(settling)
	for i, a := range vips {
		for errs[i] == nil && a.Is6() && !isLocal(a) && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
	}
	return errs
}

// settling is the maximum wait for the routes of new IPv6 addresses, which the kernel adds shortly
// after the addresses. Until then, the gate drops packets to and from an address, including
// announcements.
const settling = 500 * time.Millisecond

// isLocal reports whether the kernel accepts packets for an address. If the kernel can't be
// queried, it returns true.
func isLocal(a netip.Addr) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	return err != nil && !errors.Is(err, unix.ENETUNREACH) || len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// Remove removes VIPs from a device. A missing address counts as removed. Remove returns an error
// or nil for each address.
func (x *Addresses) Remove(device int, vips []netip.Addr) []error {
	messages := make([]rtnl.Message, len(vips))
	for i, a := range vips {
		messages[i] = rtnl.DropAddress(a, device)
	}
	return x.do("removing", device, vips, messages, syscall.EADDRNOTAVAIL)
}

func (x *Addresses) do(what string, device int, vips []netip.Addr, messages []rtnl.Message, fine error) []error {
	errs := x.batches.Do(messages)
	for i, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, fine), errors.Is(err, syscall.ENODEV) && what == "removing":
			errs[i] = nil
		case errors.Is(err, syscall.EACCES) && vips[i].Is6():
			errs[i] = fmt.Errorf("%s %s: IPv6 is disabled on interface %d: %w", what, vips[i], device, err)
		default:
			errs[i] = fmt.Errorf("%s %s: %w", what, vips[i], err)
		}
	}
	return errs
}

// Strip removes the VIPs from every device, even if another program added them or an earlier
// process left them. An address that has a network (a prefix length other than that of a single
// address) belongs to the host itself. Strip does not remove such addresses, and returns them in
// own.
func (x *Addresses) Strip(vips []netip.Addr) (own []netip.Addr, err error) {
	wanted := map[netip.Addr]bool{}
	for _, a := range vips {
		wanted[a] = true
	}
	held, err := Held()
	if err != nil {
		return nil, err
	}
	var all []error
	for device, addrs := range held {
		var gone []netip.Addr
		for _, p := range addrs {
			switch {
			case !wanted[p.Addr()]:
			case p.IsSingleIP():
				gone = append(gone, p.Addr())
			default:
				own = append(own, p.Addr())
			}
		}
		all = append(all, x.Remove(device, gone)...)
	}
	slices.SortFunc(own, netip.Addr.Compare)
	return own, errors.Join(all...)
}

// Held returns the addresses of this host with their networks, by device index. It uses a single
// request, because a host may have many devices and addresses. It wraps the kernel's errors.
func Held() (map[int][]netip.Prefix, error) {
	const tries = 5 // a change to addresses interrupts a listing
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	for n := 1; errors.Is(err, netlink.ErrDumpInterrupted) && n < tries; n++ {
		all, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
	}
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	held := map[int][]netip.Prefix{}
	for _, one := range all {
		network := one.IPNet
		if one.Peer != nil {
			network = one.Peer // on a point-to-point link, the network is the peer's network
		}
		if a, ok := netip.AddrFromSlice(one.IP); ok {
			ones, _ := network.Mask.Size()
			held[one.LinkIndex] = append(held[one.LinkIndex], netip.PrefixFrom(a.Unmap(), ones))
		}
	}
	return held, nil
}

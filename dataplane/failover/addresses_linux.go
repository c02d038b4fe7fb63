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

// Addresses puts owned VIPs on devices and takes them away. It is for one goroutine.
type Addresses struct{ batches *rtnl.Batches }

// NewAddresses opens what it needs. It changes nothing.
func NewAddresses() (*Addresses, error) {
	b, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	return &Addresses{b}, nil
}

// Close closes what NewAddresses opened. Addresses stay.
func (x *Addresses) Close() error { return x.batches.Close() }

// Add puts VIPs on a device, whole and alone: IPv6 ones without duplicate detection, which would take a second. One that is
// there already counts as added. It returns an error or nil for each, once the kernel takes packets for all that were added.
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

// settling bounds the wait for the routes of IPv6 addresses, which the kernel adds a moment after them: until then the gate drops what
// is said in their names, announcements too.
const settling = 500 * time.Millisecond

// isLocal reports whether the kernel takes packets for an address. If it can't be asked, it is not waited for.
func isLocal(a netip.Addr) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	return err != nil && !errors.Is(err, unix.ENETUNREACH) || len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
}

// Remove takes VIPs from a device; one that is not there counts as removed. It returns an error or nil for each.
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

// Strip takes the VIPs from every device, also those that another program added or an earlier process left. One that is there with a
// network is the host's own, and stays; it is returned in own.
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
	for device, there := range held {
		var gone []netip.Addr
		for _, p := range there {
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

// Held lists the addresses of this host with their networks, by the index of their device: in one answer of the kernel, as there may be many of
// both. Its errors are the kernel's.
func Held() (map[int][]netip.Prefix, error) {
	const tries = 5 // of listings that a change interrupts
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
			network = one.Peer // that of one's own address is with it
		}
		if a, ok := netip.AddrFromSlice(one.IP); ok {
			ones, _ := network.Mask.Size()
			held[one.LinkIndex] = append(held[one.LinkIndex], netip.PrefixFrom(a.Unmap(), ones))
		}
	}
	return held, nil
}

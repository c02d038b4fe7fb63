package host

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer/snap"
	"vipd/dataplane/guard"
)

// local is a local address on a device.
type local struct {
	link  int
	bits  int
	flags int
}

// device is a network device.
type device struct {
	name     string
	up       bool
	loopback bool
	// running reports whether the device is up and has a carrier.
	running bool
	master  int
	// mtu is the maximum size of its packets, in bytes. It is 0 for a dummy device, which sends no
	// packets.
	mtu int
}

// dummyKind is the kernel's name for the type of dummy devices.
const dummyKind = "dummy"

// view is the kernel's state as vipd last observed it. It is read completely once, and events then
// update it.
type view struct {
	addrs   map[netip.Addr][]local
	devices map[int]device
	// silenced caches the result of arpSilenced for these records, until an address changes.
	silenced *silenced
}

// silenced holds the IPv4 addresses on lo that are not vipd's, for the records in shown.
type silenced struct {
	shown snap.Map[netip.Addr, shown]
	addrs []netip.Addr
}

func (v *view) set(a netip.Addr, at local) {
	v.silenced = nil
	places := v.addrs[a]
	for i := range places {
		if places[i].link == at.link && places[i].bits == at.bits {
			places[i] = at
			return
		}
	}
	v.addrs[a] = append(places, at)
}

func (v *view) unset(a netip.Addr, link, bits int) {
	v.silenced = nil
	places := slices.DeleteFunc(v.addrs[a], func(p local) bool { return p.link == link && p.bits == bits })
	if len(places) == 0 {
		delete(v.addrs, a)
		return
	}
	v.addrs[a] = places
}

// has reports whether the device has the address as a host address (/32 or /128). No device has
// the index 0.
func (v *view) has(a netip.Addr, link int) bool {
	return slices.ContainsFunc(v.addrs[a], func(p local) bool { return p.link == link && p.bits == a.BitLen() })
}

// link returns the index of a device, or 0.
func (v *view) link(name string) int {
	for i, d := range v.devices {
		if d.name == name {
			return i
		}
	}
	return 0
}

func readView(nl *netlink.Handle) (view, error) {
	v := view{addrs: map[netip.Addr][]local{}, devices: map[int]device{}}
	links, err := retryInterrupted(nl.LinkList)
	if err != nil {
		return v, fmt.Errorf("listing links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		d := device{
			name: a.Name, up: a.Flags&net.FlagUp != 0, loopback: a.Flags&net.FlagLoopback != 0,
			running: a.RawFlags&unix.IFF_RUNNING != 0, master: a.MasterIndex,
		}
		if l.Type() != dummyKind {
			d.mtu = a.MTU
		}
		v.devices[a.Index] = d
	}
	addrs, err := retryInterrupted(func() ([]netlink.Addr, error) { return nl.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return v, fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			bits, _ := a.Mask.Size()
			v.set(ip.Unmap(), local{link: a.LinkIndex, bits: bits, flags: a.Flags})
		}
	}
	return v, nil
}

// retryInterrupted calls list again if its listing was inconsistent because the kernel's data
// changed meanwhile.
func retryInterrupted[T any](list func() ([]T, error)) (out []T, err error) {
	for range 10 {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, err
}

// broadcasts maps each broadcast address of a connected IPv4 network to the network.
func (v *view) broadcasts() map[netip.Addr]netip.Prefix {
	all := map[netip.Addr]netip.Prefix{}
	for a, places := range v.addrs {
		for _, p := range places {
			if network := netip.PrefixFrom(a, p.bits); !v.devices[p.link].loopback {
				if last, ok := Broadcast(network); ok {
					all[last] = network.Masked()
				}
			}
		}
	}
	return all
}

// own returns the host's usable addresses for which foreign is false, sorted. It omits addresses
// that are tentative or duplicate.
func (v *view) own(foreign func(netip.Addr) bool) []netip.Addr {
	var out []netip.Addr
	for a, places := range v.addrs {
		if !usable(a) || foreign(a) {
			continue
		}
		tentative := func(p local) bool { return p.flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 }
		if !slices.ContainsFunc(places, func(p local) bool { return !tentative(p) }) {
			continue
		}
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// deprecated reports whether the kernel avoids the address as a source.
func (p local) deprecated() bool {
	return p.flags&(unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED|unix.IFA_F_TEMPORARY) != 0
}

// interfaces returns the devices between which packets are forwarded, sorted by name. It omits
// loopback devices. It also omits members of a bridge, a bond or a VRF, because their master
// forwards.
func (v *view) interfaces() []guard.Interface {
	var all []guard.Interface
	for i, d := range v.devices {
		if !d.loopback && d.master == 0 {
			mtu := 0
			if d.up {
				mtu = d.mtu
			}
			all = append(all, guard.Interface{Name: d.name, Index: i, MTU: mtu})
		}
	}
	slices.SortFunc(all, func(a, b guard.Interface) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// fastPathDevices returns the existing devices that fast_path selects, sorted by name. "auto"
// selects all devices that are up and send packets.
func (v *view) fastPathDevices(names []string) (all []string) {
	auto := slices.Contains(names, guard.FastPathAuto)
	for _, d := range v.devices {
		if auto && d.up && !d.loopback && d.mtu != 0 || slices.Contains(names, d.name) {
			all = append(all, d.name)
		}
	}
	slices.Sort(all)
	return all
}

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"

	"vipd/dataplane/internal/rtnl"
)

// mover adds addresses to the device, and removes them.
type mover struct {
	*state
	*routes
	*observer
}

// refuse puts off what was to be added, because that can't be recorded.
func (mv *mover) refuse(some []*address, err error) error {
	for _, r := range some {
		if errors.Is(err, fs.ErrPermission) {
			mv.deny(r, fmt.Sprintf("%s (%v)", needPrivilege, err))
		} else {
			mv.fail(r, err)
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// putOff leaves out the addresses of a family whose guard does not stand for the reason err: they would be open on every
// port. It returns the others.
func (mv *mover) putOff(some []*address, family int, err error) []*address {
	return slices.DeleteFunc(some, func(r *address) bool {
		if familyOf(r.addr) == family {
			mv.fail(r, err)
		}
		return familyOf(r.addr) == family
	})
}

// addAll adds addresses to the device, after it has taken away those that are on another.
func (mv *mover) addAll(ctx context.Context, some []*address) error {
	var all []error
	const between = 1000 / rtnl.BatchSize // the events that some batches make have room in the kernel
	for i := 0; len(some) > 0; i++ {
		if ctx.Err() != nil {
			for _, rest := range some {
				mv.fail(rest, ctx.Err())
			}
			break
		}
		if i%between == between-1 {
			mv.catchUp()
			all = append(all, mv.rerouteAll()) // the fewer routes of the kernel's own there are, the less an address takes
		}
		part := some[:min(rtnl.BatchSize, len(some))]
		all = append(all, mv.addSome(part))
		some = some[len(part):]
	}
	return errors.Join(all...)
}

// addSome is addAll for what is done at once.
func (mv *mover) addSome(some []*address) error {
	var all []error
	messages := make([]rtnl.Message, len(some))
	for i, r := range some {
		for _, device := range slices.Clone(mv.ledger.Leaving[r.addr]) {
			if err := mv.remove(r, device); err != nil {
				all = append(all, err)
				mv.tryAgain(r)
				continue
			}
			mv.ledger.left(r.addr, device)
		}
		messages[i] = rtnl.NewAddress(r.addr, mv.device.index)
	}
	for i, err := range mv.batches.Do(messages) {
		r := some[i]
		switch {
		case err == nil, errors.Is(err, syscall.EEXIST):
			mv.arrive(r, err == nil)
		case errors.Is(err, syscall.EPERM):
			mv.deny(r, needPrivilege)
		case errors.Is(err, syscall.EACCES) && r.addr.Is6():
			mv.deny(r, fmt.Sprintf("IPv6 is disabled on %s: sysctl -w %s=0", mv.device.name, disableIPv6(mv.device.name)))
			mv.device.without6 = true
		default:
			err = fmt.Errorf("adding address %s to %s: %w", r.addr, mv.device.name, err)
			mv.fail(r, err)
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// fail notes why an address could not be added, and has it tried again.
func (mv *mover) fail(r *address, err error) {
	mv.deny(r, err.Error())
	mv.tryAgain(r)
}

// deny notes that an address was not added. Only a resync tries again. One that was to be moved is where it was.
func (mv *mover) deny(r *address, note string) {
	where := nowhere
	for _, device := range mv.ledger.Leaving[r.addr] {
		if mv.view.has(r.addr, mv.view.link(device)) {
			where = device
		}
	}
	if len(mv.ledger.Leaving[r.addr]) == 0 {
		mv.unrecord(r)
	}
	mv.show(r, Held{Addr: r.addr, Where: where, Note: note})
}

// arrive notes that an address is on the device, for the first time where it is new. Its route is to follow.
func (mv *mover) arrive(r *address, isNew bool) {
	mv.view.set(r.addr, local{link: mv.device.index, bits: r.addr.BitLen()})
	r.arriving = r.arriving || r.addr.Is6() && isNew
	mv.log.Debug("added an address", "address", r.addr, "device", mv.device.name)
	r.source, r.unrouted = netip.Addr{}, notYet
	r.unannounced = mv.device.kind == realDevice
	mv.reopen(r)
}

// removeOurs takes away an address that we added, from wherever it may be, and forgets it.
func (mv *mover) removeOurs(r *address) error {
	for _, device := range mv.ledger.devices(r.addr) {
		if err := mv.remove(r, device); err != nil {
			return err
		}
	}
	mv.unrecord(r)
	return nil
}

// remove takes an address and its route from a device. Where it is gone already there is nothing to do.
func (mv *mover) remove(r *address, device string) error {
	r.unrouted, r.arriving, r.shadowed, r.unannounced = "", false, false, false
	if err := mv.unroute(r); err != nil {
		return err
	}
	a, link := r.addr, mv.view.link(device)
	if link == 0 || !mv.view.has(a, link) {
		return nil
	}
	err := mv.nl.AddrDel(nil, &netlink.Addr{IPNet: single(a), LinkIndex: link})
	if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("removing address %s from %s: %w", a, device, err)
	}
	mv.view.unset(a, link, a.BitLen())
	mv.log.Debug("removed an address", "address", a, "device", device)
	return nil
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

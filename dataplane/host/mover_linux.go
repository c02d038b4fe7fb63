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

// mover adds addresses to the device and removes them.
type mover struct {
	*state
	*routes
	*observer
}

// postpone records that addresses were not added because the ledger could not be written. It
// schedules a retry and returns err. If the process lacks the privilege to write the ledger, it
// does neither.
func (mv *mover) postpone(some []*address, err error) error {
	for _, r := range some {
		if errors.Is(err, fs.ErrPermission) {
			mv.noteNotAdded(r, fmt.Sprintf("%s (%v)", needPrivilege, err))
		} else {
			mv.noteFailed(r, err)
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// postponeUnguarded postpones the addresses of a family whose guard is incomplete, because all
// their ports would be reachable. It returns the addresses of the other family. err is the guard's
// error.
func (mv *mover) postponeUnguarded(some []*address, family int, err error) []*address {
	return slices.DeleteFunc(some, func(r *address) bool {
		if familyOf(r.addr) == family {
			mv.noteFailed(r, err)
		}
		return familyOf(r.addr) == family
	})
}

// addAll removes addresses from other devices, and then adds them to the device.
func (mv *mover) addAll(ctx context.Context, some []*address) error {
	var all []error
	const between = 1000 / rtnl.BatchSize // the socket's buffer has room for this many batches' events
	for i := 0; len(some) > 0; i++ {
		if ctx.Err() != nil {
			for _, rest := range some {
				mv.noteFailed(rest, ctx.Err())
			}
			break
		}
		if i%between == between-1 {
			mv.catchUp()
			all = append(all, mv.rerouteAll()) // this replaces the kernel's own routes, which slow down each new address
		}
		part := some[:min(rtnl.BatchSize, len(some))]
		all = append(all, mv.addBatch(part))
		some = some[len(part):]
	}
	return errors.Join(all...)
}

func (mv *mover) addBatch(some []*address) error {
	var all []error
	messages := make([]rtnl.Message, len(some))
	for i, r := range some {
		for _, device := range slices.Clone(mv.ledger.Leaving[r.addr]) {
			if err := mv.remove(r, device); err != nil {
				all = append(all, err)
				mv.tryAgain(r)
				continue
			}
			mv.ledger.noteLeft(r.addr, device)
		}
		messages[i] = rtnl.NewAddress(r.addr, mv.device.index)
	}
	for i, err := range mv.batches.Do(messages) {
		r := some[i]
		switch {
		case err == nil, errors.Is(err, syscall.EEXIST):
			mv.noteAdded(r, err == nil)
		case errors.Is(err, syscall.EPERM):
			mv.noteNotAdded(r, needPrivilege)
		case errors.Is(err, syscall.EACCES) && r.addr.Is6():
			mv.noteNotAdded(r, fmt.Sprintf("IPv6 is disabled on %s: sysctl -w %s=0", mv.device.name, disableIPv6(mv.device.name)))
			mv.device.ipv6Disabled = true
		default:
			err = fmt.Errorf("adding address %s to %s: %w", r.addr, mv.device.name, err)
			mv.noteFailed(r, err)
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// noteFailed records the reason why an address could not be added, and schedules a retry.
func (mv *mover) noteFailed(r *address, err error) {
	mv.noteNotAdded(r, err.Error())
	mv.tryAgain(r)
}

// noteNotAdded records that an address was not added. It schedules no retry before the next resync.
// An address that was being moved remains on its old device.
func (mv *mover) noteNotAdded(r *address, note string) {
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

// noteAdded records that an address is on the device and needs a route. isNew reports whether vipd
// has just added the address.
func (mv *mover) noteAdded(r *address, isNew bool) {
	mv.view.set(r.addr, local{link: mv.device.index, bits: r.addr.BitLen()})
	r.arriving = r.arriving || r.addr.Is6() && isNew
	mv.log.Debug("added an address", "address", r.addr, "device", mv.device.name)
	r.source, r.unrouted = netip.Addr{}, notYet
	r.unannounced = mv.device.kind == realDevice
	mv.reopen(r)
}

// removeOurs removes one of vipd's addresses from all its devices and from the ledger.
func (mv *mover) removeOurs(r *address) error {
	for _, device := range mv.ledger.devices(r.addr) {
		if err := mv.remove(r, device); err != nil {
			return err
		}
	}
	mv.unrecord(r)
	return nil
}

// remove removes an address and its route from a device. A missing address is not an error.
func (mv *mover) remove(r *address, device string) error {
	r.unrouted = ""
	r.arriving = false
	r.shadowed = false
	r.unannounced = false
	if err := mv.unroute(r); err != nil {
		return err
	}
	return mv.dropFrom(r.addr, device)
}

// dropFrom removes an address (/32 or /128) from a device. A missing address is not an error.
func (st *state) dropFrom(a netip.Addr, device string) error {
	link := st.view.link(device)
	if link == 0 || !st.view.has(a, link) {
		return nil
	}
	err := st.nl.AddrDel(nil, &netlink.Addr{IPNet: single(a), LinkIndex: link})
	if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("removing address %s from %s: %w", a, device, err)
	}
	st.view.unset(a, link, a.BitLen())
	st.log.Debug("removed an address", "address", a, "device", device)
	return nil
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

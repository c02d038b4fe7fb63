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
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/rtnl"
)

// plan decides about every address that has to be compared again, or whose last attempt failed.
func (h *Host) plan() map[step][]*address {
	due := h.leftover(func(r *address) bool { return r.needed() && (r.dirty || r.failed) })
	if len(due) > 0 {
		world := world()
		h.gateways = h.Gateways(world[:])
	}
	todo := map[step][]*address{}
	for _, r := range due {
		held, next := h.decideOnDevice(r)
		h.show(r, held)
		r.dirty, r.failed = false, false
		todo[next] = append(todo[next], r)
	}
	return todo
}

// holdWanted brings every dirty address to where it should be, with the guard up before.
func (h *Host) holdWanted(ctx context.Context) error {
	todo := h.plan()
	if unseen, err := h.unseen(todo[add]); unseen || err != nil {
		h.markAll()
		if err != nil {
			return err
		}
		todo = h.plan()
	}
	fresh := slices.Concat(todo[add], todo[move])
	for _, r := range fresh {
		h.record(r.addr, h.device.name)
	}
	for _, r := range todo[add] {
		h.setSilent(r, r.applied == 0)
	}
	all := []error{h.deviceFailed(todo[wait])}
	if err := h.ledger.save(); err != nil {
		all = append(all, h.refuse(fresh, err))
		fresh = nil
	}
	h.publish()
	for family, err := range h.guard.Prepare(ctx) {
		if err != nil {
			all = append(all, err)
			fresh = h.putOff(fresh, family, err)
		}
	}
	return errors.Join(append(all, h.beside(len(fresh), func() error { return h.move(ctx, fresh, todo[release]) }))...)
}

// deviceFailed is why there is no device, if that may pass: it is looked for again then, with what waits for it.
func (h *Host) deviceFailed(waiting []*address) error {
	if !h.device.passes {
		return nil
	}
	for _, r := range waiting {
		h.tryAgain(r)
	}
	err := h.device.err
	h.device = holder{}
	return err
}

// move adds addresses and takes others away, with all that follows from it.
func (h *Host) move(ctx context.Context, fresh, gone []*address) error {
	all := []error{h.addAll(ctx, fresh)}
	for _, r := range gone {
		if err := h.removeOurs(r); err != nil {
			h.tryAgain(r)
			all = append(all, err)
		}
	}
	all = append(all, h.rerouteAll(), h.unshadow(ctx, fresh), h.strictARP(), h.forwarding(), h.virtualServers(h.guard.Roams()), h.ledger.save())
	h.announceAll() // what is back after it was removed
	h.publish()
	return errors.Join(all...)
}

// unseen asks the kernel once more before addresses are added that the view does not have: what the host has for its own
// must not come behind the guard. true: there was one, and the view is a new one.
func (h *Host) unseen(some []*address) (bool, error) {
	for _, r := range some {
		if len(some) < many { // else to read all takes less than to ask for each
			routes, err := h.nl.RouteGet(r.addr.AsSlice())
			if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
				continue
			}
		}
		// It is the host's own, or others have a local route to its network. Only the addresses themselves tell.
		v, err := h.readView(h.nl)
		if err != nil {
			return false, err
		}
		h.view, h.relinked = v, true
		return true, nil
	}
	return false, nil
}

// refuse puts off what was to be added, because that can't be recorded.
func (h *Host) refuse(some []*address, err error) error {
	for _, r := range some {
		if errors.Is(err, fs.ErrPermission) {
			h.deny(r, fmt.Sprintf("%s (%v)", needPrivilege, err))
		} else {
			h.fail(r, err)
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// putOff leaves out the addresses of a family whose guard does not stand for the reason err: they would be open on every
// port. It returns the others.
func (h *Host) putOff(some []*address, family int, err error) []*address {
	return slices.DeleteFunc(some, func(r *address) bool {
		if familyOf(r.addr) == family {
			h.fail(r, err)
		}
		return familyOf(r.addr) == family
	})
}

// addAll adds addresses to the device, after it has taken away those that are on another.
func (h *Host) addAll(ctx context.Context, some []*address) error {
	var all []error
	const between = 1000 / rtnl.BatchSize // the events that some batches make have room in the kernel
	for i := 0; len(some) > 0; i++ {
		if ctx.Err() != nil {
			for _, rest := range some {
				h.fail(rest, ctx.Err())
			}
			break
		}
		if i%between == between-1 {
			h.catchUp()
			all = append(all, h.rerouteAll()) // the fewer routes of the kernel's own there are, the less an address takes
		}
		part := some[:min(rtnl.BatchSize, len(some))]
		all = append(all, h.addSome(part))
		some = some[len(part):]
	}
	return errors.Join(all...)
}

// addSome is addAll for what is done at once.
func (h *Host) addSome(some []*address) error {
	var all []error
	messages := make([]rtnl.Message, len(some))
	for i, r := range some {
		for _, device := range slices.Clone(h.ledger.Leaving[r.addr]) {
			if err := h.remove(r, device); err != nil {
				all = append(all, err)
				h.tryAgain(r)
				continue
			}
			h.ledger.left(r.addr, device)
		}
		messages[i] = rtnl.NewAddress(r.addr, h.device.index)
	}
	for i, err := range h.batches.Do(messages) {
		r := some[i]
		switch {
		case err == nil, errors.Is(err, syscall.EEXIST):
			h.arrive(r, err == nil)
		case errors.Is(err, syscall.EPERM):
			h.deny(r, needPrivilege)
		case errors.Is(err, syscall.EACCES) && r.addr.Is6():
			h.deny(r, fmt.Sprintf("IPv6 is disabled on %s: sysctl -w %s=0", h.device.name, disableIPv6(h.device.name)))
			h.device.without6 = true
		default:
			err = fmt.Errorf("adding address %s to %s: %w", r.addr, h.device.name, err)
			h.fail(r, err)
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// fail notes why an address could not be added, and has it tried again.
func (h *Host) fail(r *address, err error) {
	h.deny(r, err.Error())
	h.tryAgain(r)
}

// deny notes that an address was not added. Only a resync tries again. One that was to be moved is where it was.
func (h *Host) deny(r *address, note string) {
	where := nowhere
	for _, device := range h.ledger.Leaving[r.addr] {
		if h.view.has(r.addr, h.view.link(device)) {
			where = device
		}
	}
	if len(h.ledger.Leaving[r.addr]) == 0 {
		h.unrecord(r)
	}
	h.show(r, Held{Addr: r.addr, Where: where, Note: note})
}

// arrive notes that an address is on the device, for the first time where it is new. Its route is to follow.
func (h *Host) arrive(r *address, isNew bool) {
	h.view.set(r.addr, local{link: h.device.index, bits: r.addr.BitLen()})
	r.arriving = r.arriving || r.addr.Is6() && isNew
	h.log.Debug("added an address", "address", r.addr, "device", h.device.name)
	r.source, r.unrouted = netip.Addr{}, notYet
	r.unannounced = h.device.kind == realDevice
	h.reopen(r)
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// removeOurs takes away an address that we added, from wherever it may be, and forgets it.
func (h *Host) removeOurs(r *address) error {
	for _, device := range h.ledger.devices(r.addr) {
		if err := h.remove(r, device); err != nil {
			return err
		}
	}
	h.unrecord(r)
	return nil
}

// remove takes an address and its route from a device. Where it is gone already there is nothing to do.
func (h *Host) remove(r *address, device string) error {
	r.unrouted, r.arriving, r.shadowed, r.unannounced = "", false, false, false
	if err := h.unroute(r); err != nil {
		return err
	}
	a, link := r.addr, h.view.link(device)
	if link == 0 || !h.view.has(a, link) {
		return nil
	}
	err := h.nl.AddrDel(nil, &netlink.Addr{IPNet: single(a), LinkIndex: link})
	if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) && !errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("removing address %s from %s: %w", a, device, err)
	}
	h.view.unset(a, link, a.BitLen())
	h.log.Debug("removed an address", "address", a, "device", device)
	return nil
}

// removeUnneeded removes the addresses that neither are wanted nor have a frontend left.
func (h *Host) removeUnneeded(ctx context.Context) error {
	if h.full || h.stale { // what can't be seen must not count as gone
		if err := h.updateView(); err != nil {
			return err
		}
	}
	var all []error
	for _, r := range h.leftover(func(r *address) bool { return r.dirty && !r.needed() }) {
		if ctx.Err() != nil {
			return errors.Join(append(all, ctx.Err())...)
		}
		if err := h.removeOurs(r); err != nil {
			all = append(all, err)
			continue
		}
		h.forget(r)
	}
	return errors.Join(all...)
}

// clear removes what is of no use any more: sysctls without IPv4 addresses, the device without any.
func (h *Host) clear() error {
	var all []error
	if !h.wantsStrictARP() {
		h.arp = nil
		var names []string
		for _, m := range strictARP() {
			names = append(names, m.name)
		}
		all = append(all, restoreSysctls(h.sys, h.ledger, names))
	}
	if len(h.ledger.Addresses) == 0 {
		all = append(all, h.removeDevices())
	}
	return errors.Join(all...)
}

// wantsStrictARP reports whether VIPs are held on a device that leads nowhere, about which neighbours may ask.
func (h *Host) wantsStrictARP() bool {
	d, err := h.holder()
	return h.opts.StrictARP && err == nil && d.kind != realDevice && h.holds(0)
}

// strictARP sets what keeps the host silent about its VIPs.
func (h *Host) strictARP() (err error) {
	h.arp = nil
	if h.wantsStrictARP() {
		h.arp, err = raise(h.sys, h.ledger, h.unmanaged(), strictARP(), h.mend)
	}
	return err
}

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/rtnl"
)

// holdLate adds the addresses that were to come after their frontends.
func (h *Host) holdLate(ctx context.Context) error {
	due := false
	for a := range h.late {
		if !h.want.Has(a) || h.standings.At(a) != balancer.Serving {
			delete(h.late, a)
		} else if balancer.Served(a, h.applied) {
			delete(h.late, a)
			h.dirty[a], due = true, true
		}
	}
	h.late = dataplane.Shrink(h.late)
	if !due {
		return nil
	}
	return errors.Join(h.holdWanted(ctx), h.await())
}

// plan says what is to be done about every dirty address.
func (h *Host) plan() map[step][]netip.Addr {
	maps.Copy(h.dirty, h.retry)
	h.retry = map[netip.Addr]bool{}
	if len(h.dirty) > 0 {
		world := world()
		h.gateways = h.Gateways(world[:])
	}
	todo := map[step][]netip.Addr{}
	for _, a := range slices.SortedFunc(maps.Keys(h.dirty), netip.Addr.Compare) {
		if !h.needed(a) {
			continue
		}
		held, next := h.decideOnDevice(a)
		if h.held = h.held.Set(a, held); held.Where == "" {
			h.held = h.held.Delete(a)
		}
		todo[next] = append(todo[next], a)
	}
	h.dirty = map[netip.Addr]bool{}
	return todo
}

// holdWanted brings every dirty address to where it should be, with the guard up before.
func (h *Host) holdWanted(ctx context.Context) error {
	todo := h.plan()
	if unseen, err := h.unseen(todo[add]); unseen || err != nil {
		maps.Copy(h.dirty, h.wantedOrApplied())
		if err != nil {
			return err
		}
		todo = h.plan()
	}
	fresh := slices.Concat(todo[add], todo[move])
	for _, a := range fresh {
		h.record(a, h.device.name)
	}
	for _, a := range todo[add] {
		h.setPending(a, h.appliedAt[a] == 0)
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
func (h *Host) deviceFailed(waiting []netip.Addr) error {
	if !h.device.passes {
		return nil
	}
	for _, a := range waiting {
		h.retry[a] = true
	}
	err := h.device.err
	h.device = holder{}
	return err
}

// move adds addresses and takes others away, with all that follows from it.
func (h *Host) move(ctx context.Context, fresh, gone []netip.Addr) error {
	all := []error{h.addAll(ctx, fresh)}
	for _, a := range gone {
		if err := h.removeOurs(a); err != nil {
			h.retry[a] = true
			all = append(all, err)
		}
	}
	all = append(all, h.rerouteAll(), h.unshadow(ctx), h.strictARP(), h.forwarding(), h.virtualServers(h.guard.Roams()), h.ledger.save())
	h.announceAll() // what is back after it was removed
	h.publish()
	return errors.Join(all...)
}

// unseen asks the kernel once more before addresses are added that the view does not have: what the host has for its own
// must not come behind the guard. true: there was one, and the view is a new one.
func (h *Host) unseen(addrs []netip.Addr) (bool, error) {
	for _, a := range addrs {
		if len(addrs) < many { // else to read all takes less than to ask for each
			routes, err := h.nl.RouteGet(a.AsSlice())
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
func (h *Host) refuse(addrs []netip.Addr, err error) error {
	for _, a := range addrs {
		if errors.Is(err, fs.ErrPermission) {
			h.deny(a, fmt.Sprintf("%s (%v)", needPrivilege, err))
		} else {
			h.fail(a, err)
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// putOff leaves out the addresses of a family whose guard does not stand for the reason err: they would be open on every
// port. It returns the others.
func (h *Host) putOff(addrs []netip.Addr, family int, err error) []netip.Addr {
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		if familyOf(a) == family {
			h.fail(a, err)
		}
		return familyOf(a) == family
	})
}

// addAll adds addresses to the device, after it has taken away those that are on another.
func (h *Host) addAll(ctx context.Context, addrs []netip.Addr) error {
	var all []error
	const between = 1000 / rtnl.BatchSize // the events that some batches make have room in the kernel
	for i := 0; len(addrs) > 0; i++ {
		if ctx.Err() != nil {
			for _, rest := range addrs {
				h.fail(rest, ctx.Err())
			}
			break
		}
		if i%between == between-1 {
			h.catchUp()
			all = append(all, h.rerouteAll()) // the fewer routes of the kernel's own there are, the less an address takes
		}
		part := addrs[:min(rtnl.BatchSize, len(addrs))]
		all = append(all, h.addSome(part))
		addrs = addrs[len(part):]
	}
	return errors.Join(all...)
}

// addSome is addAll for what is done at once.
func (h *Host) addSome(addrs []netip.Addr) error {
	var all []error
	messages := make([]rtnl.Message, len(addrs))
	for i, a := range addrs {
		for _, device := range slices.Clone(h.ledger.Leaving[a]) {
			if err := h.remove(a, device); err != nil {
				all = append(all, err)
				h.retry[a] = true
				continue
			}
			h.ledger.left(a, device)
		}
		messages[i] = rtnl.NewAddress(a, h.device.index)
	}
	for i, err := range h.batches.Do(messages) {
		a := addrs[i]
		switch {
		case err == nil, errors.Is(err, syscall.EEXIST):
			h.arrive(a, err == nil)
		case errors.Is(err, syscall.EPERM):
			h.deny(a, needPrivilege)
		case errors.Is(err, syscall.EACCES) && a.Is6():
			h.deny(a, fmt.Sprintf("IPv6 is disabled on %s: sysctl -w %s=0", h.device.name, disableIPv6(h.device.name)))
			h.without6[a] = true
		default:
			err = fmt.Errorf("adding address %s to %s: %w", a, h.device.name, err)
			h.fail(a, err)
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// fail notes why an address could not be added, and has it tried again.
func (h *Host) fail(a netip.Addr, err error) {
	h.deny(a, err.Error())
	h.retry[a] = true
}

// deny notes that an address was not added. Only a resync tries again. One that was to be moved is where it was.
func (h *Host) deny(a netip.Addr, note string) {
	where := nowhere
	for _, device := range h.ledger.Leaving[a] {
		if h.view.has(a, h.view.link(device)) {
			where = device
		}
	}
	if len(h.ledger.Leaving[a]) == 0 {
		h.unrecord(a)
	}
	h.held = h.held.Set(a, Held{Addr: a, Where: where, Note: note})
}

// arrive notes that an address is on the device, for the first time where it is new. Its route is to follow.
func (h *Host) arrive(a netip.Addr, isNew bool) {
	h.view.set(a, local{link: h.device.index, bits: a.BitLen()})
	if a.Is6() && isNew {
		h.arriving[a] = true
	}
	h.log.Debug("added an address", "address", a, "device", h.device.name)
	delete(h.routed, a)
	h.unrouted[a] = notYet
	if h.device.kind == realDevice {
		h.unannounced[a] = true
	}
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// removeOurs takes away an address that we added, from wherever it may be, and forgets it.
func (h *Host) removeOurs(a netip.Addr) error {
	for _, device := range h.ledger.devices(a) {
		if err := h.remove(a, device); err != nil {
			return err
		}
	}
	h.unrecord(a)
	return nil
}

// remove takes an address and its route from a device. Where it is gone already there is nothing to do.
func (h *Host) remove(a netip.Addr, device string) error {
	delete(h.shadowed, a)
	delete(h.arriving, a)
	delete(h.unrouted, a)
	delete(h.unannounced, a)
	if err := h.unroute(a); err != nil {
		return err
	}
	link := h.view.link(device)
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
	for _, a := range slices.SortedFunc(maps.Keys(h.leaving), netip.Addr.Compare) {
		if h.needed(a) {
			delete(h.leaving, a)
			continue
		}
		if ctx.Err() != nil {
			return errors.Join(append(all, ctx.Err())...)
		}
		if _, ours := h.ledger.Addresses[a]; ours {
			if err := h.removeOurs(a); err != nil {
				all = append(all, err)
				continue
			}
		}
		h.held = h.held.Delete(a)
		delete(h.leaving, a)
	}
	h.leaving = dataplane.Shrink(h.leaving)
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
	if h.added.Len() == 0 {
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

package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// step is what has to be done about one address.
type step string

const (
	keep    step = "keep"    // it is as it should be
	add     step = "add"     // to the device
	release step = "release" // take ours away
	move    step = "move"    // from one device to another
	wait    step = "wait"    // nothing can be done
)

// needPrivilege is the way out for who may not add addresses.
const needPrivilege = "adding it needs the capability CAP_NET_ADMIN: run as root, use VIPs in 127.0.0.0/8, or let someone else add them"

// decide says who holds a needed address, or will when what it asks for is done. It changes nothing.
func (h *Host) decide(a netip.Addr) (Held, step) {
	device, recorded := h.ledger.Addresses[a]
	link := 0
	if recorded {
		link = h.view.link(device)
	}
	ours := link != 0 && h.view.has(a, link)
	otherwise := func(where, note string, next step) (Held, step) {
		if ours || recorded {
			next = release
		}
		return Held{Addr: a, Where: where, Note: note}, next
	}
	switch {
	case a.IsLoopback():
		return otherwise(onHost, "loopback", keep)
	case h.view.elsewhere(a, link):
		return otherwise(onHost, "", keep)
	case !h.opts.Bind:
		return otherwise(nowhere, "bind = false, and nobody has added it to this host", wait)
	}
	to, err := h.holder()
	switch {
	case err != nil:
		return Held{a, nowhere, err.Error()}, wait
	case ours && link == to.index:
		return Held{a, to.name, to.note}, keep
	case ours:
		return Held{a, to.name, to.note}, move
	}
	return Held{a, to.name, to.note}, add
}

// settle decides with the device made and up, if the address is to be on it.
func (h *Host) settle(a netip.Addr) (Held, step) {
	held, next := h.decide(a)
	if next != release && next != wait && held.Where != onHost && h.device.kind == madeDevice && !h.device.ready {
		h.makeDevice()
		return h.decide(a)
	}
	return held, next
}

// hold brings every dirty address to where it should be, with the guard up before.
func (h *Host) hold(ctx context.Context) error {
	var todo [3][]netip.Addr // add, release, move
	maps.Copy(h.dirty, h.retry)
	clear(h.retry)
	for _, a := range slices.SortedFunc(maps.Keys(h.dirty), netip.Addr.Compare) {
		if !h.needed(a) {
			continue
		}
		held, next := h.settle(a)
		h.held = h.held.Set(a, held)
		switch next {
		case add:
			todo[0] = append(todo[0], a)
		case release:
			todo[1] = append(todo[1], a)
		case move:
			todo[2] = append(todo[2], a)
		}
	}
	clear(h.dirty)
	fresh := slices.Concat(todo[0], todo[2])
	old := map[netip.Addr]string{}
	for _, a := range fresh {
		old[a] = h.ledger.Addresses[a]
		h.record(a, h.device.name)
	}
	var all []error
	if err := h.ledger.save(); err != nil {
		all = append(all, h.refuse(fresh, old, err))
		fresh, todo[2] = nil, nil
	}
	h.publish()
	for _, g := range h.guards {
		all = append(all, g.prepare(ctx))
	}
	for _, a := range todo[2] {
		all = append(all, h.remove(a, old[a]))
	}
	all = append(all, h.addAll(ctx, fresh))
	for _, a := range todo[1] {
		all = append(all, h.removeOurs(a))
	}
	all = append(all, h.rerouteAll(), h.unshadow(ctx), h.strictARP(), h.ledger.save())
	h.publish()
	return errors.Join(all...)
}

// refuse takes back that addresses were to be added, because that can't be recorded.
func (h *Host) refuse(addrs []netip.Addr, old map[netip.Addr]string, err error) error {
	for _, a := range addrs {
		h.unrecord(a)
		if old[a] != "" {
			h.record(a, old[a])
		}
		if isDenied(err) {
			h.deny(a, fmt.Sprintf("%s (%v)", needPrivilege, err))
		} else {
			h.fail(a, err)
		}
	}
	if isDenied(err) {
		return nil
	}
	return err
}

// addAll adds addresses to the device, with their routes, and announces them.
func (h *Host) addAll(ctx context.Context, addrs []netip.Addr) error {
	var all []error
	var added []netip.Addr
	for i, a := range addrs {
		if ctx.Err() != nil {
			for _, rest := range addrs[i:] {
				h.unrecord(rest)
				h.retry[rest] = true
			}
			break
		}
		if i%1000 == 999 { // before the kernel runs out of room for the events that this makes
			h.catchUp()
		}
		err := h.add(a)
		switch {
		case err == nil:
			added = append(added, a)
			continue
		case errors.Is(err, syscall.EPERM):
			h.unrecord(a)
			h.deny(a, needPrivilege)
			continue
		case errors.Is(err, syscall.EACCES) && a.Is6():
			h.unrecord(a)
			h.deny(a, fmt.Sprintf("IPv6 is disabled on %s: sysctl -w net.ipv6.conf.%s.disable_ipv6=0", h.device.name, h.device.name))
			continue
		}
		h.unrecord(a)
		h.fail(a, err)
		all = append(all, err)
	}
	if h.device.kind == realDevice && len(added) > 0 {
		if err := announce(h.device.index, added); err != nil {
			all = append(all, fmt.Errorf("announcing %d addresses on %s: %w", len(added), h.device.name, err))
		}
	}
	return errors.Join(all...)
}

// fail notes why an address could not be added, and has it tried again.
func (h *Host) fail(a netip.Addr, err error) {
	h.held = h.held.Set(a, Held{a, nowhere, err.Error()})
	h.retry[a] = true
}

// deny notes that an address can't be added here. Only a resync tries again.
func (h *Host) deny(a netip.Addr, note string) {
	h.held = h.held.Set(a, Held{a, nowhere, note})
}

// add adds one address to the device.
func (h *Host) add(a netip.Addr) error {
	err := h.nl.AddrAdd(nil, h.address(a, h.device))
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("adding address %s to %s: %w", a, h.device.name, err)
	}
	h.view.set(a, local{link: h.device.index, bits: a.BitLen()})
	if a.Is6() && err == nil {
		h.arriving[a] = true
	}
	h.log.Debug("added an address", "address", a, "device", h.device.name)
	delete(h.routed, a)
	return h.route(a)
}

// address describes the address on the device. On devices that lead nowhere its scope is the host, so that the kernel
// never takes it for the source of other connections; IPv6 has lifetimes for that.
func (h *Host) address(a netip.Addr, on holder) *netlink.Addr {
	out := &netlink.Addr{IPNet: single(a), LinkIndex: on.index}
	switch {
	case a.Is6():
		forever := ^uint32(0)
		out.Flags, out.ValidLft, out.PreferedLft = unix.IFA_F_NODAD, int(forever), 0
	case on.kind != realDevice:
		out.Scope = unix.RT_SCOPE_HOST
	}
	return out
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// removeOurs takes away an address that we added, and forgets it.
func (h *Host) removeOurs(a netip.Addr) error {
	if err := h.remove(a, h.ledger.Addresses[a]); err != nil {
		return err
	}
	h.unrecord(a)
	return nil
}

// remove takes an address and its route from a device. Where it is gone already there is nothing to do.
func (h *Host) remove(a netip.Addr, device string) error {
	delete(h.shadowed, a)
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
	return errors.Join(all...)
}

// clear removes what is of no use any more: sysctls without IPv4 addresses, the device without any.
func (h *Host) clear() error {
	var all []error
	if !h.wantsStrictARP() {
		h.arp = nil
		_, err := restore(h.sys, h.ledger)
		all = append(all, err)
	}
	if h.added.Len() == 0 {
		all = append(all, h.removeDevices())
	}
	return errors.Join(all...)
}

// wantsStrictARP reports whether VIPs are held on a device that leads nowhere, about which neighbours may ask.
func (h *Host) wantsStrictARP() bool {
	return h.opts.StrictARP && h.device.kind != realDevice && h.holds(0)
}

// strictARP sets what keeps the host silent about its VIPs.
func (h *Host) strictARP() (err error) {
	h.arp = nil
	if h.wantsStrictARP() {
		h.arp, err = raise(h.sys, h.ledger, h.opts.ManageSysctls, strictARP())
	}
	return err
}

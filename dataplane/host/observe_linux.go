package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// observer keeps what is known of devices and addresses up to date, and makes the device for VIPs.
type observer struct {
	*state
	*routes
	*announcer
}

// updateView brings the view up to date: by what has happened since the last look, or in full where that is not enough.
func (ob *observer) updateView() error {
	complete, err := ob.events.drain(ob.noteEvent)
	if err != nil {
		return err
	}
	if complete && !ob.full && !ob.stale {
		return nil
	}
	ob.stale, ob.lost = true, ob.lost || !complete // until all of this has succeeded
	v, err := ob.readView(ob.nl)
	if err != nil {
		return err
	}
	ob.view, ob.device, ob.renumbered, ob.relinked = v, holder{}, [2]bool{true, true}, true
	if ob.full {
		ob.adopt()
		if err := ob.readRoutes(); err != nil {
			return err
		}
		ob.lost = false
		clear(ob.source[:])
	}
	for _, r := range ob.open {
		r.arriving = false // an event may have been lost
	}
	ob.full, ob.stale = false, false
	for a := range ob.ledger.Addresses {
		ob.at(a)
	}
	ob.markAll()
	return nil
}

// catchUp takes in events in the middle of work.
func (ob *observer) catchUp() {
	if complete, err := ob.events.drain(ob.noteEvent); err != nil || !complete {
		ob.stale, ob.lost = true, true
	}
}

// noteEvent takes in one event.
func (ob *observer) noteEvent(c change) {
	if c.route {
		r := ob.all[c.addr]
		ob.lost = ob.lost || r != nil && r.source.IsValid() // else vipd itself has removed it
		return
	}
	if c.addr.IsValid() {
		if c.gone {
			ob.view.unset(c.addr, c.link, c.at.bits)
		} else {
			ob.view.set(c.addr, c.at)
		}
		if r := ob.all[c.addr]; r != nil {
			r.arriving = r.arriving && c.gone
			ob.mark(r)
		}
		if ob.ledger.Addresses[c.addr] == "" {
			ob.renumbered[familyOf(c.addr)] = true
		}
		return
	}
	was := ob.view.devices[c.link]
	if c.link == ob.device.index && ob.device.index != 0 {
		if c.gone || was.up && !c.device.up {
			ob.full, ob.downed = true, true // its routes are gone with it
		}
		if !was.running && c.device.running && ob.device.kind == realDevice {
			ob.announceAgain()
		}
	}
	ob.relinked = true
	if c.gone {
		delete(ob.view.devices, c.link)
		return
	}
	if ob.device.err != nil && c.device.name == ob.opts.Interface {
		ob.stale = true // the device for VIPs is there now
	}
	ob.view.devices[c.link] = c.device
}

// adopt takes the addresses on a device that vipd made for its own and, where the ledger was lost, those on other devices to
// which vipd's routes lead.
func (ob *observer) adopt() {
	if link, err := ob.nl.LinkByName(ob.opts.Interface); err == nil && ob.madeByUs(link) {
		ob.ledger.setLink(ob.opts.Interface)
		for a := range ob.view.addrs {
			if ob.view.has(a, link.Attrs().Index) && !a.IsLinkLocalUnicast() {
				ob.record(a, ob.opts.Interface)
			}
		}
	}
	if len(ob.ledger.Addresses) > 0 {
		return
	}
	for _, r := range ob.ourRoutes(routeProtocol) {
		if a, _ := netip.AddrFromSlice(r.Dst.IP); ob.view.has(a.Unmap(), r.LinkIndex) {
			ob.record(a.Unmap(), ob.view.devices[r.LinkIndex].name)
		}
	}
}

// lookAtIPv6 has the addresses looked at again that the device could not take for want of IPv6, once it has that.
func (ob *observer) lookAtIPv6() {
	if !ob.device.without6 {
		return
	}
	if value, err := ob.sys.Read(disableIPv6(ob.device.name)); err == nil && value == "0" {
		ob.device.without6 = false
		for _, r := range ob.all {
			if r.wanted && r.addr.Is6() && r.held.Where == nowhere {
				ob.mark(r)
			}
		}
	}
}

// unseen asks the kernel once more before addresses are added that the view does not have: what the host has for its own
// must not come behind the guard. true: there was one, and the view is a new one.
func (ob *observer) unseen(some []*address) (bool, error) {
	for _, r := range some {
		if len(some) < many { // else to read all takes less than to ask for each
			routes, err := ob.nl.RouteGet(r.addr.AsSlice())
			if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
				continue
			}
		}
		// It is the host's own, or others have a local route to its network. Only the addresses themselves tell.
		v, err := ob.readView(ob.nl)
		if err != nil {
			return false, err
		}
		ob.view, ob.relinked = v, true
		return true, nil
	}
	return false, nil
}

// decideOnDevice decides with the device made and up, if the address is to be on it.
func (ob *observer) decideOnDevice(r *address) (Held, step) {
	held, next := r.decide(ob.place(r.addr), ob.site())
	if next != release && next != wait && held.Where != onHost && ob.device.kind == madeDevice && !ob.device.ready {
		ob.makeDevice()
		return r.decide(ob.place(r.addr), ob.site())
	}
	return held, next
}

// makeDevice makes the device of ours where it is absent, and brings it up. Where the kernel has no dummies lo takes its place.
func (ob *observer) makeDevice() {
	d := &ob.device
	if d.absent {
		ob.ledger.setLink(d.name)
		if err := ob.ledger.save(); err != nil {
			ob.ledger.dropLink(d.name)
			denied := errors.Is(err, fs.ErrPermission)
			if denied {
				err = fmt.Errorf("%s (%w)", needPrivilege, err)
			}
			*d = holder{passes: !denied, err: err}
			return
		}
		err := ob.nl.LinkAdd(ob.newLink(d.name))
		if err != nil && !errors.Is(err, syscall.EEXIST) {
			ob.withoutDevice(err)
			return
		}
		ob.log.Debug("made a device", "device", d.name)
	}
	*d = ob.upDevice(d.name)
}

// withoutDevice finds the next best after the device could not be made for the reason err.
func (ob *observer) withoutDevice(err error) {
	name := ob.device.name
	ob.ledger.dropLink(name)
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP):
		ob.device = ob.findDevice("lo")
		ob.device.note = "this kernel has no dummy devices"
	case errors.Is(err, fs.ErrPermission):
		ob.device = holder{err: errors.New(needPrivilege)}
	default:
		ob.device = holder{passes: true, err: fmt.Errorf("making device %s: %w", name, err)}
	}
}

// upDevice marks the made device and brings it up.
func (ob *observer) upDevice(name string) holder {
	link, err := ob.nl.LinkByName(name)
	if err == nil && link.Attrs().Alias != deviceAlias {
		err = ob.nl.LinkSetAlias(link, deviceAlias)
	}
	if err == nil && link.Attrs().Flags&net.FlagUp == 0 {
		err = ob.nl.LinkSetUp(link)
	}
	switch {
	case err != nil && errors.Is(err, fs.ErrPermission):
		return holder{err: errors.New(needPrivilege)}
	case err != nil:
		return holder{passes: true, err: fmt.Errorf("bringing up device %s: %w", name, err)}
	}
	// What we did ourselves is no news.
	full := ob.full
	ob.catchUp()
	ob.full, ob.downed = full, false
	index := link.Attrs().Index
	ob.view.devices[index], ob.relinked = device{name: name, up: true}, true
	return holder{name: name, index: index, kind: madeDevice, ready: true}
}

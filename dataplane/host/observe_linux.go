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

// observer follows devices and addresses, and creates the device for VIPs.
type observer struct {
	*state
	*routes
	*announcer
}

// updateView applies the events since the last check to the view. If events were lost, it reads
// everything again.
func (ob *observer) updateView() error {
	complete, err := ob.events.drain(ob.noteEvent)
	if err != nil {
		return err
	}
	if complete && !ob.full && !ob.stale {
		return nil
	}
	ob.stale, ob.removed = true, ob.removed || !complete // reset when everything below has succeeded
	v, err := ob.readView(ob.nl)
	if err != nil {
		return err
	}
	ob.view = v
	ob.device = holder{}
	ob.renumbered = [2]bool{true, true}
	ob.linksChanged = true
	ob.routeMTUs.unread = true
	if ob.full {
		ob.adopt()
		if err := ob.readRoutes(); err != nil {
			return err
		}
		ob.removed = false
		clear(ob.source[:])
	}
	for _, r := range ob.open {
		r.arriving = false // the address's event may have been lost
	}
	ob.full, ob.stale, ob.directChanged = false, false, true
	for a := range ob.ledger.Addresses {
		ob.at(a)
	}
	ob.markAll()
	return nil
}

// catchUp processes pending events during a long operation.
func (ob *observer) catchUp() {
	if complete, err := ob.events.drain(ob.noteEvent); err != nil || !complete {
		ob.stale, ob.removed = true, true
	}
}

// noteEvent processes an event.
func (ob *observer) noteEvent(c netEvent) {
	if c.route {
		r := ob.all[c.addr]
		ob.removed = ob.removed || r != nil && r.source.IsValid() // without a recorded source, vipd itself removed the route
		return
	}
	if c.mtu {
		ob.routeMTUs.note(c.gone)
		ob.linksChanged = true
		return
	}
	if c.addr.IsValid() {
		if c.gone {
			ob.view.unset(c.addr, c.link, c.at.bits)
		} else {
			ob.view.set(c.addr, c.at)
		}
		ob.directChanged = ob.directChanged || ob.want.Direct.Has(c.addr)
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
			ob.full, ob.deviceWentDown = true, true // the kernel has removed the device's routes
		}
		if !was.running && c.device.running && ob.device.kind == realDevice {
			ob.announceAgain()
		}
	}
	ob.linksChanged = true
	ob.routeMTUs.unread = ob.routeMTUs.unread || ob.routeMTUs.some // a device that goes down loses its routes without an event
	if c.gone {
		delete(ob.view.devices, c.link)
		return
	}
	if ob.device.err != nil && c.device.name == ob.opts.Interface {
		ob.stale = true // the device for VIPs has appeared
	}
	ob.view.devices[c.link] = c.device
}

// adopt records that vipd owns the addresses on a device that vipd created. If the ledger was lost,
// adopt also records addresses on other devices that have a route with vipd's route protocol.
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

// retryAfterIPv6Enabled marks addresses that could not be added because IPv6 was disabled on the
// device, if IPv6 is enabled now.
func (ob *observer) retryAfterIPv6Enabled() {
	if !ob.device.ipv6Disabled {
		return
	}
	if value, err := ob.sys.Read(disableIPv6(ob.device.name)); err == nil && value == "0" {
		ob.device.ipv6Disabled = false
		for _, r := range ob.all {
			if r.wanted && r.addr.Is6() && r.held.Where == nowhere {
				ob.mark(r)
			}
		}
	}
}

// recheckOwn queries the kernel before vipd adds addresses that are missing from the view. Without
// this check, the guard might close ports on the host's own addresses. If the host may have such an
// address, it reads the view again and returns true.
func (ob *observer) recheckOwn(some []*address) (bool, error) {
	for _, r := range some {
		if len(some) < backgroundThreshold { // for more addresses, reading the whole view is faster than one request each
			routes, err := ob.nl.RouteGet(r.addr.AsSlice())
			if err != nil || len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
				continue
			}
		}
		// Either the host has the address, or a local route to its network exists. The list of
		// addresses shows which of the two is true.
		v, err := ob.readView(ob.nl)
		if err != nil {
			return false, err
		}
		ob.view, ob.linksChanged = v, true
		return true, nil
	}
	return false, nil
}

// decideOnDevice decides the next step for an address. It first creates vipd's device if the
// address needs it.
func (ob *observer) decideOnDevice(r *address) (Held, step) {
	held, next := r.decide(ob.place(r.addr), ob.site())
	if next != release && next != wait && held.Where != onHost && ob.device.kind == madeDevice && !ob.device.ready {
		ob.makeDevice()
		return r.decide(ob.place(r.addr), ob.site())
	}
	return held, next
}

// makeDevice creates vipd's device if it is absent, and brings it up. If the kernel has no dummy
// devices, it uses lo.
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
		ob.log.Debug("created a device", "device", d.name)
	}
	*d = ob.upDevice(d.name)
}

// withoutDevice handles err, the reason why the device could not be created. If the kernel has no
// dummy devices, it selects lo. Otherwise it records the error.
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
		ob.device = holder{passes: true, err: fmt.Errorf("creating device %s: %w", name, err)}
	}
}

// upDevice marks vipd's device with an alias, and brings it up.
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
	// The device's events must not count as drift.
	full := ob.full
	ob.catchUp()
	ob.full, ob.deviceWentDown = full, false
	index := link.Attrs().Index
	ob.view.devices[index], ob.linksChanged = device{name: name, up: true}, true
	return holder{name: name, index: index, kind: madeDevice, ready: true}
}

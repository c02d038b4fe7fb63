package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
)

// deviceKind says what a device that holds VIPs is.
type deviceKind string

const (
	madeDevice     deviceKind = "made"     // a dummy of ours
	loopbackDevice deviceKind = "loopback" // lo
	realDevice     deviceKind = "real"     // a link with neighbours
	otherDummy     deviceKind = "dummy"    // a dummy that vipd did not make
)

// deviceAlias marks the devices that vipd made, for those who look and for a vipd that has lost its ledger.
const deviceAlias = "made by vipd"

// holder is the device that holds VIPs; the zero value stands for not looked up yet.
type holder struct {
	name  string
	index int
	kind  deviceKind
	note  string
	err   error
	// passes: the error may pass by itself, so that it is tried again.
	passes bool
	// absent: it has to be made first; ready: it was made, and is up.
	absent, ready bool
	// without6 reports whether an address could not be added because IPv6 is disabled on the device.
	without6 bool
}

// holder returns the device that holds VIPs, or will: it makes none.
func (h *Host) holder() (holder, error) {
	if h.device == (holder{}) {
		h.device = h.findDevice(h.opts.Interface)
	}
	return h.device, h.device.err
}

func (h *Host) findDevice(name string) holder {
	link, err := h.nl.LinkByName(name)
	var absent netlink.LinkNotFoundError
	switch {
	case errors.As(err, &absent) && strings.HasPrefix(name, "vipd"):
		return holder{name: name, kind: madeDevice, absent: true}
	case errors.As(err, &absent):
		return holder{err: fmt.Errorf("there is no device %s: addresses.interface names one that exists, or vipd0 for one that vipd makes", name)}
	case err != nil:
		return holder{passes: true, err: fmt.Errorf("looking for device %s: %w", name, err)}
	}
	d := holder{name: name, index: link.Attrs().Index, kind: realDevice}
	switch {
	case h.madeByUs(link):
		d.kind = madeDevice
	case link.Attrs().Flags&net.FlagLoopback != 0:
		d.kind = loopbackDevice
	case link.Type() == "dummy":
		d.kind = otherDummy
	}
	return d
}

// madeByUs reports whether vipd made the device, according to the ledger or the mark on it.
func (h *Host) madeByUs(link netlink.Link) bool {
	name := link.Attrs().Name
	return link.Type() == h.newLink(name).Type() && (h.ledger.Links[name] || link.Attrs().Alias == deviceAlias)
}

// makeDevice makes the device of ours where it is absent, and brings it up. Where the kernel has no dummies lo takes its place.
func (h *Host) makeDevice() {
	d := &h.device
	if d.absent {
		h.ledger.setLink(d.name)
		if err := h.ledger.save(); err != nil {
			h.ledger.dropLink(d.name)
			denied := errors.Is(err, fs.ErrPermission)
			if denied {
				err = fmt.Errorf("%s (%w)", needPrivilege, err)
			}
			*d = holder{passes: !denied, err: err}
			return
		}
		err := h.nl.LinkAdd(h.newLink(d.name))
		if err != nil && !errors.Is(err, syscall.EEXIST) {
			h.withoutDevice(err)
			return
		}
		h.log.Debug("made a device", "device", d.name)
	}
	*d = h.upDevice(d.name)
}

// withoutDevice finds the next best after the device could not be made for the reason err.
func (h *Host) withoutDevice(err error) {
	name := h.device.name
	h.ledger.dropLink(name)
	switch {
	case errors.Is(err, syscall.EOPNOTSUPP):
		h.device = h.findDevice("lo")
		h.device.note = "this kernel has no dummy devices"
	case errors.Is(err, fs.ErrPermission):
		h.device = holder{err: errors.New(needPrivilege)}
	default:
		h.device = holder{passes: true, err: fmt.Errorf("making device %s: %w", name, err)}
	}
}

// upDevice marks the made device and brings it up.
func (h *Host) upDevice(name string) holder {
	link, err := h.nl.LinkByName(name)
	if err == nil && link.Attrs().Alias != deviceAlias {
		err = h.nl.LinkSetAlias(link, deviceAlias)
	}
	if err == nil && link.Attrs().Flags&net.FlagUp == 0 {
		err = h.nl.LinkSetUp(link)
	}
	switch {
	case err != nil && errors.Is(err, fs.ErrPermission):
		return holder{err: errors.New(needPrivilege)}
	case err != nil:
		return holder{passes: true, err: fmt.Errorf("bringing up device %s: %w", name, err)}
	}
	// What we did ourselves is no news.
	full := h.full
	h.catchUp()
	h.full, h.downed = full, false
	index := link.Attrs().Index
	h.view.devices[index], h.relinked = device{name: name, up: true}, true
	return holder{name: name, index: index, kind: madeDevice, ready: true}
}

// removeDevices removes the devices that vipd made.
func (h *Host) removeDevices() error {
	var all []error
	for name := range h.ledger.Links {
		link, err := h.nl.LinkByName(name)
		var absent netlink.LinkNotFoundError
		if err == nil && h.madeByUs(link) {
			err = h.nl.LinkDel(link)
		}
		if err != nil && !errors.As(err, &absent) {
			all = append(all, fmt.Errorf("removing device %s: %w", name, err))
			continue
		}
		h.ledger.dropLink(name)
		h.device = holder{}
	}
	return errors.Join(all...)
}

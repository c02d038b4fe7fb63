package host

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
)

// deviceKind is the kind of a device that holds VIPs.
type deviceKind string

const (
	madeDevice     deviceKind = "made"     // a dummy device that vipd created
	loopbackDevice deviceKind = "loopback" // lo
	realDevice     deviceKind = "real"     // a link with neighbors
	otherDummy     deviceKind = "dummy"    // a dummy device that vipd did not create
)

// deviceAlias marks devices that vipd created. Administrators can see the alias, and vipd
// recognizes its device by it even without a ledger.
const deviceAlias = "made by vipd"

// holder is the device that holds VIPs. The zero value means that the device has not been looked
// up.
type holder struct {
	name  string
	index int
	kind  deviceKind
	note  string
	err   error
	// passes reports whether the error may be temporary. If so, the lookup is retried.
	passes bool
	// absent reports whether the device must be created first. ready reports whether vipd created
	// the device and it is up.
	absent, ready bool
	// ipv6Disabled reports whether an address could not be added because the device has IPv6
	// disabled.
	ipv6Disabled bool
}

// holder returns the device that holds VIPs or will hold them. It does not create the device.
func (st *state) holder() (holder, error) {
	if st.device == (holder{}) {
		st.device = st.findDevice(st.opts.Interface)
	}
	return st.device, st.device.err
}

func (st *state) findDevice(name string) holder {
	link, err := st.nl.LinkByName(name)
	var absent netlink.LinkNotFoundError
	switch {
	case errors.As(err, &absent) && strings.HasPrefix(name, "vipd"):
		return holder{name: name, kind: madeDevice, absent: true}
	case errors.As(err, &absent):
		return holder{err: fmt.Errorf("there is no device %s: set addresses.interface to an existing device, or to vipd0, which vipd creates", name)}
	case err != nil:
		return holder{passes: true, err: fmt.Errorf("looking for device %s: %w", name, err)}
	}
	d := holder{name: name, index: link.Attrs().Index, kind: realDevice}
	switch {
	case st.madeByUs(link):
		d.kind = madeDevice
	case link.Attrs().Flags&net.FlagLoopback != 0:
		d.kind = loopbackDevice
	case link.Type() == dummyKind:
		d.kind = otherDummy
	}
	return d
}

// madeByUs reports whether vipd created the device, according to the ledger or to the device's
// alias.
func (st *state) madeByUs(link netlink.Link) bool {
	name := link.Attrs().Name
	return link.Type() == st.newLink(name).Type() && (st.ledger.Links[name] || link.Attrs().Alias == deviceAlias)
}

// removeDevices removes the devices that vipd created.
func (st *state) removeDevices() error {
	var all []error
	for name := range st.ledger.Links {
		link, err := st.nl.LinkByName(name)
		var absent netlink.LinkNotFoundError
		if err == nil && st.madeByUs(link) {
			err = st.nl.LinkDel(link)
		}
		if err != nil && !errors.As(err, &absent) {
			all = append(all, fmt.Errorf("removing device %s: %w", name, err))
			continue
		}
		st.ledger.dropLink(name)
		st.device = holder{}
	}
	return errors.Join(all...)
}

package host

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/guard"
)

// tuning is what is known of the sysctls.
type tuning struct {
	// arp, unforwarded and untuned are the problems with them.
	arp, unforwarded, untuned []balancer.Problem
	// foreignDue is when virtual servers of others, which there were, are looked for again.
	foreignDue time.Time
	// release is the kernel's version.
	release string
}

// SetMode says what the mode in use does; the next Prepare obeys. It may be called by any goroutine.
func (h *Host) SetMode(m dataplane.Needs) { h.mode.Store(&m) }

// obey gives the guards what they depend on besides frontends: whether packets are forwarded, and between which
// interfaces.
func (h *Host) obey() {
	mode := *h.mode.Load()
	if h.guard.SetMode(mode) {
		h.relinked = true
	}
	if !h.relinked {
		return
	}
	h.guard.Connect(h.view.interfaces())
	h.relinked = false
}

// forwarding sets what lets the kernel forward IPv4 packets and translate all of a connection's, and says what keeps it
// from forwarding IPv6 ones: setting that would have the host stop listening to router advertisements. The settings stay
// until Cleanup, for connections outlive frontends.
func (h *Host) forwarding() (err error) {
	h.unforwarded = nil
	mode := h.mode.Load()
	if !mode.Forward && !mode.Translates {
		return nil
	}
	four, six := h.guard.Knows(world()[0]), h.guard.Knows(world()[1])
	var wanted []minimum
	if four && mode.Forward {
		wanted = append(wanted, minimum{name: forward4, value: 1, loss: "this host does not forward IPv4 packets, so services reach no endpoint on another host"})
	}
	if _, readErr := h.sys.Read(liberal); (four || six) && !errors.Is(readErr, os.ErrNotExist) { // it comes with the module
		wanted = append(wanted, minimum{name: liberal, value: 1, loss: "a TCP segment outside the window that conntrack expects is not translated, and is answered by a reset that ends its connection"})
	}
	h.unforwarded, err = raise(h.sys, h.ledger, h.unmanaged(), wanted, h.mend)
	if six && mode.Forward && !h.forwards6() {
		h.unforwarded = append(h.unforwarded, balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf(
			"this host does not forward IPv6 packets, so services reach no endpoint on another host: sysctl -w %s=1 "+
				"(it then ignores router advertisements, unless accept_ra of the interface that gets them is 2)", forward6)})
	}
	return err
}

// forwards6 reports whether the kernel forwards IPv6 packets, all or those that come in by some device.
func (h *Host) forwards6() bool {
	if text, err := h.sys.Read(forward6); err != nil || text != "0" {
		return true
	}
	if _, err := h.sys.Read(forced6("all")); err != nil {
		return false // a kernel before these
	}
	return slices.ContainsFunc(h.view.interfaces(), func(i guard.Interface) bool {
		text, err := h.sys.Read(forced6(i.Name))
		return err == nil && text == "1"
	})
}

// unmanaged is why sysctls are left as they are; "" means they are not.
func (h *Host) unmanaged() string {
	if h.opts.ManageSysctls {
		return ""
	}
	return "manage_sysctls is false"
}

// virtualServers sets what the kernel's virtual servers need, where there are none of others. Roams: connections come from other
// hosts. The settings stay until Cleanup, like forwarding. What a kernel does not have, or not before it loads its module, is left out.
func (h *Host) virtualServers(roams bool) (err error) {
	h.untuned = nil
	if !h.mode.Load().LocalIn {
		return nil
	}
	wanted := slices.DeleteFunc(virtualServers(h.release, roams), func(m minimum) bool {
		text, err := h.sys.Read(m.name)
		value, notNumber := strconv.Atoi(text)
		return errors.Is(err, os.ErrNotExist) || err == nil && notNumber == nil && m.met(value)
	})
	if len(wanted) == 0 {
		return nil
	}
	leave := h.unmanaged()
	if leave == "" && h.foreignServers() {
		leave = "it is left, for it would change virtual servers that are not vipd's"
	}
	h.untuned, err = raise(h.sys, h.ledger, leave, wanted, h.mend)
	return err
}

// foreignShare is the part of the time that looking for virtual servers of others may take, while they keep sysctls from
// being set. Among ten thousands it takes a tenth of a second.
const foreignShare = 100

// foreignServers reports whether there are virtual servers of others.
func (h *Host) foreignServers() bool {
	if h.opts.ForeignServers == nil {
		return false
	}
	began := time.Now()
	if began.Before(h.foreignDue) {
		return true
	}
	foreign := h.opts.ForeignServers()
	h.foreignDue = time.Time{}
	if foreign {
		h.foreignDue = began.Add(foreignShare*time.Since(began) - time.Second) // what is quick is not put off
	}
	return foreign
}

// interfaces returns the devices that packets are forwarded between, sorted by name: all but loopback ones, and those that
// belong to a bridge, a bond or a VRF, which forwards in their stead.
func (v *view) interfaces() []guard.Interface {
	var all []guard.Interface
	for i, d := range v.devices {
		if !d.loopback && d.master == 0 {
			all = append(all, guard.Interface{Name: d.name, Index: i})
		}
	}
	slices.SortFunc(all, func(a, b guard.Interface) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

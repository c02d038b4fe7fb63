package host

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane/guard"
)

// tuning keeps the sysctls as vipd needs them.
type tuning struct {
	*state
	// arp, unforwarded and untuned are the problems with sysctls.
	arp, unforwarded, untuned []balancer.Problem
	// foreignDue is when virtual servers of others, which there were, are looked for again.
	foreignDue time.Time
	// release is the kernel's version.
	release string
	// mended are the changes of other programs that were corrected, for Mended.
	mended []string
}

// forwarding sets what lets the kernel forward IPv4 packets and translate all of a connection's, and says what keeps it
// from forwarding IPv6 ones: setting that would have the host stop listening to router advertisements. The settings stay
// until Cleanup, for connections outlive frontends.
func (tn *tuning) forwarding() (err error) {
	tn.unforwarded = nil
	mode := tn.mode.Load()
	if !mode.Forward && !mode.Translates {
		return nil
	}
	four, six := tn.guard.Knows(world()[0]), tn.guard.Knows(world()[1])
	var wanted []minimum
	if four && mode.Forward {
		wanted = append(wanted, minimum{name: forward4, value: 1, loss: "this host does not forward IPv4 packets, so services reach no endpoint on another host"})
	}
	if _, readErr := tn.sys.Read(liberal); (four || six) && !errors.Is(readErr, os.ErrNotExist) { // it comes with the module
		wanted = append(wanted, minimum{name: liberal, value: 1, loss: "a TCP segment outside the window that conntrack expects is not translated, and is answered by a reset that ends its connection"})
	}
	tn.unforwarded, err = raise(tn.sys, tn.ledger, tn.unmanaged(), wanted, tn.mend)
	if six && mode.Forward && !tn.forwards6() {
		tn.unforwarded = append(tn.unforwarded, balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf(
			"this host does not forward IPv6 packets, so services reach no endpoint on another host: sysctl -w %s=1 "+
				"(it then ignores router advertisements, unless accept_ra of the interface that gets them is 2)", forward6)})
	}
	return err
}

// forwards6 reports whether the kernel forwards IPv6 packets, all or those that come in by some device.
func (tn *tuning) forwards6() bool {
	if text, err := tn.sys.Read(forward6); err != nil || text != "0" {
		return true
	}
	if _, err := tn.sys.Read(forced6("all")); err != nil {
		return false // a kernel before these
	}
	return slices.ContainsFunc(tn.view.interfaces(), func(i guard.Interface) bool {
		text, err := tn.sys.Read(forced6(i.Name))
		return err == nil && text == "1"
	})
}

// unmanaged is why sysctls are left as they are; "" means they are not.
func (tn *tuning) unmanaged() string {
	if tn.opts.ManageSysctls {
		return ""
	}
	return "manage_sysctls is false"
}

// virtualServers sets what the kernel's virtual servers need, where there are none of others. Roams: connections come from other
// hosts. The settings stay until Cleanup, like forwarding. What a kernel does not have, or not before it loads its module, is left out.
func (tn *tuning) virtualServers(roams bool) (err error) {
	tn.untuned = nil
	if !tn.mode.Load().LocalIn {
		return nil
	}
	wanted := slices.DeleteFunc(virtualServers(tn.release, roams), func(m minimum) bool {
		text, err := tn.sys.Read(m.name)
		value, notNumber := strconv.Atoi(text)
		return errors.Is(err, os.ErrNotExist) || err == nil && notNumber == nil && m.met(value)
	})
	if len(wanted) == 0 {
		return nil
	}
	leave := tn.unmanaged()
	if leave == "" && tn.foreignServers() {
		leave = "it is left, for it would change virtual servers that are not vipd's"
	}
	tn.untuned, err = raise(tn.sys, tn.ledger, leave, wanted, tn.mend)
	return err
}

// foreignShare is the part of the time that looking for virtual servers of others may take, while they keep sysctls from
// being set. Among ten thousands it takes a tenth of a second.
const foreignShare = 100

// foreignServers reports whether there are virtual servers of others.
func (tn *tuning) foreignServers() bool {
	if tn.opts.ForeignServers == nil {
		return false
	}
	began := time.Now()
	if began.Before(tn.foreignDue) {
		return true
	}
	foreign := tn.opts.ForeignServers()
	tn.foreignDue = time.Time{}
	if foreign {
		tn.foreignDue = began.Add(foreignShare*time.Since(began) - time.Second) // what is quick is not put off
	}
	return foreign
}

// strictARP sets what keeps the host silent about its VIPs.
func (tn *tuning) strictARP() (err error) {
	tn.arp = nil
	if tn.wantsStrictARP() {
		tn.arp, err = raise(tn.sys, tn.ledger, tn.unmanaged(), strictARP(), tn.mend)
		tn.arp = append(tn.arp, tn.silenced()...)
	}
	return err
}

// silenced returns a warning about addresses of other programs on lo, for which the host answers no ARP requests since vipd
// has set arp_ignore.
func (tn *tuning) silenced() []balancer.Problem {
	if _, set := tn.ledger.Sysctls[arpIgnore]; !set {
		return nil
	}
	var names []string
	for a, places := range tn.view.addrs {
		onLoopback := func(at local) bool { return tn.view.devices[at.link].loopback }
		if _, ours := tn.ledger.Addresses[a]; ours || !a.Is4() || a.IsLoopback() || tn.shown.At(a).held != (Held{}) {
			continue
		}
		if !slices.ContainsFunc(places, func(at local) bool { return !onLoopback(at) }) {
			names = append(names, a.String())
		}
	}
	if names == nil {
		return nil
	}
	slices.Sort(names)
	return []balancer.Problem{{Severity: balancer.SeverityWarning, Text: fmt.Sprintf("hosts of the LAN no longer find %s on lo, because vipd "+
		"sets %s = 1 for its VIPs: move such addresses to a NIC, or route them to this host's own address", strings.Join(names, ", "), arpIgnore)}}
}

// lookAtSysctls restores changed sysctls. It reports whether the problems with them have changed.
func (tn *tuning) lookAtSysctls() (changed bool, err error) {
	before := slices.Concat(tn.arp, tn.unforwarded, tn.untuned)
	err = errors.Join(tn.strictARP(), tn.forwarding(), tn.virtualServers(tn.guard.Roams()), tn.ledger.save())
	return !slices.Equal(before, slices.Concat(tn.arp, tn.unforwarded, tn.untuned)), err
}

// mend records what was changed of ours and is repaired.
func (tn *tuning) mend(what string) { tn.mended = append(tn.mended, what) }

// Mended implements dataplane.Host.
func (tn *tuning) Mended() []string {
	all := tn.mended
	tn.mended = nil
	return all
}

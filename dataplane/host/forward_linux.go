package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane/guard"
)

// tuning maintains the sysctls that vipd needs.
type tuning struct {
	*state
	// These are the problems with sysctls for ARP, forwarding, the fast path and virtual servers.
	arpProblems, forwardingProblems, countProblems, serverProblems []balancer.Problem
	// foreignDue is the time of the next search for foreign virtual servers. It is zero if the last
	// search found none.
	foreignDue time.Time
	// release is the kernel's version.
	release string
	// repaired describes the changes by other programs that vipd has reverted since the last
	// Repaired.
	repaired []string
}

// forwarding enables IPv4 forwarding and liberal connection tracking. If the kernel does not
// forward IPv6, it only reports a problem, because with forwarding enabled the host would ignore
// router advertisements. The settings remain until Cleanup, because connections outlive frontends.
func (tn *tuning) forwarding() (err error) {
	tn.forwardingProblems = nil
	mode := tn.mode.Load()
	if !mode.Forward && !mode.Translates {
		return nil
	}
	four, six := tn.guard.Knows(probeDestinations()[0]), tn.guard.Knows(probeDestinations()[1])
	var wanted []minimum
	if four && mode.Forward {
		wanted = append(wanted, minimum{name: forward4, value: 1, loss: "this host does not forward IPv4 packets, so services can't reach endpoints on other hosts"})
	}
	if _, readErr := tn.sys.Read(liberal); (four || six) && !errors.Is(readErr, os.ErrNotExist) { // the sysctl exists only after the module was loaded
		wanted = append(wanted, minimum{name: liberal, value: 1, loss: "a TCP segment outside the window that conntrack expects is not translated, and the reset that answers it ends the connection"})
	}
	tn.forwardingProblems, err = raise(tn.sys, tn.ledger, tn.unmanaged(), wanted, tn.noteRepair)
	if six && mode.Forward && !tn.forwards6() {
		tn.forwardingProblems = append(tn.forwardingProblems, balancer.Problem{Severity: balancer.SeverityWarning, Text: fmt.Sprintf(
			"this host does not forward IPv6 packets, so services can't reach endpoints on other hosts: sysctl -w %s=1 (it then "+
				"ignores router advertisements on interfaces without accept_ra = 2)", forward6)})
	}
	return err
}

// countPackets makes conntrack count packets for the fast path. The guard's rule has the same
// effect, even without ManageSysctls, so the old value must be recorded in the ledger before the
// rule exists.
func (tn *tuning) countPackets() (err error) {
	tn.countProblems = nil
	value, readErr := tn.sys.Read(accounting)
	if len(tn.opts.FastPath) == 0 || !tn.mode.Load().Resets || readErr != nil {
		return nil
	}
	if _, noted := tn.ledger.Sysctls[accounting]; !noted && !tn.opts.ManageSysctls && value == "0" {
		tn.ledger.setSysctl(accounting, sysctlRecord{Old: value, Set: "1"})
		return tn.ledger.save()
	}
	wanted := minimum{name: accounting, value: 1, loss: "new connections do not enter the fast path"}
	tn.countProblems, err = raise(tn.sys, tn.ledger, tn.unmanaged(), []minimum{wanted}, tn.noteRepair)
	return err
}

// forwards6 reports whether the kernel forwards IPv6 packets from at least one device.
func (tn *tuning) forwards6() bool {
	if text, err := tn.sys.Read(forward6); err != nil || text != "0" {
		return true
	}
	if _, err := tn.sys.Read(forceForwarding6("all")); err != nil {
		return false // Linux before 6.17 has no such sysctl
	}
	return slices.ContainsFunc(tn.view.interfaces(), func(i guard.Interface) bool {
		text, err := tn.sys.Read(forceForwarding6(i.Name))
		return err == nil && text == "1"
	})
}

// unmanaged returns the reason why vipd leaves sysctls unchanged, or "".
func (tn *tuning) unmanaged() string {
	if tn.opts.ManageSysctls {
		return ""
	}
	return "manage_sysctls is false"
}

// virtualServers sets the sysctls for virtual servers. It changes nothing if foreign virtual
// servers exist, because the sysctls also affect them. roams reports whether connections may move
// here from other hosts. The settings remain until Cleanup. Missing sysctls are skipped, because
// some exist only after the module was loaded.
func (tn *tuning) virtualServers(roams bool) (err error) {
	tn.serverProblems = nil
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
		leave = "vipd does not change it, because it also applies to other programs' virtual servers"
	}
	tn.serverProblems, err = raise(tn.sys, tn.ledger, leave, wanted, tn.noteRepair)
	return err
}

// foreignShare limits searches for foreign virtual servers to 1/foreignShare of the time. vipd
// searches repeatedly while foreign servers prevent it from setting sysctls. With tens of thousands
// of servers, a search takes a tenth of a second.
const foreignShare = 100

// foreignServers reports whether other programs have virtual servers in the kernel.
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
		tn.foreignDue = began.Add(foreignShare*time.Since(began) - time.Second) // a quick search is repeated immediately
	}
	return foreign
}

// strictARP prevents the host from answering ARP requests for its VIPs.
func (tn *tuning) strictARP() (err error) {
	tn.arpProblems = nil
	if tn.wantsStrictARP() {
		tn.arpProblems, err = raise(tn.sys, tn.ledger, tn.unmanaged(), strictARP(), tn.noteRepair)
		tn.arpProblems = append(tn.arpProblems, tn.arpSilenced()...)
	}
	return err
}

// arpSilenced returns a warning about other programs' addresses on lo. Because of vipd's
// arp_ignore, the host does not answer ARP requests for them.
func (tn *tuning) arpSilenced() []balancer.Problem {
	if _, set := tn.ledger.Sysctls[arpIgnore]; !set {
		return nil
	}
	if tn.view.silenced == nil || tn.view.silenced.shown != tn.shown {
		tn.view.silenced = &silenced{tn.shown, tn.foreignOnLoopback()}
	}
	if len(tn.view.silenced.addrs) == 0 {
		return nil
	}
	names := make([]string, 0, len(tn.view.silenced.addrs))
	for _, a := range tn.view.silenced.addrs {
		names = append(names, a.String())
	}
	slices.Sort(names)
	return []balancer.Problem{{Severity: balancer.SeverityWarning, Text: fmt.Sprintf("hosts on the LAN can no longer reach %s on lo, because vipd "+
		"sets %s = 1 for its VIPs. Move such addresses to a NIC, or route them to this host's own address", strings.Join(names, ", "), arpIgnore)}}
}

// foreignOnLoopback returns the IPv4 addresses that only lo has and that vipd neither added nor
// holds.
func (tn *tuning) foreignOnLoopback() (all []netip.Addr) {
	for a, places := range tn.view.addrs {
		if _, ours := tn.ledger.Addresses[a]; ours || !a.Is4() || a.IsLoopback() || tn.shown.At(a).held != (Held{}) {
			continue
		}
		if !slices.ContainsFunc(places, func(at local) bool { return !tn.view.devices[at.link].loopback }) {
			all = append(all, a)
		}
	}
	return all
}

// checkSysctls restores changed sysctls, and reports whether the sysctl problems have changed.
func (tn *tuning) checkSysctls() (changed bool, err error) {
	before := tn.sysctlProblems()
	err = errors.Join(tn.strictARP(), tn.forwarding(), tn.countPackets(), tn.virtualServers(tn.guard.HasMovable()), tn.ledger.save())
	return !slices.Equal(before, tn.sysctlProblems()), err
}

// sysctlProblems returns the problems with all sysctls.
func (tn *tuning) sysctlProblems() []balancer.Problem {
	return slices.Concat(tn.arpProblems, tn.forwardingProblems, tn.countProblems, tn.serverProblems)
}

func (tn *tuning) noteRepair(what string) { tn.repaired = append(tn.repaired, what) }

// Repaired implements dataplane.Host.
func (tn *tuning) Repaired() []string {
	all := tn.repaired
	tn.repaired = nil
	return all
}

package host

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"vipd/balancer"
	"vipd/dataplane/internal/rtnl"
)

// realServer holds the direct-routing VIPs on lo. A gateway forwards clients' packets to this host
// unchanged, and the host replies to the clients directly. It must not answer its neighbors' ARP
// requests for the VIPs, because clients' packets would then bypass the gateway. Linux never
// answers neighbor discovery for IPv6 addresses on lo. The guard ignores these VIPs, so the host's
// programs serve all ports.
type realServer struct {
	*state
	*tuning
	directProblems []balancer.Problem
	// obstacles maps each VIP to the reason why it must not be held, or to "". Either another
	// device has the address, or another service uses it.
	obstacles map[netip.Addr]string
}

// holdDirect removes unwanted VIPs from lo, adds the wanted VIPs, and describes each addition. The
// view of the kernel's state must be current.
func (rs *realServer) holdDirect() (done []string, err error) {
	if _, err := rs.releaseDirect(); err != nil {
		return nil, err
	}
	rs.directProblems, rs.obstacles, rs.directChanged, rs.direct4 = nil, map[netip.Addr]string{}, false, false
	if rs.want.Direct.Len() == 0 {
		return nil, nil
	}
	var fresh []netip.Addr
	world := probeDestinations()
	gateways, lo := rs.Gateways(world[:]), rs.view.link("lo")
	for a := range rs.want.Direct.Keys() {
		rs.obstacles[a] = rs.obstacle(a)
		switch {
		case rs.obstacles[a] != "":
			rs.refuse(a, fmt.Sprintf("%s, so this host is itself a gateway for the VIP", rs.obstacles[a]))
			continue
		case slices.Contains(gateways, a):
			rs.refuse(a, "it is a gateway of this node: choose another address")
			continue
		case rs.view.has(a, lo):
			rs.showDirect(a)
		default:
			fresh = append(fresh, a)
		}
		rs.direct4 = rs.direct4 || a.Is4()
	}
	if err := rs.strictARP(); err != nil { // before the first address
		return nil, err
	}
	return rs.addDirect(fresh, lo)
}

// addDirect adds VIPs to lo, unless this host would answer ARP requests for them.
func (rs *realServer) addDirect(fresh []netip.Addr, lo int) (done []string, err error) {
	if rs.answersARP() {
		fresh = slices.DeleteFunc(fresh, func(a netip.Addr) bool {
			if a.Is4() {
				rs.refuse(a, fmt.Sprintf("this host would answer ARP requests for it: sysctl -w %s=1", arpIgnore))
			}
			return a.Is4()
		})
	}
	messages := make([]rtnl.Message, len(fresh))
	for i, a := range fresh {
		rs.ledger.setDirect(a)
		messages[i] = rtnl.NewAddress(a, lo)
	}
	if err := rs.ledger.save(); err != nil {
		for _, a := range fresh {
			rs.ledger.dropDirect(a)
		}
		return nil, err
	}
	var failed []error
	for i, err := range rs.batches.Do(messages) {
		a := fresh[i]
		if err == nil {
			rs.view.set(a, local{link: lo, bits: a.BitLen()})
			rs.showDirect(a)
			done = append(done, fmt.Sprintf("add address %s to lo", a))
			continue
		}
		rs.ledger.dropDirect(a)
		switch {
		case errors.Is(err, syscall.EPERM):
			rs.refuse(a, needPrivilege)
		case errors.Is(err, syscall.EACCES) && a.Is6():
			rs.refuse(a, fmt.Sprintf("IPv6 is disabled on lo: sysctl -w %s=0", disableIPv6("lo")))
		default:
			failed = append(failed, fmt.Errorf("adding address %s to lo: %w", a, err))
		}
	}
	return done, errors.Join(append(failed, rs.ledger.save())...)
}

// releaseDirect removes VIPs that vipd added to lo, if they are not wanted or this host is their
// gateway. It returns a description of each step.
func (rs *realServer) releaseDirect() (done []string, err error) {
	for a := range rs.obstacles {
		if !rs.want.Direct.Has(a) && rs.all[a] == nil {
			rs.set(a, shown{})
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(rs.ledger.Direct), netip.Addr.Compare) {
		if rs.want.Direct.Has(a) && rs.obstacle(a) == "" {
			continue
		}
		if err := rs.dropFrom(a, "lo"); err != nil {
			return done, err
		}
		rs.ledger.dropDirect(a)
		rs.set(a, shown{})
		done = append(done, fmt.Sprintf("remove address %s from lo", a))
	}
	return done, nil
}

// obstacle returns the reason why this host is a gateway of a VIP, or "".
func (rs *realServer) obstacle(a netip.Addr) string {
	for _, at := range rs.view.addrs[a] {
		if d := rs.view.devices[at.link]; !d.loopback {
			return fmt.Sprintf("%s has the address", d.name)
		}
	}
	if r := rs.all[a]; r != nil && r.needed() {
		return "another service uses the address"
	}
	return ""
}

// answersARP reports whether this host answers ARP requests for addresses on lo.
func (rs *realServer) answersARP() bool { return answersARP(rs.sys) }

func answersARP(sys sysctls) bool {
	text, err := sys.Read(arpIgnore)
	value, notNumber := strconv.Atoi(text)
	return err != nil || notNumber != nil || value < 1
}

// AnswersARP returns the command that stops this host from answering ARP requests for an address on
// lo. It returns "" if the host does not answer. No host answers neighbor discovery for lo.
func AnswersARP(a netip.Addr) string {
	if a.Is6() || !answersARP(procSysctls{}) {
		return ""
	}
	return "sysctl -w " + arpIgnore + "=1"
}

// refuse records the reason why a VIP is not held.
func (rs *realServer) refuse(a netip.Addr, reason string) {
	if rs.all[a] == nil {
		rs.set(a, shown{})
	}
	rs.directProblems = append(rs.directProblems, balancer.Problem{
		Severity: balancer.SeverityError, Service: rs.want.Direct.At(a), Field: "vips",
		Text: fmt.Sprintf("%s is not held for direct routing: %s", a, reason),
	})
}

// showDirect makes a VIP on lo visible to other goroutines.
func (rs *realServer) showDirect(a netip.Addr) {
	held := Held{Addr: a, Where: onHost, Silent: true}
	if rs.ledger.Direct[a] {
		held.Where = "lo"
	}
	rs.set(a, shown{held: held, ours: rs.ledger.Direct[a]})
}

// directIntact describes a change to a direct-routing VIP since the last check, or returns "".
func (rs *realServer) directIntact() string {
	if !rs.directChanged {
		return ""
	}
	rs.directChanged = false
	lo := rs.view.link("lo")
	for a := range rs.want.Direct.Keys() {
		switch now := rs.obstacle(a); {
		case now == "" && rs.obstacles[a] != "":
			return fmt.Sprintf("address %s can be added now", a)
		case now != rs.obstacles[a]:
			return fmt.Sprintf("address %s is now also on a device other than lo", a)
		case rs.shown.At(a).held.Where != "" && rs.obstacles[a] == "" && !rs.view.has(a, lo):
			return fmt.Sprintf("address %s is missing from lo", a)
		}
	}
	return ""
}

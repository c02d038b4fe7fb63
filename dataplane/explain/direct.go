package explain

import (
	"fmt"

	"vipd/balancer"
	"vipd/dataplane/host"
)

// translatesDirect reports whether nat serves this client, although the frontend has forward =
// "dr". A mode that forwards dr packets without state uses nat for the host's own programs, and for
// endpoints behind a router.
func (n *Inputs) translatesDirect(a *Answer, f *balancer.Frontend) bool {
	return f.Forward == balancer.DRForward && n.Dataplane.Capabilities().Stateless && !a.Unchanged
}

// neighbors describes whether the endpoints that may get the connection answer on their links.
// Direct routing loses packets to an endpoint that does not.
func (n *Inputs) neighbors(a *Answer, from host.Route) {
	for i := range a.Endpoints {
		e := &a.Endpoints[i]
		if e.State != balancer.Active || e.Part == 0 {
			continue
		}
		found, err := host.NeighborAt(e.Address.Addr())
		switch {
		case err != nil:
			a.step("neighbor", true, "%v", err)
		case found.Device == "":
			a.step("neighbor", false, "%s is on this host or behind a router", e.Address.Addr())
		case found.Silent:
			e.silent, e.mostly = fmt.Sprintf("does not answer %s on %s", found.Protocol(), found.Device), true
			a.step("neighbor", true, "%s %s: packets to it are lost. If the host is up, check its address, its VLAN and the link", e.Address.Addr(), e.silent)
		case found.MAC == "":
			a.step("neighbor", false, "%s is on the link of %s; its MAC address is not known yet", e.Address.Addr(), found.Device)
		default:
			a.step("neighbor", false, "%s is %s on the link of %s; it answers the client directly, not through this node", e.Address.Addr(), found.MAC, found.Device)
		}
	}
	if n.Dataplane.Capabilities().Stateless {
		if device, sysctl := host.BridgeFilter(a.Client, from); device != "" {
			a.step("bridge", true, "netfilter sees the frames in the bridge %s before direct routing, so nat serves clients behind it: sysctl -w %s=0", device, sysctl)
		}
		a.step("existing", false, "the kernel keeps no state for connections with direct routing, so open connections are not listed")
	}
}

// realServer explains a VIP that this host holds as a real server. It returns false for other
// addresses.
func (n *Inputs) realServer(a *Answer) bool {
	service := n.Desired.Direct.At(a.To.Addr)
	if service == "" {
		return false
	}
	held := n.held(a.To.Addr)
	if held == nil || held.Where == "none" {
		a.step("server", true, "this host is a real server of %s, but does not hold %s, so it drops packets that a gateway forwards", service, a.To.Addr)
		a.verdict(Dropped, "dropped: this host does not hold %s; \"vipctl status\" shows the reason", a.To.Addr)
		return true
	}
	a.step("server", false, "this host is a real server of %s (direct routing): gateways forward clients' packets to it unchanged, and it answers the clients itself", service)
	if answers := host.AnswersARP(a.To.Addr); answers != "" {
		a.step("server", true, "this host answers ARP requests for %s, so clients might bypass the gateway: %s", a.To.Addr, answers)
	}
	a.verdict(Elsewhere, "not served by vipd: a program that listens on %s answers, because this host is a real server of %s", place(a.To), service)
	return true
}

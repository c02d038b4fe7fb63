package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"vipd/cmd/internal/api"
	"vipd/cmd/internal/wording"
)

// These are additional values of api.Address.Held, which are used if vipd is not running.
const (
	toCome = "to come" // vipd will add it to its device when it starts
	unsure = "unsure"  // the address is on a device, but its origin is unknown
)

// traffic holds the data for findings about all VIPs. It is read only once, because there may be
// 10,000 VIPs.
type traffic struct {
	*observed
	// devices maps the host's addresses to their devices.
	devices map[netip.Addr]string
	// answersByAny reports whether the host answers ARP for its addresses on every device.
	answersByAny bool
	// gateways holds one of this host's addresses for each family. Other hosts can use it as the
	// gateway to VIPs. The key is true for IPv4 and false for IPv6.
	gateways map[bool]string
	// elsewhere maps each VIP that another host answers for to that host's MAC address.
	elsewhere map[netip.Addr]net.HardwareAddr
	// neighbours maps the addresses in the kernel's neighbour tables to their devices.
	neighbours map[netip.Addr]string
}

// checkTraffic reports how each VIP's traffic reaches this host. VIPs with the same result share a
// finding.
func checkTraffic(ctx context.Context, o *observed) []Finding {
	t := newTraffic(o)
	addresses := t.addresses()
	if len(addresses) == 0 {
		return []Finding{note("there are no services yet, so their traffic is unknown", "", "")}
	}
	found := t.probeLinks(ctx, addresses)
	var order []Finding
	byFinding := map[Finding][]string{}
	for _, a := range addresses {
		f := t.arrival(a)
		if byFinding[f] == nil {
			order = append(order, f)
		}
		byFinding[f] = append(byFinding[f], a.Address)
	}
	for i, f := range order {
		all := byFinding[f]
		order[i].What = list(all) + " " + wording.Be(len(all)) + " " + f.What
		order[i].Fix = strings.ReplaceAll(f.Fix, "VIP", all[0])
	}
	return append(found, order...)
}

// newTraffic reads the host's addresses and neighbours, and chooses its gateway addresses.
func newTraffic(o *observed) *traffic {
	t := &traffic{
		o, map[netip.Addr]string{}, o.sysctl("net.ipv4.conf.all.arp_ignore") == "0",
		map[bool]string{false: "THIS-HOST", true: "THIS-HOST"}, map[netip.Addr]net.HardwareAddr{}, map[netip.Addr]string{},
	}
	if o.Neighbours != nil {
		t.neighbours, _ = o.Neighbours() // after an error, only networks determine the devices
	}
	found := map[bool]bool{}
	for _, i := range o.interfaces {
		for _, a := range i.Addrs {
			t.devices[a] = cmp.Or(t.devices[a], i.Name)
			// An address on lo can't be a gateway: vipd sets arp_ignore = 1, so other hosts can't
			// resolve it.
			if is4 := a.Is4(); i.Name != "lo" && !found[is4] && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !o.vips[a] {
				found[is4], t.gateways[is4] = true, a.String()
			}
		}
	}
	return t
}

// addresses returns the VIPs and the devices that hold them. They come from the running vipd or, if
// none answers, from its ledger and the devices' addresses.
func (t *traffic) addresses() []api.Address {
	if t.Status != nil {
		return t.Status.Addresses
	}
	put, err := t.Held()
	var all []api.Address
	for _, a := range slices.SortedFunc(maps.Keys(t.vips), netip.Addr.Compare) {
		held := "host"
		switch on := t.devices[a]; {
		case a.IsLoopback():
		case on == "" && t.Config.Addresses.Bind:
			held = toCome
		case on == "":
			held = "none"
		case put[a] == on || strings.HasPrefix(on, "vipd"):
			held = on
		case err != nil:
			held = unsure
		}
		all = append(all, api.Address{Address: a.String(), Held: held})
	}
	return all
}

// arrival returns the finding about how traffic for an address reaches this host. In the finding's
// command, "VIP" stands for the address.
func (t *traffic) arrival(a api.Address) Finding {
	addr, err := netip.ParseAddr(a.Address)
	device := a.Held
	route := "ip route add VIP via " + t.gateways[addr.Is4()]
	switch {
	case a.Silent:
		return fine("held silently on lo: this host is a real server, to which a gateway forwards clients' packets")
	case err == nil && addr.IsLoopback():
		return fine("on this host's loopback: only programs on this host reach it")
	case a.Owned && device == "host":
		return fine("owned by this host" + in(t.devices[addr]) + ", which answers ARP or NDP for it")
	case a.Owned:
		return fine(a.Note)
	case device == "host":
		return fine("the host's own" + in(t.devices[addr]) + ": every client that reaches the host also reaches this address")
	case device == unsure:
		return note(fmt.Sprintf("on %s; it is not known whether vipd holds addresses there", t.devices[addr]),
			"no vipd answers, and its ledger can't be read", "sudo vipctl doctor")
	case t.elsewhere[addr] != nil && t.link(a) == "":
		return problem(fmt.Sprintf("an address of another host (%s), which answers ARP or NDP for it on %s", t.elsewhere[addr], t.near(addr)),
			"a host that holds it can't reach the other host: give the service another VIP, or remove the address there",
			"ip address show to VIP  # on the host with that MAC")
	case t.elsewhere[addr] != nil:
		return problem(fmt.Sprintf("also on another host (%s): both answer ARP or NDP on %s", t.elsewhere[addr], t.link(a)),
			"a client reaches one host or the other: only one of them may have the address, unless VIPs have owners (docs/ownership.md)",
			"ip address show to VIP  # on the host with that MAC")
	case device == toCome:
		return t.arrivalToCome(route)
	case device == "none" && !t.Config.Addresses.Bind:
		return note("not here: bind is false, so another program must add it",
			"vipd serves the address while this host has it; another program, such as keepalived, moves it", "ip address show to VIP")
	case device == "none" || device == "":
		return problem("not on this host"+in(a.Note), "services get no traffic at this address", "vipctl status")
	case t.networkDevice(addr) != "" && (device == "lo" || strings.HasPrefix(device, "vipd")):
		return warning(fmt.Sprintf("held on %s%s, and in the network of %s: clients there don't reach it, because no host answers their ARP or NDP requests for it",
			device, t.leftText(), t.networkDevice(addr)), "a VIP from another network needs a route to this host. A VIP from the clients' network must be on the device that leads to the clients, or have an owner (docs/ownership.md)",
			fmt.Sprintf("vipctl check  # after setting addresses.interface = %q in %s", t.networkDevice(addr), t.ConfigFile))
	case device == "lo" || strings.HasPrefix(device, "vipd"):
		return routed(fmt.Sprintf("held on %s%s: reachable from programs on this host, and from other hosts that have a route to it", device, t.leftText()), route)
	}
	return announced(fmt.Sprintf("held on %s%s: this host answers ARP or NDP for it there", device, t.leftText()))
}

// maxProbed is the maximum number of VIPs to probe on a device.
const maxProbed = 256

// probeLinks finds other hosts that answer for VIPs, and records them in elsewhere. It probes each
// VIP on the real device that holds it, or whose network contains it. It returns findings about
// probes that failed or were skipped.
func (t *traffic) probeLinks(ctx context.Context, addresses []api.Address) (found []Finding) {
	if !t.Root || t.Elsewhere == nil {
		return nil
	}
	on := map[string][]netip.Addr{}
	for _, a := range addresses {
		addr, err := netip.ParseAddr(a.Address)
		if err != nil || a.Owned || a.Held == "host" {
			continue
		}
		if link := cmp.Or(t.link(a), t.near(addr)); link != "" {
			on[link] = append(on[link], addr)
		}
	}
	for link, vips := range on {
		if len(vips) > maxProbed {
			found = append(found, note(fmt.Sprintf("only the first %d of %d VIPs on %s were searched for on other hosts", maxProbed, len(vips), link), "", ""))
			vips = vips[:maxProbed]
		}
		others, err := t.Elsewhere(ctx, link, vips)
		if err != nil {
			found = append(found, note("can't find out on "+link+" which other hosts have these VIPs: "+err.Error(), "", ""))
		}
		maps.Copy(t.elsewhere, others)
	}
	return found
}

// link returns the real device on which vipd holds or will hold the address. It returns "" if there
// is none, for example because the address is on lo or on vipd's own device.
func (t *traffic) link(a api.Address) string {
	device := a.Held
	if device == toCome {
		device = t.Config.Addresses.Interface
	}
	if a.Owned || slices.Contains([]string{"", "host", "none", "lo", unsure}, device) || strings.HasPrefix(device, "vipd") {
		return ""
	}
	return device
}

// near returns the device whose network contains the address. If there is none, it returns the
// device of the neighbour that has the address, or "".
func (t *traffic) near(a netip.Addr) string {
	for _, i := range t.interfaces {
		if slices.ContainsFunc(i.Networks, func(n netip.Prefix) bool { return n.Contains(a) }) {
			return i.Name
		}
	}
	return t.neighbours[a]
}

// networkDevice is like near, but returns "" if hosts in that network can resolve the address. They
// can resolve an IPv4 address if this host answers ARP for its addresses on every device.
func (t *traffic) networkDevice(a netip.Addr) string {
	if a.Is4() && t.answersByAny {
		return ""
	}
	return t.near(a)
}

// arrivalToCome returns the finding about an address that vipd has not yet added to its device.
func (t *traffic) arrivalToCome(route string) Finding {
	device := t.Config.Addresses.Interface
	switch {
	case strings.HasPrefix(device, "vipd"):
		device += ", or on lo if the kernel has no dummy devices"
	case device != "lo":
		return announced(fmt.Sprintf("not here yet: vipd puts addresses on %s, where this host answers ARP or NDP for them", device))
	}
	return routed(fmt.Sprintf("not here yet: vipd puts addresses on %s; other hosts reach them if they have a route to this host", device), route)
}

// routed returns a finding about an address for which no host answers ARP. announced returns a
// finding about an address on a real device.
func routed(what, route string) Finding {
	return Finding{
		Level: OK, What: what, Why: "no host answers ARP for this address: hosts that run vipd reach it anyway, and other hosts need a route to this host",
		Fix: route + "  # on those other hosts, or on their router",
	}
}

func announced(what string) Finding {
	return Finding{Level: OK, What: what, Why: "only one host may hold it this way; if VIPs have owners, another host takes over (docs/ownership.md)"}
}

// leftText returns a remark for the finding about an address that is still on this host, if no vipd
// answers.
func (t *traffic) leftText() string {
	if t.Status != nil {
		return ""
	}
	return " by a vipd that does not answer"
}

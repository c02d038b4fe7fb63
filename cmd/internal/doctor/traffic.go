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

// What is said of an address, beside the values of api.Address.Held, where no vipd can be asked.
const (
	toCome = "to come" // vipd puts it on its device when it runs
	unsure = "unsure"  // it is on a device, and who put it there is not known
)

// traffic is what the findings about VIPs need of the host. It is read once: there may be ten thousands of VIPs.
type traffic struct {
	*visit
	// on are the host's addresses, with their devices.
	on map[netip.Addr]string
	// interfaces are the host's devices; answersByAny: it answers ARP for an address of one by each of them.
	interfaces   []Interface
	answersByAny bool
	// gateways are those by which others may reach this host: for IPv6 and IPv4.
	gateways map[bool]string
	// elsewhere has the MACs of other hosts that answer for VIPs of this one's devices.
	elsewhere map[netip.Addr]net.HardwareAddr
	// neighbours are the hosts that the kernel knows on its links, each with the device.
	neighbours map[netip.Addr]string
}

// checkTraffic says for each VIP how its traffic gets here. VIPs for which the same is true share a finding.
func checkTraffic(ctx context.Context, v *visit) {
	t := v.traffic()
	addresses := t.addresses()
	if len(addresses) == 0 {
		v.add(note("there are no services yet, so that nothing is known of their traffic", "", ""))
		return
	}
	t.listen(ctx, addresses)
	var order []Finding
	of := map[Finding][]string{}
	for _, a := range addresses {
		f := t.arrival(a)
		if of[f] == nil {
			order = append(order, f)
		}
		of[f] = append(of[f], a.Address)
	}
	for i, f := range order {
		all := of[f]
		order[i].What = list(all) + " " + wording.Be(len(all)) + " " + f.What
		order[i].Mend = strings.ReplaceAll(f.Mend, "VIP", all[0])
	}
	v.add(order...)
}

// traffic reads what the host has.
func (v *visit) traffic() *traffic {
	interfaces, _ := v.Interfaces() // one that does not tell has none that could be named
	t := &traffic{
		v, map[netip.Addr]string{}, interfaces, v.sysctl("net.ipv4.conf.all.arp_ignore") == "0",
		map[bool]string{false: "THIS-HOST", true: "THIS-HOST"}, map[netip.Addr]net.HardwareAddr{}, map[netip.Addr]string{},
	}
	if v.Neighbours != nil {
		t.neighbours, _ = v.Neighbours() // without it, networks name the devices
	}
	found := map[bool]bool{}
	for _, i := range interfaces {
		for _, a := range i.Addrs {
			t.on[a] = cmp.Or(t.on[a], i.Name)
			if is4 := a.Is4(); !found[is4] && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !v.vips[a] {
				found[is4], t.gateways[is4] = true, a.String()
			}
		}
	}
	return t
}

// addresses are the VIPs and who holds them: as the running vipd says, or else as its ledger does.
func (t *traffic) addresses() []api.Address {
	if t.Status != nil {
		return t.Status.Addresses
	}
	put, err := t.Held()
	var all []api.Address
	for _, a := range slices.SortedFunc(maps.Keys(t.vips), netip.Addr.Compare) {
		held := "host"
		switch on := t.on[a]; {
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

// arrival says how traffic for an address gets here; "VIP" stands for the address in the command.
func (t *traffic) arrival(a api.Address) Finding {
	addr, err := netip.ParseAddr(a.Address)
	device := a.Held
	route := "ip route add VIP via " + t.gateways[addr.Is4()]
	switch {
	case err == nil && addr.IsLoopback():
		return fine("on this host's loopback: for programs of this host only")
	case a.Owned && device == "host":
		return fine("owned by this host" + in(t.on[addr]) + ", which answers ARP or NDP for it")
	case a.Owned:
		return fine(a.Note)
	case device == "host":
		return fine("the host's own" + in(t.on[addr]) + ": every client that reaches the host reaches it")
	case device == unsure:
		return note(fmt.Sprintf("on %s, and it is not known whether vipd holds addresses there", t.on[addr]),
			"no vipd answers, and its ledger can't be read", "sudo vipctl doctor")
	case t.elsewhere[addr] != nil && t.link(a) == "":
		return problem(fmt.Sprintf("an address of another host (%s), which answers ARP or NDP for it on %s", t.elsewhere[addr], t.near(addr)),
			"a host that holds it itself can't reach the other host: give the service another VIP, or remove the address there",
			"ip address show to VIP  # on the host with that MAC")
	case t.elsewhere[addr] != nil:
		return problem(fmt.Sprintf("also on another host (%s): both answer ARP or NDP on %s", t.elsewhere[addr], t.link(a)),
			"clients come to the one or the other: only one of them may have it, or both let it be owned (docs/ownership.md)",
			"ip address show to VIP  # on the host with that MAC")
	case device == toCome:
		return t.arrivalToCome(route)
	case device == "none" && !t.Config.Addresses.Bind:
		return note("not here: bind is false, and another program has to add it",
			"vipd serves an address while it is here; its owner, such as keepalived, moves it", "ip address show to VIP")
	case device == "none" || device == "":
		return problem("not on this host"+in(a.Note), "services get no traffic there", "vipctl status")
	case t.asked(addr) != "" && (device == "lo" || strings.HasPrefix(device, "vipd")):
		return warning(fmt.Sprintf("held on %s%s, and in the network of %s: clients there don't reach it, for no host answers when they ask for it by ARP or NDP",
			device, t.left(), t.asked(addr)), "a VIP from another network needs a route to this host; one from the clients' own has to be on their device, or to be owned (docs/ownership.md)",
			fmt.Sprintf("vipctl check  # after setting addresses.interface = %q in %s", t.asked(addr), t.ConfigFile))
	case device == "lo" || strings.HasPrefix(device, "vipd"):
		return routed(fmt.Sprintf("held on %s%s: reached by programs of this host, and by other hosts where a route leads here", device, t.left()), route)
	}
	return announced(fmt.Sprintf("held on %s%s: this host answers ARP or NDP for it there", device, t.left()))
}

// mostAsked bounds the VIPs of a device of which others are asked.
const mostAsked = 256

// listen finds out which other hosts have VIPs that are on real devices of this host, or in their networks.
func (t *traffic) listen(ctx context.Context, addresses []api.Address) {
	if !t.Root || t.Elsewhere == nil {
		return
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
		if len(vips) > mostAsked {
			t.add(note(fmt.Sprintf("of %d VIPs on %s only the first %d were looked for on other hosts", len(vips), link, mostAsked), "", ""))
			vips = vips[:mostAsked]
		}
		found, err := t.Elsewhere(ctx, link, vips)
		if err != nil {
			t.add(note("could not ask on "+link+" which other hosts have these VIPs: "+err.Error(), "", ""))
		}
		maps.Copy(t.elsewhere, found)
	}
}

// link is the real device on which vipd holds an address, or will; "" means there is none.
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

// near is the device in whose network an address is, or that leads to a neighbour with the address; "" means there is none.
func (t *traffic) near(a netip.Addr) string {
	for _, i := range t.interfaces {
		if slices.ContainsFunc(i.Networks, func(n netip.Prefix) bool { return n.Contains(a) }) {
			return i.Name
		}
	}
	return t.neighbours[a]
}

// asked is the device in whose network an address is, so that hosts there ask for it instead of sending to a router; "" means it is in
// none.
func (t *traffic) asked(a netip.Addr) string {
	if a.Is4() && t.answersByAny {
		return ""
	}
	return t.near(a)
}

// arrivalToCome is about an address that vipd puts on its device when it runs.
func (t *traffic) arrivalToCome(route string) Finding {
	device := t.Config.Addresses.Interface
	switch {
	case strings.HasPrefix(device, "vipd"):
		device += ", or on lo where the kernel has no dummy devices"
	case device != "lo":
		return announced(fmt.Sprintf("not here yet: vipd puts addresses on %s, where this host answers ARP or NDP for them", device))
	}
	return routed(fmt.Sprintf("not here yet: vipd puts addresses on %s; other hosts reach them where a route leads here", device), route)
}

// routed is about an address that no host answers ARP for, announced about one on a real device.
func routed(what, route string) Finding {
	return Finding{
		Level: OK, What: what, Why: "no host answers ARP for such an address: hosts that run vipd need nothing, others need a route to this one",
		Mend: route + "  # on those others, or on their router",
	}
}

func announced(what string) Finding {
	return Finding{Level: OK, What: what, Why: "only one host may hold it so; hosts that own their VIPs take each other's over (docs/ownership.md)"}
}

// left says of an address in use that no vipd answers.
func (t *traffic) left() string {
	if t.Status != nil {
		return ""
	}
	return " by a vipd that does not answer"
}

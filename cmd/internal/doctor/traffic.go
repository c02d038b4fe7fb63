package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"vipd/cmd/internal/api"
)

// checkTraffic says for each VIP how its traffic gets here. VIPs for which the same is true share a finding.
func checkTraffic(_ context.Context, v *visit) []Finding {
	addresses := v.addresses()
	if len(addresses) == 0 {
		return []Finding{{Level: Note, What: "there are no services yet, so that nothing is known of their traffic"}}
	}
	var order []Finding
	of := map[Finding][]string{}
	for _, a := range addresses {
		f := v.arrival(a)
		if of[f] == nil {
			order = append(order, f)
		}
		of[f] = append(of[f], a.Address)
	}
	for i, f := range order {
		all := of[f]
		order[i].What = list(all) + " " + be(len(all)) + " " + f.What
		order[i].Mend = strings.ReplaceAll(f.Mend, "VIP", all[0])
	}
	return order
}

// addresses are the VIPs and who holds them: as the running vipd says, or as it would be.
func (v *visit) addresses() []api.Address {
	if v.Status != nil {
		return v.Status.Addresses
	}
	var vips []netip.Addr
	for _, f := range v.Frontends {
		if !f.NodePort && !slices.Contains(vips, f.Addr) {
			vips = append(vips, f.Addr)
		}
	}
	slices.SortFunc(vips, netip.Addr.Compare)
	var all []api.Address
	for _, a := range vips {
		held := v.Config.Addresses.Interface
		switch on := v.device(a); {
		case on != "" && on != held || a.IsLoopback():
			held = "host"
		case !v.Config.Addresses.Bind && on == "":
			held = "none"
		}
		all = append(all, api.Address{Address: a.String(), Held: held})
	}
	return all
}

// device returns the name of the device that has the address; "": none.
func (v *visit) device(a netip.Addr) string {
	all, err := v.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range all {
		if slices.Contains(i.Addrs, a) {
			return i.Name
		}
	}
	return ""
}

// arrival says how traffic for an address gets here; "VIP" stands for the address in the command.
func (v *visit) arrival(a api.Address) Finding {
	addr, err := netip.ParseAddr(a.Address)
	device := a.Held
	route := "ip route add VIP via " + v.gateway(addr)
	switch {
	case err == nil && addr.IsLoopback():
		return Finding{Level: OK, What: "on this host's loopback: for programs of this host only"}
	case device == "host":
		return Finding{Level: OK, What: "the host's own" + in(v.device(addr)) + ": reached by whoever reaches the host"}
	case device == "none" && !v.Config.Addresses.Bind:
		return Finding{
			Level: Note, What: "not here: bind is false, and somebody else is to bring it", Why: "vipd serves an address while it is here; its owner, such as keepalived, moves it",
			Mend: "ip address show to VIP",
		}
	case device == "none" || device == "":
		return Finding{Level: Problem, What: "not on this host" + in(a.Note), Why: "services get no traffic there", Mend: "vipctl status"}
	case device == "lo" || strings.HasPrefix(device, "vipd"):
		return Finding{
			Level: OK, What: fmt.Sprintf("held on %s: reached by programs of this host, and by other hosts where a route leads here", device),
			Why: "nobody answers ARP for such an address: hosts that run vipd themselves need nothing, others a route to this one", Mend: route + "  # on those others, or on their router",
		}
	}
	return Finding{
		Level: OK, What: fmt.Sprintf("held on %s: this host answers ARP or NDP for it there", device),
		Why: "only one host may hold it so: there is no failover between hosts in vipd",
	}
}

// gateway is the address by which others may reach this host.
func (v *visit) gateway(vip netip.Addr) string {
	interfaces, err := v.Interfaces()
	if err != nil {
		return "THIS-HOST"
	}
	for _, i := range interfaces {
		for _, a := range i.Addrs {
			own := !a.IsLoopback() && !a.IsLinkLocalUnicast() && a.Is4() == vip.Is4() && !v.isVIP(a)
			if own {
				return a.String()
			}
		}
	}
	return "THIS-HOST"
}

func (v *visit) isVIP(a netip.Addr) bool {
	return slices.ContainsFunc(v.Frontends, func(f Frontend) bool { return f.Addr == a && !f.NodePort })
}

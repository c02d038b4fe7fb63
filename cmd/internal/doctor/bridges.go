package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"vipd/balancer"
)

// checkBridges looks for this host's bridges, such as container bridges. If a client and an
// endpoint are behind the same bridge, their packets bypass iptables.
func checkBridges(_ context.Context, o *observed) []Finding {
	if !o.mode().Forward || o.sysctl(bridgeFilter) == "1" {
		return nil
	}
	bridges := o.addressedBridges()
	if len(bridges) == 0 {
		return nil
	}
	return []Finding{note("packets inside bridges bypass iptables: "+list(bridges),
		fmt.Sprintf("if snat is %q, an endpoint answers clients on its own bridge directly and not through this host; "+
			"snat = \"auto\" replaces their addresses", balancer.NeverSNAT),
		"modprobe br_netfilter; sysctl -w "+bridgeFilter+"=1")}
}

// bridgeFilter is the sysctl that passes bridged frames to netfilter.
const bridgeFilter = "net.bridge.bridge-nf-call-iptables"

// addressedBridges returns the bridges on which this host has addresses.
func (o *observed) addressedBridges() (names []string) {
	for _, i := range o.interfaces {
		if i.Bridge && len(i.Addrs) > 0 {
			names = append(names, i.Name)
		}
	}
	return names
}

// checkHairpin looks for endpoints behind a bridge if iptables translates their packets inside the
// bridge. If such an endpoint connects to its own VIP and is itself selected as the endpoint, the
// packet must leave through the bridge port on which it arrived. IPVS is not affected, because
// virtual servers receive packets on this host instead of inside the bridge.
func checkHairpin(_ context.Context, o *observed) (found []Finding) {
	if !o.mode().Forward || !o.translates() || o.sysctl(bridgeFilter) != "1" {
		return nil
	}
	for _, i := range o.interfaces {
		behind := func(to netip.AddrPort) bool {
			return slices.ContainsFunc(i.Networks, func(n netip.Prefix) bool { return n.Contains(to.Addr()) })
		}
		if len(i.OneWay) == 0 || !slices.ContainsFunc(o.Frontends, func(f Frontend) bool { return slices.ContainsFunc(f.Backends, behind) }) {
			continue
		}
		found = append(found, note("bridge ports don't return packets to the port where they arrived (hairpin is off): "+i.Name+" ("+list(i.OneWay)+")",
			"packets inside the bridge are translated (bridge-nf-call-iptables), so an endpoint that connects "+
				"to its own VIP gets no answer if vipd chooses this endpoint",
			"bridge link set dev "+i.OneWay[0]+" hairpin on"))
	}
	return found
}

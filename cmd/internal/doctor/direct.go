package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/cmd/internal/config"
)

// checkDirect looks for direct-routing endpoints that do not answer on their link, or that are not
// on any of this host's links.
func checkDirect(_ context.Context, o *observed) (found []Finding) {
	if o.Neighbor == nil {
		return nil
	}
	services := map[netip.Addr]balancer.Name{}
	for _, f := range o.Frontends {
		for _, a := range f.Direct {
			services[a] = f.Service
		}
	}
	if len(services) == 0 {
		return nil
	}
	nftables := o.mode().Name == config.NFTablesMode
	if names := o.addressedBridges(); nftables && len(names) > 0 && o.sysctl(bridgeFilter) == "1" {
		found = append(found, warning("nat serves clients behind bridges, instead of direct routing: "+list(names),
			"netfilter handles the frames in a bridge before direct routing does. Docker and Kubernetes might need this setting", "sysctl -w "+bridgeFilter+"=0"))
	}
	silent, routed, unread := map[string][]string{}, []string{}, []string{}
	fix := map[string]string{}
	for _, a := range slices.SortedFunc(maps.Keys(services), netip.Addr.Compare) {
		name := fmt.Sprintf("%s (%s)", a, services[a])
		switch n, err := o.Neighbor(a); {
		case err != nil:
			unread = append(unread, err.Error())
		case n.Device == "":
			routed = append(routed, name)
		case n.Silent:
			link := n.Protocol() + " on " + n.Device
			silent[link] = append(silent[link], name)
			fix[link] = "ping -c 1 " + a.String()
		}
	}
	for _, link := range slices.Sorted(maps.Keys(silent)) {
		found = append(found, warning(fmt.Sprintf("direct-routing endpoints do not answer %s: %s", link, list(silent[link])),
			"packets to these endpoints are lost; with a health check, they would get no new connections", fix[link]))
	}
	if len(routed) > 0 && nftables {
		found = append(found, note(fmt.Sprintf("nat serves the clients of endpoints that are not neighbors of this host: %s", list(routed)),
			"direct routing reaches only neighbors, so these endpoints must also listen on their own addresses", "ip route get ENDPOINT"))
	}
	if len(unread) > 0 {
		found = append(found, note("it is unknown whether direct-routing endpoints are neighbors of this host: "+list(unread), "", ""))
	}
	return orFine(found, "no direct-routing endpoint is known to be unreachable on its link")
}

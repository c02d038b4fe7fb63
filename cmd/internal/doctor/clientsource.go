package doctor

import (
	"context"
	"net/netip"
	"slices"

	"vipd/cmd/internal/config"
)

// checkClientSource checks the return path of replies in services with source = "client".
func checkClientSource(_ context.Context, o *observed) (found []Finding) {
	if o.mode().Name != config.UserspaceMode {
		return nil
	}
	var endpoints []netip.Addr
	for _, f := range o.Frontends {
		if f.FromClients {
			for _, b := range f.Backends {
				endpoints = append(endpoints, b.Addr())
			}
		}
	}
	if len(endpoints) == 0 {
		return nil
	}
	slices.SortFunc(endpoints, netip.Addr.Compare)
	endpoints = slices.Compact(endpoints)
	if on := devicesWith(o, "ipv4", "src_valid_mark", "1"); len(on) > 0 {
		found = append(found, problem("replies to clients' addresses are dropped, because src_valid_mark is on for "+list(on),
			`services with source = "client" don't work, because the kernel then checks replies against the route for their mark, which leads to lo. wg-quick enables src_valid_mark`,
			"sysctl -w "+deviceSysctl(on[0], "src_valid_mark")+"=0"))
	}
	return append(found, o.waysBack(endpoints)...)
}

// waysBack reports which endpoints must route replies to clients through this host, and through
// which of its addresses. Endpoints behind other routers also depend on the routes of those
// routers.
func (o *observed) waysBack(endpoints []netip.Addr) (found []Finding) {
	var near, far []string
	fix := ""
	for _, e := range endpoints {
		here := o.addressNear(e)
		if !here.IsValid() {
			far = append(far, e.String())
			continue
		}
		near = append(near, e.String())
		if fix == "" {
			fix = "ip route get CLIENT  # on " + e.String() + ": it must lead via " + here.String()
		}
	}
	const why = `source = "client": replies that bypass this host are lost, and rp_filter on an endpoint can drop packets from clients`
	if len(near) > 0 {
		found = append(found, note("endpoints must route replies to clients through this host: "+list(near), why, fix))
	}
	if len(far) > 0 {
		found = append(found, warning("replies to clients from endpoints behind other routers must also come back to this host: "+list(far),
			why, "ip route get "+far[0]+"  # the routers on this path need a route to the clients via this host"))
	}
	return found
}

// addressNear returns this host's address in an endpoint's network, or the zero Addr.
func (o *observed) addressNear(endpoint netip.Addr) netip.Addr {
	for _, i := range o.interfaces {
		for _, n := range i.Networks {
			at := slices.IndexFunc(i.Addrs, n.Contains)
			if n.Contains(endpoint) && at >= 0 {
				return i.Addrs[at]
			}
		}
	}
	return netip.Addr{}
}

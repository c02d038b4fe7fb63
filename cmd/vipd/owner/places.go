package owner

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"

	"vipd/balancer/failover"
	onhost "vipd/dataplane/failover"
)

// places are where this host hears heartbeats, the interfaces that may have VIPs, and the one of each VIP.
type places struct {
	at []failover.Address
	// on has for each of at the interface that may have VIPs; "" means none.
	on      []string
	devices map[netip.Addr]string
	// told are all VIPs, also those without a device.
	told []netip.Addr
	// own are VIPs that this host has for itself: no gate may silence them, and no other host may have them.
	own []netip.Addr
	// reach are the hosts that are to answer on an interface.
	reach map[string][]netip.Addr
}

// find finds the device of each VIP: the one whose network contains it, of those named if any are. Heartbeats are heard on each,
// and where etcd is reached from; or on the addresses that are named.
func find(vips []netip.Addr, named []string, listen, way []netip.Addr) (places, error) {
	p := places{devices: map[netip.Addr]string{}, told: vips}
	all, err := net.Interfaces()
	if err != nil {
		return p, fmt.Errorf("listing devices: %w", err)
	}
	held, err := onhost.Held()
	if err != nil {
		return p, err
	}
	for _, device := range all {
		if device.Flags&net.FlagLoopback != 0 || device.Flags&net.FlagUp == 0 || len(named) > 0 && !slices.Contains(named, device.Name) {
			continue
		}
		addrs := held[device.Index]
		at := place(addrs, listen)
		at.MAC = device.HardwareAddr.String()
		here := len(named) > 0
		own := hostsOwn(addrs)
		for _, v := range vips {
			if own[v] {
				p.own = append(p.own, v)
			}
			if p.devices[v] == "" && slices.ContainsFunc(at.Networks, func(n netip.Prefix) bool { return n.Contains(v) }) {
				p.devices[v], here = device.Name, true
			}
		}
		if here && at.Addr.IsValid() {
			p.at, p.on = append(p.at, at), append(p.on, device.Name)
		}
	}
	for _, v := range p.own {
		delete(p.devices, v)
	}
	for _, a := range slices.Concat(listen, way) {
		if index(p.at, a) < 0 {
			p.at, p.on = append(p.at, failover.Address{Addr: a}), append(p.on, "")
		}
	}
	return p, nil
}

// interfaces are those that may have VIPs.
func (p places) interfaces() []string {
	return slices.DeleteFunc(slices.Clone(p.on), func(name string) bool { return name == "" })
}

// grown is next after p. What there was keeps its index, by which others know it, and its interface and the VIPs on that, though it may be
// away: a VIP that is still there needs the gate.
func (p places) grown(next places) places {
	out := next
	out.at, out.on, out.devices, out.reach = slices.Clone(p.at), slices.Clone(p.on), maps.Clone(next.devices), maps.Clone(p.reach)
	for i, a := range next.at {
		j, on := index(out.at, a.Addr), next.on[i]
		for k := 0; j < 0 && k < len(out.at); k++ {
			if out.on[k] == on && (on != "" || index(next.at, out.at[k].Addr) < 0) {
				j = k // it has another address now
			}
		}
		switch {
		case j < 0:
			out.at, out.on = append(out.at, a), append(out.on, on)
		case on != "" || out.on[j] == "":
			out.at[j], out.on[j] = a, on
		}
	}
	return out
}

// index returns which of the addresses is a; -1 means none.
func index(all []failover.Address, a netip.Addr) int {
	return slices.IndexFunc(all, func(has failover.Address) bool { return has.Addr == a })
}

// same reports whether nothing has changed on this host.
func (p places) same(other places) bool {
	devices := maps.Equal(p.devices, other.devices) // there are many
	p.devices, p.told, other.devices, other.told = nil, nil, nil, nil
	return devices && reflect.DeepEqual(p, other)
}

// within finds the hosts that are to answer on each interface: of those that are named, or are routers, the ones of its networks. VIPs
// are none of them.
func (p places) within(hosts, vips []netip.Addr) map[string][]netip.Addr {
	reach := map[string][]netip.Addr{}
	for i, name := range p.on {
		for _, h := range hosts {
			if name != "" && slices.ContainsFunc(p.at[i].Networks, func(n netip.Prefix) bool { return n.Contains(h) }) && !slices.Contains(vips, h) {
				reach[name] = append(reach[name], h)
			}
		}
	}
	return reach
}

// hostsOwn are those of the addresses that have a network, as the address of a host has.
func hostsOwn(addrs []netip.Prefix) map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	for _, p := range addrs {
		if !p.IsSingleIP() {
			own[p.Addr()] = true
		}
	}
	return own
}

// place is a device as others see it: one of its addresses, and its networks.
func place(addrs []netip.Prefix, listen []netip.Addr) (at failover.Address) {
	for _, p := range addrs {
		a := p.Addr()
		if !a.IsGlobalUnicast() || p.IsSingleIP() { // a VIP, or a peer's
			continue
		}
		at.Networks = append(at.Networks, p.Masked())
		if !at.Addr.IsValid() || slices.Contains(listen, a) && !slices.Contains(listen, at.Addr) {
			at.Addr = a
		}
	}
	return at
}

// wayTo is the address from which etcd is reached, if that is beyond this host.
func wayTo(ctx context.Context, endpoints []string) []netip.Addr {
	var d net.Dialer
	for _, e := range endpoints {
		u, err := url.Parse(e)
		if err != nil {
			continue
		}
		c, err := d.DialContext(ctx, "udp", u.Host) // no packet leaves
		if err != nil {
			continue
		}
		local := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		_ = c.Close()
		if !local.IsLoopback() {
			return []netip.Addr{local}
		}
	}
	return nil
}

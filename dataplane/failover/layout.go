package failover

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
)

// Places are the interfaces that VIPs may be on.
type Places struct {
	// Interfaces may have VIPs, and Devices names the interface of each VIP that this host may own.
	Interfaces []string
	Devices    map[netip.Addr]string
	// Reach are the hosts that must answer on an interface.
	Reach map[string][]netip.Addr
}

// Layout describes the host's connections: the addresses on which it receives heartbeats, and the
// interface of each VIP.
type Layout struct {
	Places
	// At has the addresses of heartbeats, and On the interface of each that may have VIPs; "" means
	// none.
	At []failover.Address
	On []string
	// VIPs has all VIPs, including VIPs without an interface here. Own has the VIPs that this host
	// has for itself: no gate may silence them, and no other host may have them.
	VIPs, Own []netip.Addr
	// Away are the VIPs whose interface can't serve them now, and why.
	Away map[netip.Addr]string
}

// LayoutOptions limit a layout.
type LayoutOptions struct {
	// Interfaces has the interfaces that may have VIPs; none means all. Listen are addresses to
	// receive heartbeats at.
	Interfaces []string
	Listen     []netip.Addr
	// Way is the address from which etcd is reached, and Reach has the hosts that must answer on
	// their interface.
	Way, Reach []netip.Addr
}

// Next returns the layout for these VIPs that follows l. Addresses keep their indexes, by which
// other hosts know them. Interfaces and their VIPs stay while an interface is missing, because a
// VIP that still exists needs the gate.
func (l Layout) Next(vips []netip.Addr, o LayoutOptions) (Layout, error) {
	found, err := find(vips, o)
	if err != nil {
		return Layout{}, err
	}
	next := l.grow(found)
	for _, v := range vips {
		if device := l.Devices[v]; device != "" && next.Devices[v] == "" && !slices.Contains(next.Own, v) {
			next.Devices[v] = device // which is away, or down
			next.Away[v] = fmt.Sprintf("interface %s has no address in the network of %s", device, v)
		}
	}
	down, err := Down(slices.Compact(slices.Sorted(maps.Values(next.Devices))))
	if err != nil {
		return Layout{}, err
	}
	for v, device := range next.Devices {
		if why := down[device]; why != "" {
			next.Away[v] = "interface " + device + " " + why
		}
	}
	next.Reach = next.within(o.Reach)
	next.Interfaces = slices.DeleteFunc(slices.Clone(next.On), func(name string) bool { return name == "" })
	return next, nil
}

// Down returns why the interfaces among these that can carry no packet can't.
func Down(names []string) (map[string]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing devices: %w", err)
	}
	down := map[string]string{}
	for _, name := range names {
		switch i := slices.IndexFunc(all, func(d net.Interface) bool { return d.Name == name }); {
		case i < 0:
			down[name] = "is missing"
		case all[i].Flags&net.FlagUp == 0:
			down[name] = "is down"
		case all[i].Flags&net.FlagRunning == 0:
			down[name] = "has no carrier"
		}
	}
	return down, nil
}

// Equal reports whether nothing on this host is different. The VIPs may be.
func (l Layout) Equal(other Layout) bool {
	devices := maps.Equal(l.Devices, other.Devices) // there are many
	l.Devices, l.VIPs, other.Devices, other.VIPs = nil, nil, nil, nil
	return devices && reflect.DeepEqual(l, other)
}

// Unplaced are the VIPs that no interface has a network for.
func (l Layout) Unplaced() (vips []netip.Addr) {
	for _, v := range l.VIPs {
		if l.Devices[v] == "" && !slices.Contains(l.Own, v) {
			vips = append(vips, v)
		}
	}
	return vips
}

// find returns the layout of this moment. The interface of a VIP is the interface whose network
// contains it.
func find(vips []netip.Addr, o LayoutOptions) (Layout, error) {
	l := Layout{Places: Places{Devices: map[netip.Addr]string{}}, VIPs: vips, Away: map[netip.Addr]string{}}
	all, err := net.Interfaces()
	if err != nil {
		return l, fmt.Errorf("listing devices: %w", err)
	}
	held, err := Held()
	if err != nil {
		return l, err
	}
	for _, device := range all {
		named := slices.Contains(o.Interfaces, device.Name)
		if device.Flags&net.FlagLoopback != 0 || device.Flags&net.FlagUp == 0 || len(o.Interfaces) > 0 && !named {
			continue
		}
		at, own := describe(held[device.Index], o.Listen)
		at.MAC = device.HardwareAddr.String()
		for _, v := range vips {
			if own[v] {
				l.Own = append(l.Own, v)
			}
			if l.Devices[v] == "" && slices.ContainsFunc(at.Networks, func(n netip.Prefix) bool { return n.Contains(v) }) {
				l.Devices[v], named = device.Name, true
			}
		}
		if named && at.Addr.IsValid() {
			l.At, l.On = append(l.At, at), append(l.On, device.Name)
		}
	}
	for _, v := range l.Own {
		delete(l.Devices, v)
	}
	for _, a := range slices.Concat(o.Listen, o.Way) {
		if index(l.At, a) < 0 {
			l.At, l.On = append(l.At, failover.Address{Addr: a}), append(l.On, "")
		}
	}
	return l, nil
}

// describe returns a device as other hosts see it: one of its addresses, and its networks. Own
// addresses have a network.
func describe(addrs []netip.Prefix, listen []netip.Addr) (at failover.Address, own map[netip.Addr]bool) {
	own = map[netip.Addr]bool{}
	for _, p := range addrs {
		a := p.Addr()
		if p.IsSingleIP() { // a VIP, or a peer's
			continue
		}
		own[a] = true
		if !a.IsGlobalUnicast() {
			continue
		}
		at.Networks = append(at.Networks, p.Masked())
		if !at.Addr.IsValid() || slices.Contains(listen, a) && !slices.Contains(listen, at.Addr) {
			at.Addr = a
		}
	}
	return at, own
}

// grow returns next with the indexes of l.
func (l Layout) grow(next Layout) Layout {
	out := next
	out.At, out.On, out.Devices = slices.Clone(l.At), slices.Clone(l.On), maps.Clone(next.Devices)
	for i, a := range next.At {
		j, on := index(out.At, a.Addr), next.On[i]
		for k := 0; j < 0 && k < len(out.At); k++ {
			if out.On[k] == on && (on != "" || index(next.At, out.At[k].Addr) < 0) {
				j = k // it has another address now
			}
		}
		switch {
		case j < 0:
			out.At, out.On = append(out.At, a), append(out.On, on)
		case on != "" || out.On[j] == "":
			out.At[j], out.On[j] = a, on
		}
	}
	return out
}

// index returns the index of an address; -1 means it is missing.
func index(all []failover.Address, a netip.Addr) int {
	return slices.IndexFunc(all, func(has failover.Address) bool { return has.Addr == a })
}

// within returns the hosts that must answer on each interface: hosts in its networks, except VIPs.
func (l Layout) within(hosts []netip.Addr) map[string][]netip.Addr {
	reach := map[string][]netip.Addr{}
	for i, name := range l.On {
		for _, h := range hosts {
			if name != "" && slices.ContainsFunc(l.At[i].Networks, func(n netip.Prefix) bool { return n.Contains(h) }) && !slices.Contains(l.VIPs, h) {
				reach[name] = append(reach[name], h)
			}
		}
	}
	return reach
}

// WayTo returns the address from which the first endpoint that is not on this host is reached.
func WayTo(ctx context.Context, endpoints []string) []netip.Addr {
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

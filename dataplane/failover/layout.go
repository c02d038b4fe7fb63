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

// Places holds the interfaces that may have VIPs.
type Places struct {
	// Interfaces lists the interfaces that may have VIPs. Devices maps each VIP that this host may
	// own to its interface.
	Interfaces []string
	Devices    map[netip.Addr]string
	// Reach maps an interface to hosts, at least one of which must answer on the interface.
	Reach map[string][]netip.Addr
}

// Layout describes the host's networks: the addresses on which it receives heartbeats, and the
// interface of each VIP.
type Layout struct {
	Places
	// At lists the addresses for heartbeats. On lists, for each address in At, its interface if the
	// interface may have VIPs, and otherwise "".
	At []failover.Address
	On []string
	// VIPs lists all VIPs, including those without an interface on this host. Own lists the VIPs
	// that are this host's own addresses, which the gate must not silence.
	VIPs, Own []netip.Addr
	// Away maps each VIP that this host can't serve at present to the reason.
	Away map[netip.Addr]string
}

// LayoutOptions configures a layout.
type LayoutOptions struct {
	// Interfaces lists the interfaces that may have VIPs. If empty, all interfaces may. Listen
	// lists the addresses at which to receive heartbeats.
	Interfaces []string
	Listen     []netip.Addr
	// Way is the address from which this host reaches etcd. Reach lists the hosts that must answer
	// on their interfaces.
	Way, Reach []netip.Addr
}

// Next returns the layout for vips that follows l. Addresses retain their indexes, which identify
// them to other hosts. A missing interface and its VIPs remain in the layout, because a VIP that
// still exists needs the gate.
func (l Layout) Next(vips []netip.Addr, o LayoutOptions) (Layout, error) {
	found, err := find(vips, o)
	if err != nil {
		return Layout{}, err
	}
	next := l.grow(found)
	for _, v := range vips {
		if device := l.Devices[v]; device != "" && next.Devices[v] == "" && !slices.Contains(next.Own, v) {
			next.Devices[v] = device // the device is missing or down
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

// Down maps the interfaces among names that can't transmit packets to the reasons.
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

// Equal reports whether two layouts are equal except for their lists of VIPs.
func (l Layout) Equal(other Layout) bool {
	devices := maps.Equal(l.Devices, other.Devices) // compared last because the maps may be large
	l.Devices = nil
	l.VIPs = nil
	other.Devices = nil
	other.VIPs = nil
	return devices && reflect.DeepEqual(l, other)
}

// Unplaced returns the VIPs that are not in the network of any interface.
func (l Layout) Unplaced() (vips []netip.Addr) {
	for _, v := range l.VIPs {
		if l.Devices[v] == "" && !slices.Contains(l.Own, v) {
			vips = append(vips, v)
		}
	}
	return vips
}

// find returns the current layout. A VIP belongs to the interface whose network contains it.
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

// describe returns a device's address for heartbeats with the device's networks, and the device's
// own addresses. Unlike a VIP, an own address has a network. For heartbeats, an address in listen
// is preferred.
func describe(addrs []netip.Prefix, listen []netip.Addr) (at failover.Address, own map[netip.Addr]bool) {
	own = map[netip.Addr]bool{}
	for _, p := range addrs {
		a := p.Addr()
		if p.IsSingleIP() { // a VIP, or an address with a peer
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

// grow returns next with its addresses reordered so that l's addresses retain their indexes.
func (l Layout) grow(next Layout) Layout {
	out := next
	out.At = slices.Clone(l.At)
	out.On = slices.Clone(l.On)
	out.Devices = maps.Clone(next.Devices)
	for i, a := range next.At {
		j, on := index(out.At, a.Addr), next.On[i]
		for k := 0; j < 0 && k < len(out.At); k++ {
			if out.On[k] == on && (on != "" || index(next.At, out.At[k].Addr) < 0) {
				j = k // this interface's address has changed
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

func index(all []failover.Address, a netip.Addr) int {
	return slices.IndexFunc(all, func(has failover.Address) bool { return has.Addr == a })
}

// within assigns hosts to the interfaces on which they must answer. Each host that is not a VIP
// belongs to the interfaces whose networks contain it.
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

// WayTo returns the address from which this host reaches the first endpoint on another host, or nil
// if no endpoint is on another host.
func WayTo(ctx context.Context, endpoints []string) []netip.Addr {
	var d net.Dialer
	for _, e := range endpoints {
		u, err := url.Parse(e)
		if err != nil {
			continue
		}
		c, err := d.DialContext(ctx, "udp", u.Host) // no packet is sent
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

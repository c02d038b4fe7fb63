package owner

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"

	"vipd/balancer/ownership"
)

func trim(b []byte) string { return string(bytes.TrimSpace(b)) }

// places are where this host hears heartbeats, and the devices of VIPs.
type places struct {
	at      []ownership.Address
	devices map[netip.Addr]string
}

// find finds the device of each VIP: the one whose network contains it, of those named if any are. Heartbeats are heard on each,
// and where etcd is reached from; or on the addresses that are named.
func find(vips []netip.Addr, named []string, listen []netip.Addr, endpoints []string) (places, error) {
	p := places{devices: map[netip.Addr]string{}}
	all, err := net.Interfaces()
	if err != nil {
		return p, fmt.Errorf("listing devices: %w", err)
	}
	for _, device := range all {
		if device.Flags&net.FlagLoopback != 0 || device.Flags&net.FlagUp == 0 || len(named) > 0 && !slices.Contains(named, device.Name) {
			continue
		}
		addrs, err := device.Addrs()
		if err != nil {
			return p, fmt.Errorf("listing the addresses of %s: %w", device.Name, err)
		}
		at := place(addrs, listen)
		here := len(named) > 0
		for _, v := range vips {
			if p.devices[v] == "" && slices.ContainsFunc(at.Networks, func(n netip.Prefix) bool { return n.Contains(v) }) {
				p.devices[v], here = device.Name, true
			}
		}
		if here && at.Addr.IsValid() {
			p.at = append(p.at, at)
		}
	}
	for _, a := range append(listen, way(endpoints)...) {
		if !slices.ContainsFunc(p.at, func(has ownership.Address) bool { return has.Addr == a }) {
			p.at = append(p.at, ownership.Address{Addr: a})
		}
	}
	return p, nil
}

// place is a device as others see it: one of its addresses, and its networks.
func place(addrs []net.Addr, listen []netip.Addr) (at ownership.Address) {
	for _, one := range addrs {
		n, ok := one.(*net.IPNet)
		if !ok {
			continue
		}
		a, _ := netip.AddrFromSlice(n.IP)
		a = a.Unmap()
		ones, size := n.Mask.Size()
		if !a.IsGlobalUnicast() || ones == size { // a VIP, or a peer's
			continue
		}
		at.Networks = append(at.Networks, netip.PrefixFrom(a, ones).Masked())
		if !at.Addr.IsValid() || slices.Contains(listen, a) && !slices.Contains(listen, at.Addr) {
			at.Addr = a
		}
	}
	return at
}

// way is the address from which etcd is reached, if that is beyond this host.
func way(endpoints []string) []netip.Addr {
	for _, e := range endpoints {
		u, err := url.Parse(e)
		if err != nil {
			continue
		}
		c, err := net.Dial("udp", u.Host) // no packet leaves
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

package convert

import (
	"net/netip"
	"slices"
)

// fitFamilies removes VIPs without an endpoint of their family, and endpoints without a VIP of
// their family, because vipd does not translate between IPv4 and IPv6.
func (f *fitter) fitFamilies(s *service) {
	if len(s.vips) == 0 || len(s.endpoints) == 0 {
		return
	}
	has := func(entries []listElement, v4 bool) bool {
		return slices.ContainsFunc(entries, func(e listElement) bool { return e.in(v4) })
	}
	for _, v4 := range []bool{true, false} {
		family := map[bool]string{true: "IPv4", false: "IPv6"}[v4]
		vips, endpoints := has(s.vips, v4), has(s.endpoints, v4)
		if endpoints && !vips {
			s.endpoints = f.without(s.endpoints, v4, "left out: the service has no "+family+" VIP, and vipd does not translate between IPv4 and IPv6")
		}
		if vips && !endpoints {
			s.vips = f.without(s.vips, v4, "left out: the service has no "+family+" endpoint, and vipd does not translate between IPv4 and IPv6")
		}
	}
	if len(s.vips) == 0 {
		f.disable(s, s.line, "its VIPs and endpoints have no address family in common, and vipd does not translate between IPv4 and IPv6")
	}
}

// without removes the entries of an address family, and adds the note why for each.
func (f *fitter) without(entries []listElement, v4 bool, why string) []listElement {
	return slices.DeleteFunc(entries, func(e listElement) bool {
		if !e.in(v4) || e.in(!v4) {
			return false
		}
		f.note(e.line, "%s", why)
		return true
	})
}

// in reports whether a VIP or an endpoint may have an address of the family. A DNS name may have
// addresses of both families.
func (e *listElement) in(v4 bool) bool {
	a := e.address()
	return !a.IsValid() || a.Is4() == v4
}

// address returns a VIP's or an endpoint's address, or the zero address for a name.
func (e *listElement) address() netip.Addr {
	text, isVIP := e.value.(string)
	if !isVIP {
		text, _ = e.fields()["address"].(string)
	}
	addr, _ := netip.ParseAddr(text)
	return addr
}

// fitLoops disables a service if one of its endpoints is the service itself.
func (f *fitter) fitLoops(s *service) {
	vips := map[netip.Addr]bool{}
	for _, v := range s.vips {
		vips[v.address()] = true
	}
	for _, e := range s.endpoints {
		if !vips[e.address()] {
			continue
		}
		isPort := slices.ContainsFunc(s.ports, func(p listElement) bool {
			return e.port == 0 || p.fields()["port"] == int64(e.port)
		})
		if isPort {
			f.disable(s, e.line, "the endpoint has the service's own address and port, so connections would loop: give the endpoint another address or port")
		}
	}
}

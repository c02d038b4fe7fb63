package balancer

import (
	"iter"
	"net/netip"
	"slices"
)

// AffinityScope determines on which ports a client gets the same endpoint.
type AffinityScope string

// The scopes are a single port, all ports of a service, and all services on a VIP that have
// VIPScope.
const (
	PortScope    AffinityScope = "port"
	ServiceScope AffinityScope = "service"
	VIPScope     AffinityScope = "vip"
)

// Values lists the possible values.
func (AffinityScope) Values() []string {
	return []string{string(PortScope), string(ServiceScope), string(VIPScope)}
}

// AffinityMemory identifies an affinity memory, which is a table that maps clients to endpoints.
// Frontends with an equal AffinityMemory share the table.
type AffinityMemory struct {
	// Key is the frontend's key. Its port and protocol are zero if all ports share the memory.
	Key
	// Service is the service that owns the memory. It is "" for PortScope, and for the memory that
	// the services on a VIP share.
	Service Name
	// Prefix is the frontend's AffinityPrefix.
	Prefix int
}

// AffinityMemories returns the memories of f, or nil if it has no affinity. A new connection uses
// the first memory. With VIPScope and foreign endpoints, there is a second memory, which belongs
// only to the service. A new connection uses the second memory if the first holds a foreign
// endpoint for the client (see IsForeign).
func (f *Frontend) AffinityMemories() []AffinityMemory {
	if f.AffinityTimeout <= 0 {
		return nil
	}
	vip := AffinityMemory{Key: Key{Addr: f.Addr}, Prefix: f.AffinityPrefix}
	service := vip
	service.Service = f.Service
	switch {
	case !f.AffinityScope.beyondPort():
		return []AffinityMemory{{Key: f.Key, Prefix: f.AffinityPrefix}}
	case f.AffinityScope == ServiceScope:
		return []AffinityMemory{service}
	case len(f.Foreign) == 0:
		return []AffinityMemory{vip}
	}
	return []AffinityMemory{vip, service}
}

// IsForeign reports whether an endpoint from a VIP's memory belongs only to other services than
// f's.
func (f *Frontend) IsForeign(endpoint netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(f.Foreign, endpoint.Addr(), netip.Addr.Compare)
	return found && endpoint.Port() == 0
}

// withForeign returns a copy of f with its field Foreign set. A foreign endpoint belongs to another
// service with the same memory, but not to own, which is the service that f belongs to. If there is
// no foreign endpoint, withForeign returns f itself.
func withForeign(f *Frontend, own *compiledService, services iter.Seq[*compiledService]) *Frontend {
	if f.AffinityScope != VIPScope {
		return f
	}
	var foreign []netip.Addr
	for u := range services {
		if u == own || !u.sharesMemory(f) {
			continue
		}
		for _, e := range u.endpoints {
			if e.Address.Is4() == f.Addr.Is4() && !own.has(e.Address) {
				foreign = append(foreign, e.Address)
			}
		}
	}
	if foreign == nil {
		return f
	}
	slices.SortFunc(foreign, netip.Addr.Compare)
	g := *f
	g.Foreign = slices.Compact(foreign)
	return &g
}

// sharesMemory reports whether a frontend of the service uses the same VIP's memory as f.
func (u *compiledService) sharesMemory(f *Frontend) bool {
	return slices.ContainsFunc(u.claims, func(g *Frontend) bool {
		return g.AffinityScope == VIPScope && g.Addr == f.Addr && g.AffinityPrefix == f.AffinityPrefix
	})
}

func (u *compiledService) has(a netip.Addr) bool {
	return slices.ContainsFunc(u.endpoints, func(e *Endpoint) bool { return e.Address == a })
}

func (c *Compiler) neighbours(a netip.Addr) iter.Seq[*compiledService] {
	return func(yield func(*compiledService) bool) {
		for _, name := range c.index.At(a) {
			if u := c.compiled[name]; u != nil && !yield(u) {
				return
			}
		}
	}
}

// markSharers marks each VIPScope frontend on the VIPs where u also claims a VIPScope frontend. The
// foreign endpoints of these frontends may have changed.
func (c *Compiler) markSharers(w *work, u *compiledService) {
	for _, f := range u.claims {
		if f.AffinityScope != VIPScope {
			continue
		}
		for other := range c.neighbours(f.Addr) {
			for _, g := range other.claims {
				if g.AffinityScope == VIPScope && g.Addr == f.Addr {
					w.keys[g.Key] = true
				}
			}
		}
	}
}

// AffinityClient returns a client's key in the memories of f. The key is the client's address, or
// the first address of its network if AffinityPrefix groups clients.
func (f *Frontend) AffinityClient(client netip.Addr) netip.Addr {
	client = client.Unmap().WithZone("")
	isForeign := client.Is6() && f.Addr.Is4() // only a PROXY header names such a client
	if f.AffinityPrefix == 0 || f.AffinityPrefix > client.BitLen() || isForeign {
		return client
	}
	return netip.PrefixFrom(client, f.AffinityPrefix).Masked().Addr()
}

// AffinityEndpoint returns the value that the memories of f store for the backend at an address and
// port. With PortScope, the value is the address and port. With a wider scope, the backend's rank
// among the backends with that address replaces the port, because ports can differ between
// frontends.
func (f *Frontend) AffinityEndpoint(at netip.AddrPort) netip.AddrPort {
	if !f.AffinityScope.beyondPort() {
		return at
	}
	first := netip.AddrPortFrom(at.Addr(), 0)
	return netip.AddrPortFrom(at.Addr(), uint16(f.search(at)-f.search(first)))
}

// AffinityBackend is the inverse of AffinityEndpoint. It returns the backend's index, or -1 if f
// has no backend for the endpoint.
func (f *Frontend) AffinityBackend(endpoint netip.AddrPort) int {
	i := f.search(endpoint)
	if f.AffinityScope.beyondPort() {
		i = f.search(netip.AddrPortFrom(endpoint.Addr(), 0)) + int(endpoint.Port())
	}
	if i >= len(f.Backends) || f.AffinityEndpoint(f.Backends[i].Addr) != endpoint {
		return -1
	}
	return i
}

// search returns the index of the backend at an address and port. If there is no such backend, it
// returns the index where the backend would be inserted, and false.
func (f *Frontend) search(at netip.AddrPort) int {
	i, _ := slices.BinarySearchFunc(f.Backends, at, func(b Backend, at netip.AddrPort) int { return b.Addr.Compare(at) })
	return i
}

// beyondPort reports whether several frontends can share a memory because the scope is wider than a
// single port.
func (s AffinityScope) beyondPort() bool { return s != "" && s != PortScope }

// setAffinity copies the service's affinity settings to f. Fields remain zero if their setting has
// no effect.
func (f *Frontend) setAffinity(s *Service) {
	if s.Affinity != ClientIPAffinity {
		return
	}
	f.AffinityTimeout = s.AffinityTimeout
	switch {
	case s.AffinityScope == VIPScope && f.NodePort: // the address is not a VIP
		f.AffinityScope = ServiceScope
	case s.AffinityScope.beyondPort():
		f.AffinityScope = s.AffinityScope
	}
	if bits := f.Addr.BitLen(); len(s.AffinityPrefix) == 2 && s.AffinityPrefix[bits/128] < bits {
		f.AffinityPrefix = s.AffinityPrefix[bits/128]
	}
}

func (r *tableReader) checkAffinityPrefix(prefix []int) {
	switch {
	case len(prefix) == 0, r.isBroken("affinity_prefix"):
	case len(prefix) != 2:
		r.errorf("affinity_prefix", "needs two prefix lengths, for IPv4 and IPv6, such as [32, 128] for whole addresses")
	case prefix[0] > 32:
		r.errorf(element("affinity_prefix", 0, ""), "%d is out of range; use 1 to 32 for IPv4", prefix[0])
	}
}

// nearestScope returns s if it is supported, or otherwise the widest supported scope below it.
func (c *Capabilities) nearestScope(s AffinityScope) AffinityScope {
	switch {
	case !s.beyondPort(), slices.Contains(c.AffinityScopes, s):
		return s
	case s == VIPScope:
		return c.nearestScope(ServiceScope)
	}
	return ""
}

func (u *compiledService) reportAffinity(c *Capabilities) {
	s := u.service
	if s.Affinity != ClientIPAffinity {
		return
	}
	if s.AffinityScope.beyondPort() && c.nearestScope(s.AffinityScope) != s.AffinityScope {
		instead := map[AffinityScope]string{
			ServiceScope: "a client might get a different endpoint for each service", "": "a client might get a different endpoint for each port",
		}[c.nearestScope(s.AffinityScope)]
		u.problem(SeverityNearest, "affinity_scope", "%s mode can't keep a client on one endpoint across %s; %s", c.Mode, s.AffinityScope.words(), instead)
	}
	if whole := []int{32, 128}; len(s.AffinityPrefix) > 0 && !slices.Equal(s.AffinityPrefix, whole) && !c.AffinityPrefix {
		u.problem(SeverityNearest, "affinity_prefix", "%s mode can't group clients by their networks; it treats each address as a client", c.Mode)
	}
}

func (s AffinityScope) words() string {
	return map[AffinityScope]string{ServiceScope: "all ports", VIPScope: "all services of a VIP"}[s]
}

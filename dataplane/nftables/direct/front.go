package direct

import (
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
	"vipd/dataplane/internal/nft"
)

// front is the table's form of a frontend, or of the fragments to an address.
type front struct {
	label string
	chain chain
	// slots holds the endpoint of each slot. An invalid address means that there is none.
	slots []netip.Addr
	// endpoints are the distinct endpoints in slots.
	endpoints []netip.Addr
	sources   []netip.Prefix
	// drains holds the end of the drain of each draining endpoint.
	drains map[netip.Addr]time.Time
	// of is the frontend. It is nil for fragments.
	of *balancer.Frontend
}

// newFront returns the form of f, or nil if the table must not contain f. was is the current form,
// or nil. A draining endpoint keeps its slots until its drain ends.
func newFront(f *balancer.Frontend, was *front, now time.Time) *front {
	if f == nil || f.Forward != balancer.DRForward || f.Withdrawn {
		return nil
	}
	family := nft.IPv4
	if f.Addr.Is6() {
		family = nft.IPv6
	}
	next := &front{of: f, label: label(f), slots: make([]netip.Addr, slotCount), drains: map[netip.Addr]time.Time{}}
	next.chain = chain{family: family, proto: f.Proto, byPort: byPort(f)}
	backends := slices.DeleteFunc(slices.Clone(f.Backends), func(b balancer.Backend) bool { return b.State != balancer.Active })
	if len(backends) > 0 {
		next.fill(backends)
	}
	if was != nil {
		next.keep(was, now)
	}
	next.chain.closing = len(backends) == 0 && f.Proto != balancer.UDP
	for _, n := range f.Sources {
		if n.Addr().Is4() == f.Addr.Is4() {
			next.sources = append(next.sources, n.Masked())
		}
	}
	next.chain.restricted = len(f.Sources) > 0
	if slices.ContainsFunc(next.sources, func(n netip.Prefix) bool { return n.Bits() == 0 }) {
		next.sources, next.chain.restricted = nil, false
	}
	next.endpoints = endpointsIn(next.slots)
	if len(next.endpoints) == 0 || len(backends) == 0 && f.Proto == balancer.UDP {
		return nil
	}
	return next
}

// byPort reports whether the hash includes the client's port. Fragments of datagrams have no port.
func byPort(f *balancer.Frontend) bool {
	byClient := f.Scheduler == balancer.SourceHash || f.Scheduler == balancer.Maglev
	return f.Proto != balancer.UDP && f.AffinityTimeout == 0 && !byClient
}

// fill distributes the slots to active backends.
func (f *front) fill(backends []balancer.Backend) {
	if f.of.Scheduler == balancer.DestinationHash {
		at := pick.New(f.of.Scheduler, backends, nil).Pick(pick.Flow{VIP: f.of.AddrPort()}, nil)
		backends = backends[at : at+1]
	}
	if f.of.Scheduler == balancer.RoundRobin {
		for i := range backends {
			backends[i].Weight = 1
		}
	}
	for i, at := range pick.Buckets(backends, slotCount) {
		f.slots[i] = backends[at].Addr.Addr()
	}
}

// keep leaves the slots of draining endpoints unchanged.
func (f *front) keep(was *front, now time.Time) {
	for _, b := range f.of.Backends {
		if b.State != balancer.Draining || b.Failing || b.Expired(now) {
			continue
		}
		a := b.Addr.Addr()
		until, known := was.drains[a]
		if !known {
			until = now.Add(f.of.DrainTimeout)
		}
		f.drains[a] = until
	}
	for i, a := range was.slots {
		if until, drains := f.drains[a]; drains && now.Before(until) {
			f.slots[i] = a
		}
	}
}

// ended reports whether a drain has ended while its endpoint has slots.
func (f *front) ended(now time.Time) bool {
	for a, until := range f.drains {
		if !now.Before(until) && slices.Contains(f.endpoints, a) {
			return true
		}
	}
	return false
}

// endpointsIn returns the distinct endpoints in slots.
func endpointsIn(slots []netip.Addr) (all []netip.Addr) {
	for _, a := range slots {
		if a.IsValid() && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// fragmentsOf returns the form of the fragments to an address with these UDP frontends. A fragment
// has no port, so it returns nil unless all frontends are forwarded alike and serve all clients.
func fragmentsOf(fronts map[balancer.Key]*front) *front {
	var all *front
	for _, f := range fronts {
		switch {
		case f == nil || f.chain.restricted:
			return nil
		case all == nil:
			all = &front{chain: f.chain, slots: f.slots, endpoints: f.endpoints}
		case !slices.Equal(all.slots, f.slots):
			return nil
		}
	}
	return all
}

// label names the frontend's service and port, as the tables of NAT do.
func label(f *balancer.Frontend) string {
	if f.Port == "" {
		return string(f.Service)
	}
	return string(f.Service) + "/" + f.Port
}

package direct

import (
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
	"vipd/dataplane/internal/nft"
)

// front describes the elements of a frontend, or the elements for fragments to an address.
type front struct {
	label string
	chain chain
	// slots maps each slot to its endpoint. An invalid address means that the slot has no endpoint.
	slots     []netip.Addr
	endpoints []netip.Addr
	sources   []netip.Prefix
	// drains maps each draining endpoint to the end of its drain.
	drains map[netip.Addr]time.Time
	// frontend is the described frontend. It is nil for fragments.
	frontend *balancer.Frontend
}

// newFront returns the front of f, or nil if the table must not contain f. was is the current
// front, or nil. A draining endpoint (an existing endpoint without new connections) keeps its slots
// until its drain ends.
func newFront(f *balancer.Frontend, was *front, now time.Time) *front {
	if f == nil || f.Forward != balancer.DRForward || f.Withdrawn {
		return nil
	}
	family := nft.IPv4
	if f.Addr.Is6() {
		family = nft.IPv6
	}
	next := &front{frontend: f, label: label(f), slots: make([]netip.Addr, slotCount), drains: map[netip.Addr]time.Time{}}
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

// byPort reports whether the hash of f includes the client's port. It never does for UDP, because
// fragments have no port.
func byPort(f *balancer.Frontend) bool {
	byClient := f.Scheduler == balancer.SourceHash || f.Scheduler == balancer.Maglev
	return f.Proto != balancer.UDP && f.AffinityTimeout == 0 && !byClient
}

// fill distributes the slots to active backends.
func (f *front) fill(backends []balancer.Backend) {
	if f.frontend.Scheduler == balancer.DestinationHash {
		at := pick.New(f.frontend.Scheduler, backends, nil).Pick(pick.Flow{VIP: f.frontend.AddrPort()}, nil)
		backends = backends[at : at+1]
	}
	if f.frontend.Scheduler == balancer.RoundRobin {
		for i := range backends {
			backends[i].Weight = 1
		}
	}
	for i, at := range pick.Buckets(backends, slotCount) {
		f.slots[i] = backends[at].Addr.Addr()
	}
}

// keep lets each draining endpoint keep its slots in was until its drain ends.
func (f *front) keep(was *front, now time.Time) {
	for _, b := range f.frontend.Backends {
		if b.State != balancer.Draining || b.Failing || b.Expired(now) {
			continue
		}
		a := b.Addr.Addr()
		until, known := was.drains[a]
		if !known {
			until = now.Add(f.frontend.DrainTimeout)
		}
		f.drains[a] = until
	}
	for i, a := range was.slots {
		if until, drains := f.drains[a]; drains && now.Before(until) {
			f.slots[i] = a
		}
	}
}

// ended reports whether any endpoint still has slots after the end of its drain.
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

// fragmentsOf returns the front for fragments to an address that has these UDP frontends. Because
// fragments have no port, it returns nil unless all frontends have the same slots and serve all
// clients.
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

// label returns the frontend's service and port, in the same form as in the NAT tables:
// "service/port".
func label(f *balancer.Frontend) string {
	if f.Port == "" {
		return string(f.Service)
	}
	return string(f.Service) + "/" + f.Port
}

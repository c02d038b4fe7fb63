package pick

import (
	"cmp"
	"net/netip"
	"slices"

	"vipd/balancer"
)

// Flow is a new connection, or the first packet of a UDP flow.
type Flow struct {
	// Client is the source of the connection. The hashes use only the address, so all connections
	// of a client have the same backend.
	Client netip.AddrPort
	// VIP is the destination of the connection.
	VIP netip.AddrPort
}

// Picker chooses among the backends of one frontend. It is safe for concurrent use.
type Picker interface {
	// Pick returns the backend for f as an index into the backends of New, or -1 if no backend
	// qualifies. It chooses only Active backends with a weight above 0. It excludes backends for
	// which skip returns true, such as backends that were tried or have reached their limit. A nil
	// skip excludes no backend. Pick may hold a lock while it calls skip, so skip must be quick and
	// must not call Pick. Pick calls it only for as many backends as necessary.
	Pick(f Flow, skip func(i int) bool) int
}

// New returns a picker that uses scheduler s for backends, which may have any order. It does not
// keep the slice. The function load returns the number of connections of backend i. Only lc, wlc,
// sed and nq call it, at any time and from several goroutines. If load is nil, all loads are 0.
// Count a connection as soon as its backend is picked, because a late count sends bursts to one
// backend. An unknown scheduler is treated as wrr, the default of services.
func New(s balancer.Scheduler, backends []balancer.Backend, load func(i int) int64) Picker {
	return Next(nil, s, backends, load)
}

// Next is like New, but the picker continues from the state of old, which may be nil. A service
// that changes often therefore distributes connections as evenly as a service that never changes.
// The state is kept only if old has the same scheduler. rr continues after the last choice, and so
// do the least-connection schedulers if costs are equal. wrr keeps the credit of every address that
// is still among backends, in any state. mh shares its table if addresses and weights are equal.
// Later picks from old do not affect the new picker.
func Next(old Picker, s balancer.Scheduler, backends []balancer.Backend, load func(i int) int64) Picker {
	members := candidatesOf(backends)
	if load == nil {
		load = func(int) int64 { return 0 }
	}
	switch s {
	case balancer.RoundRobin:
		return newRoundRobin(members, old)
	case balancer.Random:
		return newRandom(members)
	case balancer.LeastConn, balancer.WeightedLeastConn, balancer.ShortestDelay, balancer.NeverQueue:
		return newLeast(s, members, load, old)
	case balancer.SourceHash:
		return &sourceHash{newRendezvous(members)}
	case balancer.DestinationHash:
		return &destinationHash{newRendezvous(members)}
	case balancer.Maglev:
		return newMaglev(members, old)
	}
	return newWeighted(members, backends, old)
}

// candidate is a backend that may be picked.
type candidate struct {
	addr   netip.AddrPort
	weight int64
	// index is the backend's index in the slice that New received.
	index int
}

// usable reports whether b gets new connections.
func usable(b balancer.Backend) bool { return b.State == balancer.Active && b.Weight > 0 }

// candidatesOf returns the usable backends, sorted by address. The order of the frontend's backends
// therefore does not matter, and two generations can be compared in one pass.
func candidatesOf(backends []balancer.Backend) []candidate {
	members := make([]candidate, 0, len(backends))
	for i, b := range backends {
		if usable(b) {
			members = append(members, candidate{b.Addr, int64(b.Weight), i})
		}
	}
	byAddress := func(a, b candidate) int {
		return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.index, b.index))
	}
	if !slices.IsSortedFunc(members, byAddress) {
		slices.SortFunc(members, byAddress)
	}
	return members
}

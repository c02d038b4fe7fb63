package pick

import (
	"cmp"
	"net/netip"
	"slices"

	"vipd/balancer"
)

// Flow is what a choice may depend on: one new connection, or the first packet of a UDP flow.
type Flow struct {
	// Client is where it comes from. The hashes take its address only, so that all connections of a client agree.
	Client netip.AddrPort
	// VIP is where it goes to.
	VIP netip.AddrPort
}

// Picker chooses among the backends of one frontend. It is safe for concurrent use.
type Picker interface {
	// Pick returns the index, in the backends that New was given, of the one to use for f, or -1 when none is left.
	// Only Active ones of a weight above 0 are ever chosen, and never one for which skip is true: that is for those
	// tried already and those at their bound. A nil skip excludes none. Pick may hold a lock while it calls skip,
	// which must therefore be quick and not call Pick; it asks only about as many backends as it needs to.
	Pick(f Flow, skip func(i int) bool) int
}

// New returns the picker of scheduler s for backends, in any order. It keeps nothing of the slice. The load of backend
// i is its current connections; lc, wlc, sed and nq call it at any time, from several goroutines, and take nil for 0
// everywhere. Count a connection as soon as its backend was picked: loads that lag behind send bursts to one backend.
// An unknown scheduler is taken for wrr, which is the default of services.
func New(s balancer.Scheduler, backends []balancer.Backend, load func(i int) int64) Picker {
	return Next(nil, s, backends, load)
}

// Next is New for backends that take over from those of old, which may be nil: a service that changes often spreads as
// evenly as one that never does. Where s has the scheduler of old, rr and the ties of the least connection schedulers
// go on after the address that was picked last, wrr keeps the credit of each address that is still among backends, in whatever state, and mh shares its
// table where addresses and weights are the same. What old picks after Next has looked at it is not carried over.
func Next(old Picker, s balancer.Scheduler, backends []balancer.Backend, load func(i int) int64) Picker {
	members := membersOf(backends)
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

// member is a backend that may be picked.
type member struct {
	addr   netip.AddrPort
	weight int64
	// index is the backend's place in the slice that New was given.
	index int
}

// usable reports whether b gets new connections.
func usable(b balancer.Backend) bool { return b.State == balancer.Active && b.Weight > 0 }

// membersOf returns the backends that may be picked, sorted by address: the order of the frontend does not matter, and
// two generations of it can be walked side by side.
func membersOf(backends []balancer.Backend) []member {
	members := make([]member, 0, len(backends))
	for i, b := range backends {
		if usable(b) {
			members = append(members, member{b.Addr, int64(b.Weight), i})
		}
	}
	byAddress := func(a, b member) int {
		return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.index, b.index))
	}
	if !slices.IsSortedFunc(members, byAddress) {
		slices.SortFunc(members, byAddress)
	}
	return members
}

package host

import (
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
)

// address is the record of one address that is needed or that vipd holds. The ledger says on which devices vipd has put it.
type address struct {
	addr netip.Addr
	// wanted and standing are from the last Prepare. applied is the number of frontends on the address after the last Finish.
	wanted   bool
	standing balancer.VIPState
	applied  int
	// held says who holds the address. It is empty until that is decided.
	held Held
	// dirty reports whether the address has to be compared again with what is wanted.
	dirty bool
	// failed reports whether the last attempt to change the address failed. The engine says when to try again.
	failed bool
	// silent reports whether the guard keeps the address silent until a frontend is applied on it.
	silent bool
	// source is the node's address that the VIP's route carries. It is invalid if the VIP has no route.
	source netip.Addr
	// unrouted is the reason why the route is not right yet, or "".
	unrouted string
	// arriving reports whether the kernel is still adding the IPv6 address.
	arriving bool
	// shadowed reports whether the kernel's own route to the address has to be removed.
	shadowed bool
	// unannounced reports whether the neighbors have not been told of the address yet.
	unannounced bool
}

// needed reports whether the address is wanted, or a frontend on it still exists.
func (r *address) needed() bool { return r.wanted || r.applied > 0 }

// lateFor reports whether the address waits for a frontend with an endpoint, and one of these is.
func (r *address) lateFor(applied snap.Map[balancer.Key, *balancer.Frontend]) bool {
	return r.wanted && r.held.Standing == balancer.Serving && balancer.Served(r.addr, applied)
}

// settled reports whether nothing is left to do about the address.
func (r *address) settled() bool {
	return !r.dirty && !r.failed && r.unrouted == "" && !r.arriving && !r.shadowed && !r.unannounced
}

// addresses are the records of all addresses that are needed or that vipd holds.
type addresses struct {
	all map[netip.Addr]*address
	// open are the records about which something may be left to do.
	open map[netip.Addr]*address
	// shown is the part of the records that other goroutines may see.
	shown snap.Map[netip.Addr, shown]
}

// shown is the part of a record that other goroutines may see.
type shown struct {
	held Held
	// ours reports whether vipd has added the address.
	ours bool
}

func newAddresses() addresses {
	return addresses{all: map[netip.Addr]*address{}, open: map[netip.Addr]*address{}}
}

// at returns the record of an address. It makes one if there is none.
func (s *addresses) at(a netip.Addr) *address {
	r := s.all[a]
	if r == nil {
		r = &address{addr: a}
		s.all[a] = r
	}
	return r
}

// forget drops the record of an address that is neither needed nor held.
func (s *addresses) forget(r *address) {
	delete(s.all, r.addr)
	delete(s.open, r.addr)
	s.shown = s.shown.Delete(r.addr)
}

// mark notes that an address has to be compared again with what is wanted.
func (s *addresses) mark(r *address) {
	r.dirty, r.failed = true, false
	s.open[r.addr] = r
}

// markAll notes that all addresses have to be compared again with what is wanted.
func (s *addresses) markAll() {
	for _, r := range s.all {
		s.mark(r)
	}
}

// tryAgain notes that the last attempt to change an address failed.
func (s *addresses) tryAgain(r *address) {
	r.failed = true
	s.open[r.addr] = r
}

// reopen notes that something is left to do about an address.
func (s *addresses) reopen(r *address) { s.open[r.addr] = r }

// show lets other goroutines see who holds an address, from the next publish on.
func (s *addresses) show(r *address, held Held) {
	r.held = held
	now := s.shown.At(r.addr)
	now.held = held
	s.set(r.addr, now)
}

// showOurs lets other goroutines see whether vipd has added an address.
func (s *addresses) showOurs(a netip.Addr, ours bool) {
	now := s.shown.At(a)
	now.ours = ours
	s.set(a, now)
}

func (s *addresses) set(a netip.Addr, now shown) {
	if now == (shown{}) {
		s.shown = s.shown.Delete(a)
	} else {
		s.shown = s.shown.Set(a, now)
	}
}

// leftover returns the open records for which the condition is true, in the order of addresses. It drops the settled ones
// from the open records.
func (s *addresses) leftover(condition func(*address) bool) []*address {
	if len(s.open) == 0 {
		return nil
	}
	var some []*address
	for a, r := range s.open {
		if r.settled() {
			delete(s.open, a)
		} else if condition(r) {
			some = append(some, r)
		}
	}
	s.open = dataplane.Shrink(s.open)
	sortAddresses(some)
	return some
}

func sortAddresses(some []*address) {
	slices.SortFunc(some, func(a, b *address) int { return a.addr.Compare(b.addr) })
}

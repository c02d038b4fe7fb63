package host

import (
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
)

// address is vipd's record of an address that is needed or held. The ledger names the devices to
// which vipd has added the address.
type address struct {
	addr netip.Addr
	// wanted and standing are from the last Prepare. applied is the number of frontends on the
	// address that the last Finish received.
	wanted   bool
	standing balancer.VIPState
	applied  int
	// held is the holder of the address. It is empty until vipd has decided who holds the address.
	held Held
	// dirty reports whether vipd must decide again who holds the address.
	dirty bool
	// failed reports whether the last attempt to add, move or remove the address failed. The engine
	// schedules retries.
	failed bool
	// silent reports whether the guard keeps the address silent, because no frontend on it is
	// applied.
	silent bool
	// source is the node's address that the VIP's route selects as the source. It is invalid if the
	// VIP has no route.
	source netip.Addr
	// unrouted is the reason why the route is missing or wrong, or "".
	unrouted string
	// arriving reports whether the kernel is still adding the IPv6 address.
	arriving bool
	// shadowed reports whether the kernel's own route to the address must be removed.
	shadowed bool
	// unannounced reports whether the address must still be announced to the neighbors.
	unannounced bool
}

// needed reports whether the address is wanted or a frontend still uses it.
func (r *address) needed() bool { return r.wanted || r.applied > 0 }

// lateFor reports whether the address has been waiting for a frontend with an endpoint, and applied
// now contains one.
func (r *address) lateFor(applied snap.Map[balancer.Key, *balancer.Frontend]) bool {
	return r.wanted && r.held.Standing == balancer.Serving && balancer.Served(r.addr, applied)
}

// settled reports whether the address needs no more work.
func (r *address) settled() bool {
	return !r.dirty && !r.failed && r.unrouted == "" && !r.arriving && !r.shadowed && !r.unannounced
}

// addresses holds the records of all addresses that are needed or that vipd holds.
type addresses struct {
	all map[netip.Addr]*address
	// open holds the records of addresses that may need more work.
	open map[netip.Addr]*address
	// shown holds the part of each record that other goroutines may read.
	shown snap.Map[netip.Addr, shown]
}

// shown is the part of a record that other goroutines may read.
type shown struct {
	held Held
	// ours reports whether vipd added the address.
	ours bool
}

func newAddresses() addresses {
	return addresses{all: map[netip.Addr]*address{}, open: map[netip.Addr]*address{}}
}

// at returns a's record, and creates it if missing.
func (s *addresses) at(a netip.Addr) *address {
	r := s.all[a]
	if r == nil {
		r = &address{addr: a}
		s.all[a] = r
	}
	return r
}

func (s *addresses) forget(r *address) {
	delete(s.all, r.addr)
	delete(s.open, r.addr)
	s.shown = s.shown.Delete(r.addr)
}

// mark makes the next round decide again who holds the address.
func (s *addresses) mark(r *address) {
	r.dirty, r.failed = true, false
	s.open[r.addr] = r
}

func (s *addresses) markAll() {
	for _, r := range s.all {
		s.mark(r)
	}
}

// tryAgain makes the next round retry an address that could not be added, moved or removed.
func (s *addresses) tryAgain(r *address) {
	r.failed = true
	s.open[r.addr] = r
}

func (s *addresses) reopen(r *address) { s.open[r.addr] = r }

// show changes the holder of an address. Other goroutines see it after the next publish.
func (s *addresses) show(r *address, held Held) {
	r.held = held
	now := s.shown.At(r.addr)
	now.held = held
	s.set(r.addr, now)
}

// showOurs records for other goroutines whether vipd added an address.
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

// leftover returns the open records that satisfy condition, sorted by address. It also removes
// settled records from open.
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

package userspace

import (
	"net/netip"
	"sync/atomic"
	"time"

	"vipd/balancer"
)

// backend is what is known of one backend of a service's port. All VIPs of the service share it, and it outlives
// changes of them.
type backend struct {
	addr    netip.AddrPort
	service balancer.Name
	// text is the address as dialing takes it.
	text string
	// active counts connections and flows from the choice to the end.
	active atomic.Int64
	// total counts connections and flows that it took, failures connects that failed.
	total, failures atomic.Uint64
	// restUntil is the instant up to which it is no one's first choice; 0 means its last answer was good.
	restUntil atomic.Int64
	// seen is when a frontend last had it; the dataplane's mu guards it.
	seen time.Time
}

// take counts one more, unless that would pass the bound; 0 is none.
func (b *backend) take(bound int) bool {
	if bound <= 0 {
		b.active.Add(1)
		return true
	}
	for {
		n := b.active.Load()
		if n >= int64(bound) {
			return false
		}
		if b.active.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// target is what those call it that are told of its dials.
func (b *backend) target() balancer.Target {
	return balancer.Target{Service: b.service, Addr: b.addr.Addr(), Port: b.addr.Port()}
}

func (b *backend) release() { b.active.Add(-1) }

func (b *backend) full(bound int) bool { return bound > 0 && b.active.Load() >= int64(bound) }

// resting reports whether it failed a moment ago.
func (b *backend) resting(now int64) bool { return now < b.restUntil.Load() }

// awake reports whether it does not rest. After a rest it is so for one caller alone, who tries it.
func (b *backend) awake(now int64, patience time.Duration) bool {
	until := b.restUntil.Load()
	if until == 0 {
		return true
	}
	return now >= until && b.restUntil.CompareAndSwap(until, now+int64(patience+Rest))
}

// failed sends it to rest, and reports whether this is news.
func (b *backend) failed(now int64) bool {
	return b.restUntil.Swap(now+int64(Rest)) == 0
}

// answered notes that it takes connections, and reports whether this is news.
func (b *backend) answered() bool {
	return b.restUntil.Load() != 0 && b.restUntil.Swap(0) != 0
}

package userspace

import (
	"net/netip"
	"sync/atomic"
	"time"

	"vipd/balancer"
)

// backend is the state of a backend of a service's port. All VIPs of the service share it, and it
// survives changes to their definitions.
type backend struct {
	addr    netip.AddrPort
	service balancer.Name
	// to is the address in the form for dialing.
	to dialAddress
	// active is the number of open connections and flows for which the backend was chosen.
	active atomic.Int64
	// total is the number of connections and flows that the backend accepted, and failures the
	// number of failed attempts to connect.
	total, failures atomic.Uint64
	// Until the instant restUntil, the backend is never the first choice. Zero means that the last
	// attempt succeeded.
	restUntil atomic.Int64
	// seen is the time when a frontend last used it; the dataplane's mu guards it.
	seen time.Time
}

// take counts another connection and returns true, unless the count would exceed bound. A bound of
// 0 means no limit.
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

// target identifies the backend in reports of dial results.
func (b *backend) target() balancer.Target {
	return balancer.Target{Service: b.service, Addr: b.addr.Addr(), Port: b.addr.Port()}
}

func (b *backend) release() { b.active.Add(-1) }

func (b *backend) full(bound int) bool { return bound > 0 && b.active.Load() >= int64(bound) }

// inBackoff reports whether the backend is at rest after a recent failure.
func (b *backend) inBackoff(now int64) bool { return now < b.restUntil.Load() }

// mayTry reports whether the caller may try the backend. It may if the last attempt succeeded.
// After a rest, awake returns true for a single caller, and starts another rest for all others.
func (b *backend) mayTry(now int64, patience time.Duration) bool {
	until := b.restUntil.Load()
	if until == 0 {
		return true
	}
	return now >= until && b.restUntil.CompareAndSwap(until, now+int64(patience+Rest))
}

// failed starts a rest of the backend because an attempt has failed. It reports whether the attempt
// before that had succeeded.
func (b *backend) failed(now int64) bool {
	return b.restUntil.Swap(now+int64(Rest)) == 0
}

// answered records that an attempt has succeeded, and reports whether the attempt before it had
// failed.
func (b *backend) answered() bool {
	return b.restUntil.Load() != 0 && b.restUntil.Swap(0) != 0
}

package userspace

import (
	"net/netip"
	"sync/atomic"
	"time"

	"vipd/balancer"
)

// backend is the state of a backend for a service's port. All VIPs of the service share this state,
// which survives changes to their definitions.
type backend struct {
	addr    netip.AddrPort
	service balancer.Name
	// to is the address in the form that dialing needs.
	to dialAddress
	// active is the number of open connections and flows that use the backend.
	active atomic.Int64
	// total is the number of connections and flows that the backend accepted, and failures the
	// number of failed attempts to connect.
	total, failures atomic.Uint64
	// Until the instant restUntil, the backend is never the first choice. If restUntil is zero, the
	// last attempt succeeded.
	restUntil atomic.Int64
	// seen is the time when a frontend last used the backend; guarded by the dataplane's mu.
	seen time.Time
}

// take counts another connection and returns true, unless the count would exceed bound. Zero means
// no limit.
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

// target identifies the backend in reports about dials.
func (b *backend) target() balancer.Target {
	return balancer.Target{Service: b.service, Addr: b.addr.Addr(), Port: b.addr.Port()}
}

func (b *backend) release() { b.active.Add(-1) }

func (b *backend) full(bound int) bool { return bound > 0 && b.active.Load() >= int64(bound) }

func (b *backend) inBackoff(now int64) bool { return now < b.restUntil.Load() }

// mayTry reports whether the caller may try the backend. It returns true if the last attempt
// succeeded. After a rest, it returns true to only one caller, and starts another rest for all
// others.
func (b *backend) mayTry(now int64, patience time.Duration) bool {
	until := b.restUntil.Load()
	if until == 0 {
		return true
	}
	return now >= until && b.restUntil.CompareAndSwap(until, now+int64(patience+Rest))
}

// failed records that an attempt has failed, and starts a rest. It reports whether the attempt
// before that had succeeded.
func (b *backend) failed(now int64) bool {
	return b.restUntil.Swap(now+int64(Rest)) == 0
}

// answered records that an attempt has succeeded. It reports whether the attempt before that had
// failed.
func (b *backend) answered() bool {
	return b.restUntil.Load() != 0 && b.restUntil.Swap(0) != 0
}

package counters

import (
	"net/netip"
	"time"

	"vipd/balancer"
)

// Port identifies a port of a service by both names.
type Port struct {
	Service balancer.Name
	Name    string
}

// BackendKey identifies a backend of a service's port. Without an address, it represents all
// dropped backends of the port.
type BackendKey struct {
	Port
	Addr netip.AddrPort
}

// Whole returns the key that represents the port's dropped backends.
func (b BackendKey) Whole() BackendKey { return BackendKey{Port: b.Port} }

// Count is a number of connections.
type Count struct {
	// All is the total. Kept is the part of All that existing kernel objects hold, so the next
	// process would read it again.
	All, Kept uint64
}

// Plus returns the sum of two counts.
func (c Count) Plus(more Count) Count { return Count{c.All + more.All, c.Kept + more.Kept} }

// The kernel's counters are read at most once in readEvery. Readings take at most 1/readShare of
// the time.
const (
	readEvery = time.Second
	readShare = 20
)

// NextReading returns when the kernel's counters may be read again. The last reading started at
// began and has just ended.
func NextReading(began time.Time) time.Time {
	return time.Now().Add(max(readEvery, readShare*time.Since(began)))
}

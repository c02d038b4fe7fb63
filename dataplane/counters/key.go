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
// forgotten backends.
type BackendKey struct {
	Port
	Addr netip.AddrPort
}

// Whole returns the key of the port's forgotten backends.
func (b BackendKey) Whole() BackendKey { return BackendKey{Port: b.Port} }

// Count is a number of connections.
type Count struct {
	// All is the total. Kept is the part of existing kernel objects, which the next process would
	// read again.
	All, Kept uint64
}

// Plus adds two counts.
func (c Count) Plus(more Count) Count { return Count{c.All + more.All, c.Kept + more.Kept} }

// The kernel's counters are read at most once every readEvery, and reading uses at most one part in
// readShare of the time.
const (
	readEvery = time.Second
	readShare = 20
)

// NextReading returns when the kernel's counters may be read again, after a reading that started at
// began and has just ended.
func NextReading(began time.Time) time.Time {
	return time.Now().Add(max(readEvery, readShare*time.Since(began)))
}

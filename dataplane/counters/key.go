package counters

import (
	"net/netip"
	"time"

	"vipd/balancer"
)

// Port is a port of a service, by the names of both.
type Port struct {
	Service balancer.Name
	Name    string
}

// Backend is one backend of a service's port; without an address, all those that are forgotten.
type Backend struct {
	Port
	Addr netip.AddrPort
}

// Whole is what New asks for: the backends of the port that are forgotten.
func (b Backend) Whole() Backend { return Backend{Port: b.Port} }

// Count is a number of connections.
type Count struct {
	// All is what was counted; of this, Kept is at kernel objects that are there, which the next process would read again.
	All, Kept uint64
}

// Plus adds two counts.
func (c Count) Plus(more Count) Count { return Count{c.All + more.All, c.Kept + more.Kept} }

// The kernel's counters are read at most once every readEvery, and reading takes at most one part in readShare of the time.
const (
	readEvery = time.Second
	readShare = 20
)

// NextReading returns when the kernel's counters may be read again, after a reading that began then and has ended now.
func NextReading(began time.Time) time.Time {
	return time.Now().Add(max(readEvery, readShare*time.Since(began)))
}

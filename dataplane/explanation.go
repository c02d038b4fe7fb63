package dataplane

import (
	"context"
	"net/netip"
	"time"

	"vipd/balancer"
)

// Explains is a dataplane that shows its choice of a backend.
type Explains interface {
	// Explain reports how this dataplane chooses the backend of a new connection of client to f,
	// which is applied. It reads the objects in the kernel.
	Explain(ctx context.Context, f *balancer.Frontend, client netip.Addr) (Explanation, error)
}

// Explanation describes a dataplane's choice of the backend of a new connection from one client to
// one frontend.
type Explanation struct {
	// Sticky is the backend that affinity remembers for the client, for the time Left. It is
	// invalid if there is none.
	Sticky netip.AddrPort `json:"sticky,omitzero"`
	Left   time.Duration  `json:"left_ns,omitzero"`
	// Choice describes how a backend is chosen without affinity.
	Choice string `json:"choice"`
	// Shares are the backends that can be chosen.
	Shares []Share `json:"shares"`
	// Objects has the kernel's objects behind the choice.
	Objects []Object `json:"objects,omitempty"`
}

// Share is a backend's part of new connections.
type Share struct {
	Backend netip.AddrPort `json:"backend"`
	// Part is between 0 and 1. If the choice depends on the client and can be computed, a single
	// backend has 1.
	Part float64 `json:"part"`
}

// Object is an object in the kernel that decides about a connection.
type Object struct {
	// Name is its kind and its name in the kernel's tools: "map frontends of table ip vipd".
	Name string `json:"name"`
	// Says is its entry for the connection.
	Says string `json:"says,omitempty"`
	// Packets is its counter; nil means that it does not count.
	Packets *uint64 `json:"packets,omitempty"`
	// Missing reports whether it lacks an entry for the connection.
	Missing bool `json:"missing,omitempty"`
}

// Counted returns o with a counter of n packets.
func (o Object) Counted(n uint64) Object {
	o.Packets = &n
	return o
}

// Led returns the probability that a new connection is led to backend, by affinity or by its share.
func (e *Explanation) Led(backend netip.AddrPort) float64 {
	if e.Sticky.IsValid() {
		if e.Sticky == backend {
			return 1
		}
		return 0
	}
	for _, s := range e.Shares {
		if s.Backend == backend {
			return s.Part
		}
	}
	return 0
}

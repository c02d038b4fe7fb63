package dataplane

import (
	"context"
	"net/netip"
	"time"

	"vipd/balancer"
)

// Explains is implemented by a dataplane that can show how it chooses a backend.
type Explains interface {
	// Explain reports how this dataplane chooses a backend for a new connection from client to f.
	// The frontend f must already be applied, because Explain reads the kernel's objects. The
	// client's port is 0 if it is unknown.
	Explain(ctx context.Context, f *balancer.Frontend, client netip.AddrPort) (Explanation, error)
}

// Explanation describes how a dataplane chooses a backend for a new connection from one client to
// one frontend.
type Explanation struct {
	// Sticky is the backend to which affinity sends the client. Left is how long this affinity
	// still lasts. Sticky is invalid if affinity has no entry for the client.
	Sticky netip.AddrPort `json:"sticky,omitzero"`
	Left   time.Duration  `json:"left_ns,omitzero"`
	// Choice describes how the dataplane chooses a backend if affinity does not apply.
	Choice string `json:"choice"`
	// Shares lists the backends that can be chosen.
	Shares []Share `json:"shares"`
	// Unchanged reports whether packets are forwarded unchanged and without state, so each backend
	// must be on one of this host's links and have the VIP.
	Unchanged bool `json:"unchanged,omitempty"`
	// Objects lists the kernel objects that determine the choice.
	Objects []Object `json:"objects,omitempty"`
}

// Share is a backend's share of new connections.
type Share struct {
	Backend netip.AddrPort `json:"backend"`
	// Part is between 0 and 1. If the dataplane can compute the backend for this client, that
	// backend's Part is 1.
	Part float64 `json:"part"`
}

// Object is a kernel object that affects the connection.
type Object struct {
	// Name is the object's kind and name in the syntax of the kernel's tools: "map frontends of
	// table ip vipd".
	Name string `json:"name"`
	// Says is the object's entry for the connection.
	Says string `json:"says,omitempty"`
	// Packets is the object's packet counter. It is nil if the object does not count packets.
	Packets *uint64 `json:"packets,omitempty"`
	// Missing reports whether the object should have an entry for the connection but has none.
	Missing bool `json:"missing,omitempty"`
}

// Counted returns a copy of o whose packet counter is n.
func (o Object) Counted(n uint64) Object {
	o.Packets = &n
	return o
}

// Probability returns the probability that the client's next connection is sent to a backend. If
// affinity selects a backend, it is 1 for that backend. Otherwise it is the backend's share.
func (e *Explanation) Probability(backend netip.AddrPort) float64 {
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

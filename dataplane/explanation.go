package dataplane

import (
	"net/netip"
	"time"
)

// Explanation is how a dataplane chooses the backend of a new connection of one client to one frontend.
type Explanation struct {
	// Sticky is the backend that affinity leads the client to, and Left how long it is remembered; not valid: none.
	Sticky netip.AddrPort `json:"sticky,omitzero"`
	Left   time.Duration  `json:"left_ns,omitzero"`
	// Choice says in words how a backend is chosen where affinity knows none.
	Choice string `json:"choice"`
	// Shares are the backends that may be chosen.
	Shares []Share `json:"shares"`
	// Objects are what the choice is made of in the kernel.
	Objects []Object `json:"objects,omitempty"`
}

// Share is the part of new connections that a backend gets.
type Share struct {
	Backend netip.AddrPort `json:"backend"`
	// Part is between 0 and 1. Where the choice depends on the client and can be computed, one backend has 1.
	Part float64 `json:"part"`
}

// Object is something in the kernel that decides about a connection.
type Object struct {
	// Name says what it is and how the kernel's own tools name it: "map frontends of table ip vipd".
	Name string `json:"name"`
	// Says is what it has for the connection.
	Says string `json:"says,omitempty"`
	// Packets is what it has counted; nil means it does not count.
	Packets *uint64 `json:"packets,omitempty"`
	// Missing: it should have something for the connection, and has not.
	Missing bool `json:"missing,omitempty"`
}

// Counted returns o with what it has counted.
func (o Object) Counted(n uint64) Object {
	o.Packets = &n
	return o
}

// Led reports whether a connection may be led to backend: it is the one that affinity knows, or has a share.
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

package dataplane

import (
	"net/netip"

	"vipd/balancer"
)

// FrontendCount holds a dataplane's counts for a port of a service.
type FrontendCount struct {
	Service balancer.Name
	Port    string
	// Connections is the number of accepted connections, including connections that were refused
	// later. In and Out are the numbers of bytes received from and sent to clients.
	Connections, In, Out uint64
	// Failures is the number of failed connection attempts to backends. If the kernel opens the
	// connections, it is the number of new TCP and SCTP connections without an answer.
	Failures uint64
	// KeptIn and KeptOut are the parts of In and Out that remain in the kernel (see
	// BackendCount.Kept).
	KeptIn, KeptOut uint64
	// Tracked reports whether the kept bytes belong to conntrack flows. Every mode that reads
	// conntrack counts such flows.
	Tracked bool
	// BytesOnly reports whether only bytes are valid, because the kernel's counters of connections
	// could not be read yet.
	BytesOnly bool
	Backends  []BackendCount
}

// BackendCount holds a dataplane's counts for a backend of a frontend.
type BackendCount struct {
	Backend netip.AddrPort
	// Active is the number of live connections, without idle UDP flows. Failures has the same
	// meaning as in FrontendCount.
	Connections, Active, Failures uint64
	// Tracked reports whether the live connections are conntrack flows. Every mode that reads
	// conntrack counts such flows.
	Tracked bool
	// Kept is the part of Connections that remains in the kernel if this process exits, so the next
	// process also counts it.
	Kept uint64
}

package dataplane

import (
	"net/netip"

	"vipd/balancer"
)

// FrontendCount holds a dataplane's counts for a frontend.
type FrontendCount struct {
	Service balancer.Name
	Port    string
	// Connections counts accepted connections, including connections that were refused later. In
	// and Out are the bytes from and to clients.
	Connections, In, Out uint64
	// Failures counts failed connects to backends. If the kernel opens the connections, it counts
	// new TCP and SCTP connections without an answer.
	Failures uint64
	// KeptIn and KeptOut are the parts of In and Out that the kernel keeps (see BackendCount.Kept).
	KeptIn, KeptOut uint64
	// Tracked reports whether the kept bytes belong to flows of conntrack. Every mode that reads
	// conntrack counts such flows.
	Tracked bool
	// BytesOnly reports whether the kernel's counters of connections could not be read yet.
	BytesOnly bool
	Backends  []BackendCount
}

// BackendCount holds a dataplane's counts for a backend of a frontend.
type BackendCount struct {
	Backend netip.AddrPort
	// Active is the number of live connections, without idle UDP flows. Failures is counted as in
	// FrontendCount.
	Connections, Active, Failures uint64
	// Tracked reports whether live connections are flows of conntrack. Every mode that reads
	// conntrack counts such flows.
	Tracked bool
	// Kept is the part of Connections that the kernel keeps, so the next process counts it again.
	Kept uint64
}

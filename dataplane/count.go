package dataplane

import (
	"net/netip"

	"vipd/balancer"
)

// FrontendCount is a dataplane's count at a frontend.
type FrontendCount struct {
	Service balancer.Name
	Port    string
	// Connections were accepted, and given to a backend or refused. In and Out are bytes from and
	// to clients.
	Connections, In, Out uint64
	// Failures are failed connects to backends. If the kernel connects, they are new connections of
	// TCP and SCTP without an answer.
	Failures uint64
	// KeptIn and KeptOut are the bytes of In and Out that the kernel keeps (BackendCount.Kept).
	KeptIn, KeptOut uint64
	// Tracked reports whether the kept bytes belong to conntrack's flows, which every mode that
	// reads conntrack counts.
	Tracked bool
	// BytesOnly reports whether the kernel's counters of connections could not be read yet.
	BytesOnly bool
	Backends  []BackendCount
}

// BackendCount is a dataplane's count at a backend of a frontend.
type BackendCount struct {
	Backend netip.AddrPort
	// Active are live connections, without idle UDP flows. Failures are as in FrontendCount.
	Connections, Active, Failures uint64
	// Tracked reports whether live connections are conntrack's flows, which every mode that reads
	// conntrack counts.
	Tracked bool
	// Kept is the part of Connections that the kernel keeps, so the next process counts it again.
	Kept uint64
}

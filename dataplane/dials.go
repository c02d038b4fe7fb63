package dataplane

import (
	"context"
	"net/netip"

	"vipd/balancer"
)

// ReportsDials is a dataplane that connects to backends itself.
type ReportsDials interface {
	// ReportDials makes the dataplane call report with the error of each failed connect, and with
	// nil for the first success after a failure. It is called before the first Apply. Report is
	// called by many goroutines and must not block.
	ReportDials(report func(balancer.Target, error))
	// DialRetries counts the attempts to connect to another backend after a failure.
	DialRetries() uint64
}

// WatchesUnanswered is a dataplane whose connections are opened by the kernel, which shows
// unanswered connections.
type WatchesUnanswered interface {
	// WatchUnanswered calls report for new connections to backends that do not answer, and counts
	// them as failures. It returns nil when ctx ends. With refusals, refused connections are also
	// reported, which costs the kernel more. An error is the reason why the kernel reports nothing;
	// the caller may try again. Report is called by one goroutine at a time and must not block.
	WatchUnanswered(ctx context.Context, refusals bool, report func(FailedConnect)) error
}

// FailedConnect is a new connection that a backend has refused or not answered. It is a hint: the
// backend may answer other connections.
type FailedConnect struct {
	Target balancer.Target
	Client netip.Addr
	// Counted reports whether the connection was unanswered for some seconds and was counted
	// (BackendCount.Failures).
	Counted bool
}

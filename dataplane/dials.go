package dataplane

import (
	"context"
	"net/netip"

	"vipd/balancer"
)

// ReportsDials is implemented by a dataplane that connects to backends itself.
type ReportsDials interface {
	// ReportDials makes the dataplane call report with the error of each failed connection attempt,
	// and with nil for the first success after a failure. It must be called before the first Apply.
	// The dataplane calls report concurrently, and report must not block.
	ReportDials(report func(balancer.Target, error))
	// DialRetries returns the number of times that another backend was tried after a failed
	// attempt.
	DialRetries() uint64
}

// CountsClients is implemented by a dataplane that enforces client limits itself.
type CountsClients interface {
	// FullLimits returns the services for which some connections had no limit within the last
	// minute, because there were too many sources.
	FullLimits() []balancer.Name
}

// WatchesUnanswered is implemented by a dataplane whose connections are opened by the kernel, and
// that can find unanswered connections.
type WatchesUnanswered interface {
	// WatchUnanswered calls report for new connections that backends do not answer, and counts
	// these connections as failures. It returns nil when ctx is done. If refusals is true, it also
	// reports refused connections, which needs more CPU time in the kernel. It returns an error if
	// the kernel can't report connections. The caller may then try again. Calls to report do not
	// overlap, and report must not block.
	WatchUnanswered(ctx context.Context, refusals bool, report func(FailedConnect)) error
}

// FailedConnect is a new connection that a backend has refused or not answered. The backend may
// still answer other connections.
type FailedConnect struct {
	Target balancer.Target
	Client netip.Addr
	// Counted reports whether the connection was unanswered for several seconds and was counted
	// (see BackendCount.Failures).
	Counted bool
}

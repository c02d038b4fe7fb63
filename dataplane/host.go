package dataplane

import (
	"context"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Host maintains the state of the host around a dataplane: addresses, the guard and sysctls. They
// outlive the mode, so they belong to the engine.
type Host interface {
	// Prepare makes the objects that frontends need before they are applied: addresses, and the
	// shared parts of the guard. It receives the whole desired state, even if that is unchanged,
	// and works only for changes.
	Prepare(ctx context.Context, want balancer.Desired) error
	// Finish opens the guard for the applied frontends, and removes objects that they no longer
	// need.
	Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error
	// Intact checks the host's parts cheaply, as Dataplane.Intact does.
	Intact(ctx context.Context) (reason string, err error)
	// Resync forgets which of the guard's rules and sets exist, so the next Prepare and Finish
	// compare them in full. With addresses, the same holds for addresses and routes.
	Resync(addresses bool)
	// Problems returns the desired state that is impossible on this host.
	Problems() []balancer.Problem
	// Mended returns descriptions of foreign changes that Intact has repaired since the last call.
	Mended() []string
	// Alerts calls tell when the kernel reports a change that may have damaged vipd's objects,
	// until ctx ends. vipd's own changes may be reported. Tell must not block.
	Alerts(ctx context.Context, tell func())
	// Ready returns an error if c must wait because the restrictions of its clients are not in
	// force yet. The engine asks between Prepare and Apply, for each change that is not a removal.
	// While Ready returns an error, the engine leaves the key of c unchanged, applies the other
	// changes, and calls Ready again in every round. A restriction that is impossible on this host
	// is also reported by Problems. If enforced, the dataplane restricts clients itself
	// (Capabilities.EnforcesSources), so only its possible restrictions are awaited.
	Ready(c Change, enforced bool) error
}

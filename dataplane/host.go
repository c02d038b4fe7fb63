package dataplane

import (
	"context"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Host maintains the state of the host that a dataplane needs: addresses, the guard and sysctls.
// The engine owns the Host, because this state outlives the mode.
type Host interface {
	// Prepare creates the objects that frontends need before they are applied: addresses, and the
	// shared parts of the guard. It receives the whole desired state in every round, but its cost
	// depends only on changes.
	Prepare(ctx context.Context, want balancer.Desired) error
	// Finish opens the guard for the applied frontends. It removes objects that the frontends no
	// longer need.
	Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error
	// Intact performs a cheap check of the host's objects, like Dataplane.Intact.
	Intact(ctx context.Context) (reason string, err error)
	// Resync makes the next Prepare and Finish compare all rules and sets of the guard with the
	// kernel. If addresses is true, they also compare addresses and routes.
	Resync(addresses bool)
	// Problems returns a problem for each part of the desired state that can't be applied on this
	// host.
	Problems() []balancer.Problem
	// Repaired returns descriptions of the objects that other programs had changed and that Intact
	// has repaired since the last call.
	Repaired() []string
	// Alerts calls tell whenever the kernel reports a change that may have damaged vipd's objects,
	// until ctx is done. The change may be vipd's own. tell must not block.
	Alerts(ctx context.Context, tell func())
	// Ready returns an error if c must wait because the restrictions for its clients are not in
	// force yet. The engine calls it between Prepare and Apply, for each change that is not a
	// removal. While Ready returns an error, the engine leaves the key of c unchanged, applies the
	// other changes, and calls Ready again in every round. Problems also reports restrictions that
	// this host can't enforce. If enforced is true, the dataplane restricts clients itself
	// (Capabilities.EnforcesSources), so Ready does not wait for restrictions that the host can't
	// enforce.
	Ready(c Change, enforced bool) error
}

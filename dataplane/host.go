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
	// Intact performs a cheap check of the host's parts, as Dataplane.Intact does.
	Intact(ctx context.Context) (reason string, err error)
	// Resync makes the next Prepare and Finish compare all rules and sets of the guard with the
	// kernel. If addresses is set, they also compare addresses and routes.
	Resync(addresses bool)
	// Problems returns a problem for each part of the desired state that is impossible on this
	// host.
	Problems() []balancer.Problem
	// Repaired returns descriptions of changes by other programs that Intact has repaired since the
	// last call.
	Repaired() []string
	// Alerts calls tell until ctx ends, whenever the kernel reports a change that may have damaged
	// vipd's objects. It may also report vipd's own changes. tell must not block.
	Alerts(ctx context.Context, tell func())
	// Ready returns an error if c must wait because the restrictions of its clients are not in
	// force yet. The engine calls it between Prepare and Apply, for each change that is not a
	// removal. While Ready returns an error, the engine leaves the key of c unchanged, applies the
	// other changes, and calls Ready again in every round. A restriction that is impossible on this
	// host is also reported by Problems. If enforced is set, the dataplane restricts clients itself
	// (Capabilities.EnforcesSources), so Ready does not wait for restrictions that are impossible
	// on this host.
	Ready(c Change, enforced bool) error
}

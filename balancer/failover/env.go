package failover

import (
	"time"

	"vipd/balancer/failover/local"
)

// Options are the fixed properties of a node.
type Options struct {
	// Name is the node's name, and Member is its record. Member.Boot identifies the node's current
	// run.
	Name   string
	Member Member
	Timing Timing
	// Started is when this run started. An earlier run may have confirmed heartbeats until then.
	Started local.Time
	// Doubt is how long after Started this node distrusts etcd's records if etcd was restored from
	// a backup. A host may then hold a VIP that the records give to another host. Until the time is
	// over, this node sends a probe for each VIP before it claims the VIP. Zero means that it
	// trusts the records.
	Doubt time.Duration
	// NewID returns an unused ID. Wall returns the time of day, for operators.
	NewID func() ID
	Wall  func() time.Time
}

// env holds what a node's parts share: its options, the current time and the actions to return.
type env struct {
	o       Options
	now     local.Time
	actions []local.Action
	// review is set if VIPs that are bound here may belong on other nodes. stale is set if each
	// owner's VIPs must be recounted.
	review, stale bool
}

func (e *env) do(a local.Action) { e.actions = append(e.actions, a) }

// flush returns the actions since the last flush.
func (e *env) flush() []local.Action {
	actions := e.actions
	e.actions = nil
	return actions
}

// recent is how many heartbeat intervals a peer may be silent and still be chosen as a VIP's owner.
const recent = 6

// recently reports whether a heartbeat at the time t is recent enough for its sender to count as
// live.
func (e *env) recently(t local.Time) bool { return t > 0 && e.now.Since(t) < recent*e.o.Timing.Beat }

// doubts reports whether a host may hold a VIP although etcd's records give the VIP to another host
// or to no host.
func (e *env) doubts() bool { return e.now.Since(e.o.Started) < e.o.Doubt }

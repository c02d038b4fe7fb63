package failover

import (
	"time"

	"vipd/balancer/failover/local"
)

// Options are the fixed properties of a node.
type Options struct {
	// Name is the node's name, and Member is its record. Member.Boot identifies this run of the
	// node.
	Name   string
	Member Member
	Timing Timing
	// Started is the start of this run. An earlier run may have confirmed heartbeats until that
	// time.
	Started local.Time
	// Doubt is the time after Started in which hosts may hold VIPs that etcd's records give to
	// others, because etcd was restored from a backup. During this time, hosts are probed before a
	// VIP is claimed. If zero, etcd's records are trusted.
	Doubt time.Duration
	// NewID returns an unused ID, and Wall returns the time of day for operators.
	NewID func() ID
	Wall  func() time.Time
}

// env is shared by the parts of a node: its options, the current time and the actions to return.
type env struct {
	o       Options
	now     local.Time
	actions []local.Action
	// review reports whether VIPs that are bound here may belong elsewhere, and stale reports
	// whether the VIPs of each owner must be counted again.
	review, stale bool
}

func (e *env) do(a local.Action) { e.actions = append(e.actions, a) }

// flush returns the actions since the last flush.
func (e *env) flush() []local.Action {
	actions := e.actions
	e.actions = nil
	return actions
}

// recent is the number of heartbeat intervals without a heartbeat after which a peer counts as
// silent when a node is chosen.
const recent = 6

// recently reports whether a heartbeat at the given time is recent enough for the peer to count as
// live.
func (e *env) recently(t local.Time) bool { return t > 0 && e.now.Since(t) < recent*e.o.Timing.Beat }

// doubts reports whether a host may hold a VIP although etcd's records give the VIP to another host
// or to no host.
func (e *env) doubts() bool { return e.now.Since(e.o.Started) < e.o.Doubt }

package vrrp

import (
	"time"

	"vipd/balancer/failover/local"
)

// env is shared by the routers of a node: the current time, the actions to return, and the gate.
type env struct {
	now     local.Time
	actions []local.Action
	// awake is the time when the process woke up after a pause. Packets that arrived earlier are
	// stale.
	awake local.Time
	// gate is the state of the kernel's gate as far as the node knows. The gate stays open for
	// gateTime after a refresh.
	gate     gateState
	gateTime time.Duration
	// ids is the ID of the last Unbind.
	ids int
	// stopping reports whether the node was stopped, and standby reports whether an operator has
	// put it on standby.
	stopping, standby bool
}

func (e *env) do(a local.Action) { e.actions = append(e.actions, a) }

// flush returns the actions since the last flush.
func (e *env) flush() []local.Action {
	actions := e.actions
	e.actions = nil
	return actions
}

// closeGate closes the gate and unbinds all VIPs.
func (e *env) closeGate() {
	e.gate = closing
	e.do(local.CloseGate{})
}

// gateState is a node's knowledge of the kernel's gate.
type gateState int

const (
	closed  gateState = iota // no VIP is bound
	closing                  // a CloseGate is pending
	opening
	open
)

func (s gateState) String() string { return [...]string{"closed", "closing", "opening", "open"}[s] }

package vrrp

import (
	"time"

	"vipd/balancer/failover/local"
)

// env holds what a node's routers share: the current time, the actions to return, and the gate.
type env struct {
	now     local.Time
	actions []local.Action
	// awake is when the process last woke up after a pause. Packets that arrived earlier are stale.
	awake local.Time
	// gate is the state of the kernel's gate, as this node knows it. The gate stays open for
	// gateTime after a refresh.
	gate     gateState
	gateTime time.Duration
	// ids is the ID of the last Unbind.
	ids int
	// stopping is set after the node was stopped, and standby while an operator keeps it on
	// standby.
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

// gateState is the state of the kernel's gate, as the node knows it.
type gateState int

const (
	closed  gateState = iota // no VIP is bound
	closing                  // a CloseGate is pending
	opening
	open
)

func (s gateState) String() string { return [...]string{"closed", "closing", "opening", "open"}[s] }

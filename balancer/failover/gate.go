package failover

import "vipd/balancer/failover/local"

// gateState is the state of the kernel's gate, as this node knows it.
type gateState int

const (
	closed  gateState = iota // no VIP is bound
	closing                  // a CloseGate is pending
	opening
	open
)

func (s gateState) String() string { return [...]string{"closed", "closing", "opening", "open"}[s] }

// gate holds the state of this node's gate, and the progress of the node's shutdown. A stopped node
// closes the gate permanently and then ends its session.
type gate struct {
	*env
	session *session
	state   gateState
	// stopping is set after Stop was called. leaving is set when the node has released its VIPs and
	// is closing the gate permanently. left is set when its session has ended.
	stopping, leaving, left bool
}

// ready reports whether this node can hold VIPs.
func (g *gate) ready() bool { return g.state == open && !g.stopping }

// passes reports whether addresses may be bound now.
func (g *gate) passes() bool { return g.state == open && g.session.passes() }

// openIfConfirmed opens a closed gate if the session is confirmed. No address may be bound before
// the gate is open, because another node may own the address.
func (g *gate) openIfConfirmed() {
	if g.state == closed && !g.stopping && g.session.passes() {
		g.state = opening
		g.do(local.OpenGate{})
	}
}

// leave ends the session of a stopped node after its gate has closed. Other nodes then need not
// wait for the session to become silent.
func (g *gate) leave() {
	s := g.session
	if !g.leaving || g.left {
		return
	}
	if !s.live {
		g.left = true
		return
	}
	w := s.ifMine()
	w.Delete = append(w.Delete, Key{Sessions, g.o.Name})
	s.live = false
	s.writer.write(w, func(Outcome, int64) { g.left = true })
}

package failover

import "vipd/balancer/failover/local"

// gateState is the state of the kernel's gate, as far as this node knows.
type gateState int

const (
	closed  gateState = iota // no VIP is bound
	closing                  // a CloseGate is pending
	opening
	open
)

func (s gateState) String() string { return [...]string{"closed", "closing", "opening", "open"}[s] }

// gate is the state of this node's gate, and of the node's shutdown. A stopped node closes the gate
// permanently and then ends its session.
type gate struct {
	*env
	session *session
	state   gateState
	// stopping reports whether the node was stopped. leaving reports whether the node has released
	// its VIPs and is closing the gate permanently, and left reports whether its session has ended.
	stopping, leaving, left bool
}

// ready reports whether this node can hold VIPs.
func (g *gate) ready() bool { return g.state == open && !g.stopping }

// passes reports whether the gate permits binding addresses now.
func (g *gate) passes() bool { return g.state == open && g.session.passes() }

// openIfConfirmed opens a closed gate if the session is confirmed. No address may be bound before
// it is open, because another node may own the address.
func (g *gate) openIfConfirmed() {
	if g.state == closed && !g.stopping && g.session.passes() {
		g.state = opening
		g.do(local.OpenGate{})
	}
}

// leave ends the session of a stopped node after its gate has closed. Other nodes then need not
// wait until the session counts as silent.
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

package failover

import "vipd/balancer/failover/local"

// gateState is what this node knows of the kernel's gate.
type gateState int

const (
	closed  gateState = iota // and nothing is bound
	closing                  // an action that closes it is under way
	opening
	open
)

func (s gateState) String() string { return [...]string{"closed", "closing", "opening", "open"}[s] }

// gate is the gate of this node, and its end: a node that was stopped closes it for good, and then
// ends its session.
type gate struct {
	*env
	session *session
	state   gateState
	// stopping reports whether the node was stopped, leaving whether all VIPs are given away and
	// the gate is closed for good, and left whether the session has ended.
	stopping, leaving, left bool
}

// ready reports whether this node can hold VIPs.
func (g *gate) ready() bool { return g.state == open && !g.stopping }

// passes reports whether addresses may be bound behind the gate now.
func (g *gate) passes() bool { return g.state == open && g.session.passes() }

// openIfConfirmed opens a closed gate. This must not be done with an address bound, because another
// node may own it by now.
func (g *gate) openIfConfirmed() {
	if g.state == closed && !g.stopping && g.session.passes() {
		g.state = opening
		g.do(local.OpenGate{})
	}
}

// leave ends the session of a node whose gate is closed for good, so that no node waits for it to
// fall silent.
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

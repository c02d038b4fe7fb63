package failover

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

// flaps is how often a VIP may move in flapTime by itself before it stays where it is.
const (
	flaps    = 3
	flapTime = time.Minute
)

// gift is a unit that is on its way to another node.
type gift struct {
	unit *unit
	// giving is that of the unit until the way has ended, or another one begun.
	giving int
}

// over reports whether the way has ended.
func (g gift) over() bool { return g.unit.giving != g.giving }

// end ends the way, unless another one has begun.
func (g gift) end() {
	if !g.over() {
		g.unit.giving = 0
	}
}

// giveAway moves what should be elsewhere: asked for, on standby, at the end, without its network, or without what the policy
// requires.
func (n *Node) giveAway() {
	if !n.look || n.gate != open || !n.passes() || n.bound == 0 || !n.hindered.begins(n.now) {
		return
	}
	n.look = false
	type way struct{ to, why string }
	gifts, groups := map[way][]gift{}, map[string]way{}
	add := func(u *unit, w way) {
		if len(gifts[w]) < mostTaken {
			gifts[w] = append(gifts[w], gift{unit: u})
			n.counted[w.to]++ // for the next; refresh counts anew
		}
	}
	n.eachMine(func(u *unit) {
		if to, why := n.destination(u); to == "" {
			return
		} else if g := u.policy.Group; g != "" {
			groups[g] = way{to, why}
		} else {
			add(u, way{to, why})
		}
	})
	if len(groups) > 0 {
		n.eachMine(func(u *unit) {
			if w, ok := groups[u.policy.Group]; ok {
				add(u, w)
			}
		})
	}
	for w, all := range gifts {
		n.look = true // there may be more
		n.give(all, w.to, w.why)
	}
}

// eachMine calls f for the units that this node has.
func (n *Node) eachMine(f func(*unit)) {
	n.each(func(u *unit) {
		if u.bound && u.giving == 0 && n.owns(u) {
			f(u)
		}
	})
}

// destination is where a unit of this node should go now, and why; "" means it stays.
func (n *Node) destination(u *unit) (to, why string) {
	if m := n.moves[u.name]; m != nil {
		if to, no := n.whither(u, m.value); no == "" {
			if n.cannot(to, u) != "" {
				return to, forced
			}
			return to, "move"
		} else if !n.taking {
			n.refuse(u, no)
		}
		return "", ""
	}
	leader := n.leader(u)
	switch {
	case n.stopping:
		return n.best(u), "stop"
	case n.o.Member.Standby:
		return n.best(u), "standby"
	case n.cut(u):
		return n.best(u), "network"
	case leader != "" && leader != n.o.Name && n.reachesEtcd(leader) && n.cannot(leader, u) == "":
		return leader, "group" // however often it has moved: apart from its group it may be of no use
	case n.flapping(u):
		return "", ""
	case n.o.Member.Lacks(u.addr, n.byForce(u)) != "":
		return n.best(u), "health"
	case n.byForce(u):
		return "", ""
	}
	return n.preempt(u), "preempt"
}

// forced is why a unit is on a node that could not serve it: a person said so. It stays there until it is moved, or can't be there.
const forced = "force"

func (n *Node) byForce(u *unit) bool { return n.owners[u.name].value.Why == forced }

// whither is where a move leads, or why it does not.
func (n *Node) whither(u *unit, m Move) (to, no string) {
	if m.To == "" {
		if to = n.best(u); to == "" {
			return "", "no other node can take it"
		}
		return to, ""
	}
	if m.To == n.o.Name {
		return "", "it is there"
	}
	if no = n.whyNot(m.To, u, m.Force); no == "" && !n.reachesEtcd(m.To) {
		no = "it does not reach etcd"
	}
	if no != "" {
		return "", m.To + " can't take it: " + no
	}
	return m.To, ""
}

// refuse removes what was asked for.
func (n *Node) refuse(u *unit, why string) {
	k := Key{Moves, u.name}
	n.taking = true
	w := Write{If: []Condition{{k, n.moves.at(u.name)}}, Delete: []Key{k}}
	n.write(w, func(o Outcome, revision int64) {
		n.taking = false
		if o == Done {
			n.wrote(&w, revision)
			n.do(Note{Kind: NoteRefused, Text: fmt.Sprintf("did not move %s: %s", u.name, why)})
		}
	})
}

// flapping says whether a unit has moved so often that it stays for a while.
func (n *Node) flapping(u *unit) bool {
	return len(u.changed) == flaps && n.now.Since(u.changed[0]) < flapTime
}

// cut says whether a unit's network is not well here, though it is elsewhere.
func (n *Node) cut(u *unit) bool {
	at := n.o.Member.place(u.addr)
	return at >= 0 && !isWell(n.well(), at) && n.someWell(u.addr)
}

// preempt is a node that the policy prefers, once it has been well for long enough.
func (n *Node) preempt(u *unit) string {
	if u.policy.Preempt <= 0 || len(u.policy.Prefer) == 0 {
		return ""
	}
	best := n.best(u)
	if best == "" || Preferred(u.policy.Prefer, best) >= Preferred(u.policy.Prefer, n.o.Name) {
		u.better = 0
		return ""
	}
	u.better = cmp.Or(u.better, n.now)
	if n.now.Since(u.better) < u.policy.Preempt {
		return ""
	}
	return best
}

// give makes units silent here, and then writes that a node owns them, or, without one, that nobody does. If it can't be written, they
// come back.
func (n *Node) give(gifts []gift, to, why string) {
	n.last++
	var addrs []netip.Addr
	for i, g := range gifts {
		if g.unit.bound {
			n.bound--
		}
		gifts[i].giving = n.last
		g.unit.giving, g.unit.bound = n.last, false
		addrs = append(addrs, g.unit.addr)
	}
	id := n.my.id
	n.unbinds[n.last] = func() {
		switch {
		case n.my.id != id:
		case to != "":
			n.hand(gifts, to, why)
		case n.units[gifts[0].unit.name] != nil || !n.owns(gifts[0].unit):
			n.keep(gifts)
		default:
			n.drop(gifts[0])
		}
	}
	n.do(Unbind{n.last, addrs})
}

// release gives up a unit that is gone: it is unbound, and then has no owner.
func (n *Node) release(u *unit) {
	switch {
	case !n.owns(u):
		n.unbind(u)
	case u.giving == 0:
		n.give([]gift{{unit: u}}, "", "")
	}
}

// drop writes that a unit has no owner. If it is there again meanwhile, it rests until that is known.
func (n *Node) drop(g gift) {
	w := Write{If: []Condition{{Key{VIPs, g.unit.name}, n.owners.at(g.unit.name)}}, Delete: []Key{{VIPs, g.unit.name}}}
	id := n.my.id
	n.write(w, func(o Outcome, revision int64) {
		switch {
		case n.my.id != id || g.over():
		case o == Done:
			n.wrote(&w, revision)
		case o == Unknown:
			n.reclaim([]gift{g}) // if it is still gone, it is released anew
		case o == Unsent:
			n.reclaimLater(g)
		}
	})
}

// Unbound takes in that addresses are off their devices.
func (n *Node) Unbound(now Time, id int) []Action {
	n.now = now
	then := n.unbinds[id]
	delete(n.unbinds, id)
	if then != nil {
		then()
	}
	n.step()
	return n.flush()
}

// hand writes the new owner.
func (n *Node) hand(gifts []gift, to, why string) {
	s := n.sessions[to]
	w := Write{If: []Condition{{Key{Sessions, to}, n.sessions.at(to)}}}
	var names []string
	for _, g := range gifts {
		if s == nil || !n.owns(g.unit) {
			g.end()
		}
		if g.over() {
			continue
		}
		n.assign(&w, g.unit, Owner{Node: to, Session: s.value.ID, Why: why})
		if m := n.moves[g.unit.name]; m != nil {
			w.If = append(w.If, Condition{Key{Moves, g.unit.name}, m.revision})
			w.Delete = append(w.Delete, Key{Moves, g.unit.name})
		}
		names = append(names, g.unit.name)
	}
	if len(names) == 0 {
		n.adopt()
		return
	}
	id, note := n.my.id, fmt.Sprintf("gave %s to %s (%s%s)", some(names), to, why, n.requested(gifts[0].unit, why))
	n.write(w, func(o Outcome, revision int64) {
		n.hindered.gave(n.now, o)
		n.stale = true
		switch {
		case n.my.id != id:
		case o == Unknown:
			n.reclaim(gifts)
		default:
			if o == Done {
				n.wrote(&w, revision)
				n.do(Note{Kind: NoteGave, Text: note, VIPs: len(names), Why: why})
			}
			n.keep(gifts)
		}
	})
}

// requested says who asked for the giving of a unit and why, if a person did.
func (n *Node) requested(u *unit, why string) string {
	switch why {
	case "standby":
		return n.o.Member.StandbyBy.String()
	case "move", forced:
		for _, each := range n.together(u) {
			if m := n.moves[each.name]; m != nil {
				return m.value.String()
			}
		}
	}
	return ""
}

// assign adds to a write that a unit of this node has an owner.
func (n *Node) assign(w *Write, u *unit, owner Owner) {
	old := n.owners[u.name]
	owner.Generation, owner.Since = old.value.Generation+1, n.o.Wall()
	w.If = append(w.If, Condition{Key{VIPs, u.name}, old.revision})
	w.Put = append(w.Put, Put{Key{VIPs, u.name}, text(owner)})
}

// keep ends the giving. What this node still owns is bound again.
func (n *Node) keep(gifts []gift) {
	for _, g := range gifts {
		g.end()
	}
	n.adopt()
}

// reclaim finds out who owns what was given away when it is unknown whether that was written: this node writes itself, on the
// condition that nothing was. As long as that is unknown too, the VIPs rest, as they may be another's any moment.
func (n *Node) reclaim(gifts []gift) {
	for _, g := range gifts {
		if !n.owns(g.unit) {
			g.end() // etcd has told that it was written
		}
		if g.over() {
			continue
		}
		w := Write{}
		n.assign(&w, g.unit, Owner{Node: n.o.Name, Session: n.my.id, Why: "kept"})
		id := n.my.id
		n.write(w, func(o Outcome, revision int64) {
			switch {
			case n.my.id != id:
			case o == Unknown:
				n.reclaim([]gift{g})
			case o == Unsent:
				n.reclaimLater(g)
			case o == Done:
				n.wrote(&w, revision)
				n.keep([]gift{g})
			default: // it was written, and etcd's watch tells what
			}
		})
	}
}

// depart closes the gate when a node that was stopped has given away what it can.
func (n *Node) depart() {
	if !n.stopping || n.leaving {
		return
	}
	for _, u := range n.order {
		if u.giving != 0 || u.bound && n.gate == open && n.passes() && n.best(u) != "" {
			return
		}
	}
	n.leaving = true
	n.closeGate()
}

// leave ends the session of a node whose gate is closed for good, so that no node waits for it to fall silent.
func (n *Node) leave() {
	if !n.leaving || n.left {
		return
	}
	if !n.my.live {
		n.left = true
		return
	}
	w := n.ifMine()
	w.Delete = append(w.Delete, Key{Sessions, n.o.Name})
	n.my.live = false
	n.write(w, func(Outcome, int64) { n.left = true })
}

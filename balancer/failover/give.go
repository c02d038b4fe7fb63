package failover

import (
	"fmt"
	"net/netip"

	"vipd/balancer/failover/local"
)

// handover is the move of a VIP from this node to another node.
type handover struct {
	vip *vip
	// giving is the ID of the handover. It equals vip.giving until this handover ends or another
	// handover of the VIP starts.
	giving int
}

// over reports whether the handover has ended.
func (g handover) over() bool { return g.vip.giving != g.giving }

// end ends the handover, unless another handover of the VIP has started.
func (g handover) end() {
	if !g.over() {
		g.vip.giving = 0
	}
}

// route is the node to which VIPs move, and the reason for the move.
type route struct{ to, why string }

// giveAway starts to move the VIPs that belong on other nodes.
func (h *holding) giveAway() {
	if !h.review || !h.gate.passes() || h.vips.bound == 0 || h.etcd.etcdLost || h.now < h.until {
		return
	}
	h.review = false
	for r, all := range h.routes() {
		h.review = true // more VIPs may have to move
		h.handOver(all, r)
	}
}

// routes returns the handovers that are due, by route. The VIPs of a group have the same route.
func (h *holding) routes() map[route][]handover {
	routes, groups := map[route][]handover{}, map[string]route{}
	add := func(v *vip, r route) {
		if len(routes[r]) < maxClaimed {
			routes[r] = append(routes[r], handover{vip: v})
			h.ranking.counted[r.to]++ // so the next choice of a node takes this VIP into account
		}
	}
	held := h.held()
	for _, v := range held {
		if r := h.routeOf(v); r.to == "" {
			continue
		} else if g := v.policy.Group; g != "" {
			groups[g] = r
		} else {
			add(v, r)
		}
	}
	if len(groups) > 0 {
		for _, v := range held {
			if r, ok := groups[v.policy.Group]; ok {
				add(v, r)
			}
		}
	}
	return routes
}

// held returns the VIPs that this node owns and has bound, except VIPs that it is already
// releasing.
func (h *holding) held() (all []*vip) {
	for _, v := range h.vips.order {
		if v.bound && v.giving == 0 && h.session.owns(v) {
			all = append(all, v)
		}
	}
	return all
}

// routeOf returns the route of a VIP that this node owns. The route has no destination if the VIP
// stays here. If an operator has requested a move that is not possible, routeOf refuses the
// request.
func (h *holding) routeOf(v *vip) (r route) {
	m := h.etcd.moves[v.name]
	if m == nil {
		r.to, r.why = placement{h.parts}.destination(v)
		return r
	}
	to, why, refusal := placement{h.parts}.move(v, m.value)
	if refusal != "" && !h.writer.claiming {
		h.refuse(v, refusal)
	}
	return route{to, why}
}

// refuse deletes an operator's request to move a VIP, and reports the reason.
func (h *holding) refuse(v *vip, why string) {
	k := Key{Moves, v.name}
	h.writer.claiming = true
	w := Write{If: []Condition{{k, h.etcd.moves.at(v.name)}}, Delete: []Key{k}}
	h.writer.write(w, func(o Outcome, revision int64) {
		h.writer.claiming = false
		if o == Done {
			h.writer.apply(&w, revision)
			h.do(local.Note{Kind: local.NoteRefused, Text: fmt.Sprintf("did not move %s: %s", v.name, why)})
		}
	})
}

// unbindFor unbinds VIPs. When they are unbound, the function then is called, unless the session
// has ended.
func (h *holding) unbindFor(all []handover, then func()) {
	id, session := h.writer.nextID(), h.session.id
	var addrs []netip.Addr
	for i := range all {
		v := all[i].vip
		h.vips.unbind(v)
		v.giving, all[i].giving = id, id
		addrs = append(addrs, v.addr)
	}
	h.unbinds[id] = func() {
		if h.session.id == session {
			then()
		}
	}
	h.do(local.Unbind{ID: id, Addrs: addrs})
}

// unbound calls the function that unbindFor registered for the Unbind with this ID.
func (h *holding) unbound(id int) {
	then := h.unbinds[id]
	delete(h.unbinds, id)
	if then != nil {
		then()
	}
}

// handOver unbinds VIPs, and then writes their new owner to etcd. If the write fails, this node
// binds the VIPs again.
func (h *holding) handOver(all []handover, r route) {
	h.unbindFor(all, func() { h.writeOwner(all, r) })
}

// release unbinds a removed VIP. If this node owns the VIP, it then also deletes the owner's record
// in etcd.
func (h *holding) release(v *vip) {
	switch {
	case !h.session.owns(v):
		h.unbind(v)
	case v.giving == 0:
		all := []handover{{vip: v}}
		h.unbindFor(all, func() {
			if h.vips.byName[v.name] != nil || !h.session.owns(v) {
				h.keep(all)
			} else {
				h.drop(all[0])
			}
		})
	}
}

// drop deletes a VIP's owner in etcd. If users add the VIP again, it stays unbound until the
// outcome of the deletion is known.
func (h *holding) drop(g handover) {
	w := Write{If: []Condition{{Key{VIPs, g.vip.name}, h.etcd.owners.at(g.vip.name)}}, Delete: []Key{{VIPs, g.vip.name}}}
	id := h.session.id
	h.writer.write(w, func(o Outcome, revision int64) {
		switch {
		case h.session.id != id || g.over():
		case o == Done:
			h.writer.apply(&w, revision)
		case o == Unknown:
			h.reclaim([]handover{g}) // a VIP that users have not added again will be released again
		case o == Unsent:
			h.reclaimLater(g)
		}
	})
}

// writeOwner writes the new owner of unbound VIPs to etcd.
func (h *holding) writeOwner(all []handover, r route) {
	s := h.etcd.sessions[r.to]
	w := Write{If: []Condition{{Key{Sessions, r.to}, h.etcd.sessions.at(r.to)}}}
	var names []string
	for _, g := range all {
		if s == nil || !h.session.owns(g.vip) {
			g.end()
		}
		if g.over() {
			continue
		}
		h.assign(&w, g.vip, Owner{Node: r.to, Session: s.value.ID, Why: r.why})
		if m := h.etcd.moves[g.vip.name]; m != nil {
			w.If = append(w.If, Condition{Key{Moves, g.vip.name}, m.revision})
			w.Delete = append(w.Delete, Key{Moves, g.vip.name})
		}
		names = append(names, g.vip.name)
	}
	if len(names) == 0 {
		h.adopt()
		return
	}
	note := fmt.Sprintf("gave %s to %s (%s%s)", listFirst(names), r.to, r.why, placement{h.parts}.requestedBy(all[0].vip, r.why))
	id := h.session.id
	h.writer.write(w, func(o Outcome, revision int64) {
		h.slowDown(o)
		h.stale = true
		switch {
		case h.session.id != id:
		case o == Unknown:
			h.reclaim(all)
		default:
			if o == Done {
				h.writer.apply(&w, revision)
				h.do(local.Note{Kind: local.NoteGave, Text: note, VIPs: len(names), Why: r.why})
			}
			h.keep(all)
		}
	})
}

// assign adds to w a new owner for the VIP v, which this node owns.
func (h *holding) assign(w *Write, v *vip, owner Owner) {
	old := h.etcd.owners[v.name]
	owner.Generation, owner.Since = old.value.Generation+1, h.o.Wall()
	w.If = append(w.If, Condition{Key{VIPs, v.name}, old.revision})
	w.Put = append(w.Put, Put{Key{VIPs, v.name}, encode(owner)})
}

// keep ends handovers. It binds the VIPs again that this node still owns.
func (h *holding) keep(all []handover) {
	for _, g := range all {
		g.end()
	}
	h.adopt()
}

package failover

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// takeFree takes VIPs that no live session owns: the best node at once, the others after it has had the time.
func (n *Node) takeFree() {
	if n.taking || n.stopping || len(n.free) == 0 || n.gate != open || !n.passes() || n.now.Since(n.o.Started) < n.o.Timing.Silence {
		return // a node that has just started has not heard yet who else there is
	}
	before := maps.Clone(n.counted)
	var mine, due turns
	seen, looked := ranks{}, 0
	for _, u := range n.free {
		fresh := (u.fresh || n.doubts()) && !u.clear
		if n.now < u.askAgain || fresh && n.probing {
			continue
		}
		u.stranger = ""
		r := n.rank(u, seen)
		switch {
		case r < 0:
			u.askAgain = n.now.Add(cannotRest)
			continue
		case u.since == 0:
			u.since = n.now
		}
		if r == 0 {
			mine.add(u, fresh)
		} else if n.now >= u.since.Add(time.Duration(r)*rankDelay) {
			due.add(u, fresh)
		}
		if looked++; looked == mostTaken*len(n.members) || mine.full() {
			break // all nodes begin with the same ones, and share them
		}
	}
	n.counted = before // ranking counts
	if mine.empty() {
		mine = due
	}
	units, unknown := mine.units, mine.unknown
	if len(unknown) > 0 && !n.probing {
		n.probing = true
		n.do(Probe{unknown})
	}
	if len(units) > 0 {
		n.take(Write{}, units, "", "free", firstFree(units))
	}
}

// doubts says whether a host may have a VIP that etcd's records give to another one, or to none.
func (n *Node) doubts() bool { return n.now.Since(n.o.Started) < n.o.Doubt }

// firstFree is since when one of the units has been free; 0 means none of them has ever had an owner.
func firstFree(units []*unit) (since Time) {
	for _, u := range units {
		if !u.fresh && (since == 0 || u.since < since) {
			since = u.since
		}
	}
	return since
}

// cannotRest is how long a VIP that this node can't take is left alone before that is looked at again.
const cannotRest = 200 * time.Millisecond

// turns are VIPs that are this node's to take: units can be taken, and of unknown it is to be asked first whether others have them.
type turns struct {
	units   []*unit
	unknown []netip.Addr
}

func (t *turns) add(u *unit, fresh bool) {
	if fresh {
		t.unknown = append(t.unknown, u.addr)
	} else {
		t.units = append(t.units, u)
	}
}

func (t *turns) full() bool  { return len(t.units) == mostTaken || len(t.unknown) == mostTaken }
func (t *turns) empty() bool { return len(t.units)+len(t.unknown) == 0 }

// strangerRest is how long a VIP that a stranger has is left alone before that is asked again.
const strangerRest = 10 * time.Second

// Probed takes in which of the addresses of a Probe others have, by their MACs.
func (n *Node) Probed(now Time, addrs []netip.Addr, found map[netip.Addr]string) []Action {
	n.now, n.probing = now, false
	for _, a := range addrs {
		u := n.units[a.String()]
		if u == nil {
			continue
		}
		if o := n.owners[u.name]; o != nil && n.alive(o.value) {
			continue // its owner answered
		}
		mac := found[a]
		if mac == "" {
			u.clear = true
			continue
		}
		if n.Whose(mac) != "" {
			continue // it has just taken it, and etcd will tell
		}
		u.stranger, u.askAgain = mac, now.Add(strangerRest)
		n.do(Note{Kind: NoteRival, VIPs: 1, Text: fmt.Sprintf("did not take %s: another host has it, %s, not of this fleet", a, mac)})
	}
	n.stale = true
	n.step()
	return n.flush()
}

// Whose returns the node that has a device with the MAC; "" means none.
func (n *Node) Whose(mac string) string {
	for name, at := range n.at {
		if slices.ContainsFunc(at, func(a Address) bool { return a.MAC == mac && mac != "" }) {
			return name
		}
	}
	return ""
}

// take writes that this session owns units, on the condition that their owner has not changed and that it is live. Since is
// when their last owner, from, was last heard of; 0 means there was none.
func (n *Node) take(w Write, units []*unit, from, why string, since Time) {
	n.taking = true
	if len(units) > 0 {
		w.If = append(w.If, n.ifMine().If...)
	}
	var names []string
	for _, u := range units {
		owner := Owner{Node: n.o.Name, Session: n.my.id, Why: why, Generation: 1, Since: n.o.Wall()}
		if old := n.owners[u.name]; old != nil {
			owner.Generation = old.value.Generation + 1
		}
		w.If = append(w.If, Condition{Key{VIPs, u.name}, n.owners.at(u.name)})
		w.Put = append(w.Put, Put{Key{VIPs, u.name}, text(owner)})
		names = append(names, u.name)
	}
	id := n.my.id
	n.write(w, func(o Outcome, revision int64) {
		if n.my.id == id {
			n.taking = false
		}
		if o != Done {
			return // what was carried out all the same is heard of from etcd
		}
		n.wrote(&w, revision)
		if len(names) == 0 {
			return
		}
		whose := " from " + from
		if from == "" {
			whose = ", which had no owner"
		}
		note := Note{Kind: NoteTook, Text: "took " + some(names) + whose, VIPs: len(names), Why: why}
		if since > 0 {
			note.After = n.now.Since(since)
		}
		n.do(note)
	})
}

// some names the first few.
func some(names []string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

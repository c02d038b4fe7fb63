package failover

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// gate is what this node knows of the kernel's gate.
type gate int

const (
	closed  gate = iota // and nothing is bound
	closing             // that is being done
	opening
	open
)

// passes says whether the gate may be opened or refreshed now, or an address bound.
func (n *Node) passes() bool { return n.my.live && n.o.Timing.Passes(n.now, n.my.deadline) }

// openGate opens a closed gate, which must not be done with an address bound: another node may own it by now.
func (n *Node) openGate() {
	if n.gate == closed && !n.stopping && n.passes() {
		n.gate = opening
		n.do(OpenGate{})
	}
}

// Opened takes in that the gate was opened, or could not be. Addresses are bound after a look at the deadline that comes after
// the opening: that may have taken long.
func (n *Node) Opened(now Time, err error) []Action {
	n.now = now
	if n.gate == opening {
		n.gate = open
		if err != nil {
			n.do(Note{Kind: NoteGate, Text: "the gate can't be opened: " + err.Error()})
			n.closeGate()
		}
		n.adopt()
	}
	n.step()
	return n.flush()
}

// Lapse is why the gate is closed, or may have closed by itself.
type Lapse string

// The lapses.
const (
	// NotRefreshed becomes NotConfirmed where that is the reason.
	NotRefreshed Lapse = "not refreshed"
	NotConfirmed Lapse = "not confirmed"
	Changed      Lapse = "changed by another program"
	StillBound   Lapse = "a VIP can't be removed"
)

// Lapsed takes in a lapse, and for how long it lasts by now; 0 means that is not known.
func (n *Node) Lapsed(now Time, why Lapse, lasts time.Duration) []Action {
	n.now = now
	if n.gate == open {
		by := ""
		if why == NotRefreshed && !n.passes() {
			why, lasts, by = NotConfirmed, 0, " ("+n.silent()+" silent)"
			if d := n.my.deadline; d > 0 {
				lasts = n.now.Since(d) + n.o.Timing.Confirm
			}
		}
		text := "gate closed: " + string(why)
		if lasts > 0 {
			text += " for " + seconds(lasts)
		}
		n.do(Note{Kind: NoteGate, Text: text + by + "; " + n.rest(), VIPs: n.bound, Why: string(why)})
		n.closeGate()
	}
	n.step()
	return n.flush()
}

// silent names the jurors that confirm this node's session no more. Etcd is one of them, as it confirms what they do not.
func (n *Node) silent() string {
	var names []string
	for _, j := range n.my.jury {
		if j != n.o.Name && n.now.Since(n.my.confirmed[j]) >= n.o.Timing.Confirm-n.o.Timing.Gate {
			names = append(names, j)
		}
	}
	if len(names) == 0 {
		return "etcd"
	}
	return strings.Join(names, ", ") + " and etcd"
}

// rest says which VIPs the closed gate silences.
func (n *Node) rest() string {
	var names []string
	for _, u := range n.order {
		if u.bound {
			names = append(names, u.name)
		}
	}
	switch len(names) {
	case 0:
		return "no VIP was here"
	case 1:
		return "1 VIP rests: " + names[0]
	}
	return fmt.Sprintf("%d VIPs rest: %s", len(names), some(names))
}

// closeGate closes the gate for all that went before, and unbinds everything. A unit whose giving may have been written rests until
// that is known, also behind the next opening.
func (n *Node) closeGate() {
	n.gate = closing
	n.do(CloseGate{})
	shut := func(u *unit) {
		if _, unwritten := n.unbinds[u.giving]; unwritten || !n.my.live {
			u.giving = 0
		}
		u.bound = false
	}
	n.each(shut)
	for _, u := range n.gone {
		shut(u)
	}
	n.bound = 0
	clear(n.unbinds)
}

// Closed takes in that a CloseGate is carried out.
func (n *Node) Closed(now Time) []Action {
	n.now = now
	if n.gate == closing {
		n.gate = closed
		n.leave()
	}
	n.step()
	return n.flush()
}

// owns says whether etcd names this session as the owner of the unit.
func (n *Node) owns(u *unit) bool {
	o := n.owners[u.name]
	return n.my.live && o != nil && o.value.Session == n.my.id
}

// adopt binds what this session owns, once the gate is open and may pass it, and gives up what is gone.
func (n *Node) adopt() {
	if n.gate != open {
		return // Opened calls it again
	}
	if !n.passes() {
		n.stale = true // so that refresh does
		return
	}
	var addrs []netip.Addr
	n.each(func(u *unit) {
		if n.owns(u) && !u.bound && u.giving == 0 {
			u.bound = true
			addrs = append(addrs, u.addr)
		}
	})
	if len(addrs) > 0 {
		n.bound += len(addrs)
		n.do(Bind{addrs})
	}
	for _, name := range slices.Sorted(maps.Keys(n.gone)) {
		n.release(n.gone[name])
	}
}

// unbind takes a unit off its device.
func (n *Node) unbind(u *unit) {
	if !u.bound {
		return
	}
	u.bound = false
	n.bound--
	n.do(Unbind{Addrs: []netip.Addr{u.addr}})
}

// ownerChanged takes in that etcd has written who owns a unit. Moved: it names another owner, or another session of it.
func (n *Node) ownerChanged(name string, moved bool) {
	u := n.unit(name)
	if u == nil {
		return
	}
	if moved {
		u.changed = append(u.changed, n.now)
		u.changed = u.changed[max(0, len(u.changed)-flaps):]
	}
	u.giving, u.clear, u.stranger, u.askAgain = 0, false, "", 0 // no write that compares an older revision can be carried out any more
	if !n.owns(u) {
		n.unbind(u)
	} else if moved && n.flapping(u) {
		n.do(Note{Kind: NoteFlapping, VIPs: 1, Text: fmt.Sprintf("flapping: %s has moved %d times within a minute, and stays here until that is over", u.name, flaps)})
	}
}

// refresh finds what is free, if anything has changed, and binds what has become this node's.
func (n *Node) refresh() {
	if !n.stale {
		return
	}
	n.stale = false
	n.counted, n.free = map[string]int{}, n.free[:0]
	n.each(func(u *unit) {
		o := n.owners[u.name]
		if o != nil && (o.odd || n.alive(o.value)) {
			n.counted[o.value.Node]++
			u.since = 0
			return
		}
		u.fresh = o == nil
		n.free = append(n.free, u)
	})
	n.adopt()
}

// alive says whether etcd has the session that owns.
func (n *Node) alive(o Owner) bool {
	s := n.sessions[o.Node]
	return s != nil && (s.odd || s.value.ID == o.Session)
}

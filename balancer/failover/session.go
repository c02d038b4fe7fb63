package failover

import (
	"slices"
	"strconv"
	"time"
)

// mine is this node's own session.
type mine struct {
	id ID
	// live: etcd has it, at the revision.
	live     bool
	revision int64
	// jury confirms it; next is what a write that is under way would make of it: until its outcome is known, both must.
	jury, next []string
	// confirmed is when the newest heartbeat was sent that a juror has confirmed, renewed when the newest renewal in etcd was
	// asked for; deadline follows from them.
	confirmed map[string]Time
	renewed   Time
	deadline  Time
	// writing: a write of the session is under way. again is when the next may begin: a heartbeat after the last.
	writing bool
	again   Time
}

// session creates this node's session in etcd, if there is none: once the gate is closed and nothing is bound.
func (n *Node) session() {
	if n.my.live || n.my.writing || n.stopping || n.gate != closed || n.now < n.my.again || !n.registered() {
		return
	}
	if old := n.sessions[n.o.Name]; old != nil && !n.replaces(old) {
		return // it is buried like any other
	}
	w := Write{If: []Condition{{Key{Sessions, n.o.Name}, n.sessions.at(n.o.Name)}}}
	if fence := n.fences[n.o.Name]; fence != nil {
		w.Delete = append(w.Delete, Key{Fences, n.o.Name}) // a host that starts is not off
	}
	n.putSession(w, n.chooseJury())
}

// replaces reports whether this node may replace a session of its name: one of this machine, whose gate is this one; one of an earlier boot of
// it; or one that a person says is off. An earlier boot renews nothing. A machine with the same ID and name, of which this one may be a
// copy, does: its peers have the addresses of this one, and confirm it no more.
func (n *Node) replaces(old *record[Session]) bool {
	before := old.value.Machine
	rests := n.now.Since(old.known) >= max(old.value.Silence, n.o.Timing.Silence)
	return !old.odd && (before == n.o.Member.Machine || rests && rebooted(before, n.o.Member.Machine) || n.fences[n.o.Name] != nil)
}

// putSession writes the session with a jury.
func (n *Node) putSession(w Write, jury []string) {
	value := Session{ID: n.my.id, Machine: n.o.Member.Machine, Jury: jury, Timing: n.o.Timing}
	w.Put = append(w.Put, Put{Key{Sessions, n.o.Name}, text(value)})
	asked, id := n.now, n.my.id
	n.my.writing = true
	if !slices.Equal(jury, n.my.jury) {
		n.my.next = jury
	}
	n.confirm()
	n.write(w, func(o Outcome, revision int64) {
		if n.my.id != id {
			return
		}
		n.my.writing, n.my.again = false, n.now.Add(n.o.Timing.Beat)
		if o != Done || revision < n.my.revision {
			return // if it was carried out all the same, etcd's watch tells
		}
		n.my.renewed = max(n.my.renewed, asked)
		n.wrote(&w, revision)
		n.confirm() // etcd's watch may have told before
	})
}

// mySession takes in what etcd has as this node's session.
func (n *Node) mySession(c Change) {
	if c.Revision <= n.my.revision {
		return
	}
	now := n.sessions[n.o.Name]
	switch {
	case now != nil && now.value.ID == n.my.id:
		// No write that compares an older revision can be carried out any more.
		if !n.my.live {
			n.do(Note{Kind: NoteSession, Text: "began session " + n.my.id.String()})
		}
		n.my.live, n.my.revision, n.my.jury, n.my.next = true, now.revision, now.value.Jury, nil
		n.confirm()
	case n.my.live:
		n.lose("session " + n.my.id.String() + " was buried by others")
	}
}

// lose ends the session, and what it held; another one follows.
func (n *Node) lose(why string) {
	n.do(Note{Kind: NoteLost, Text: why, VIPs: n.bound})
	n.my = mine{id: n.o.NewID(), confirmed: map[string]Time{}, revision: n.revision}
	n.taking = false
	n.closeGate()
}

// confirm finds the deadline.
func (n *Node) confirm() {
	d := n.deadlineBy(n.my.jury)
	if n.my.next != nil {
		d = min(d, n.deadlineBy(n.my.next))
	}
	n.my.deadline = d
}

func (n *Node) deadlineBy(jury []string) Time {
	var sent []Time
	for _, j := range jury {
		if j != n.o.Name {
			sent = append(sent, n.my.confirmed[j])
		}
	}
	return n.o.Timing.Deadline(len(jury), sent, n.my.renewed)
}

// renew has etcd confirm the session when too few peers do.
func (n *Node) renew() {
	if n.my.live && !n.my.writing && n.now >= n.my.again && !n.lasts(n.my.deadline) {
		n.putSession(n.ifMine(), n.my.jury)
	}
}

// lasts says whether a deadline is far enough away to do nothing about it.
func (n *Node) lasts(deadline Time) bool {
	t := n.o.Timing
	return deadline.Since(n.now) > t.Gate+(t.Confirm-t.Gate)/2
}

// ifMine is a write that is only carried out while etcd has the session as this node knows it.
func (n *Node) ifMine() Write {
	return Write{If: []Condition{{Key{Sessions, n.o.Name}, n.my.revision}}}
}

// registered says whether etcd has this run of the node, as far as is known.
func (n *Node) registered() bool {
	m := n.members[n.o.Name]
	return n.loaded && m != nil && m.value.Boot == n.o.Member.Boot
}

// changeJury asks for another jury where nodes have come or gone.
func (n *Node) changeJury() {
	if !n.my.live || n.my.writing || n.now < n.my.again {
		return
	}
	jury := n.chooseJury()
	if slices.Equal(jury, n.my.jury) {
		return
	}
	if !n.lasts(n.deadlineBy(jury)) {
		jury = n.my.jury // etcd confirms first: the next jury has not yet
	}
	n.putSession(n.ifMine(), jury)
}

// chooseJury returns this node and up to four others: those who are in the jury already, then nodes of other zones.
func (n *Node) chooseJury() []string {
	var others []string
	for name, m := range n.members {
		if name != n.o.Name && !m.odd {
			others = append(others, name)
		}
	}
	rank := func(name string) (r int) {
		if !slices.Contains(n.my.jury, name) {
			r = 2
		}
		if zone := n.members[name].value.Zone; zone == n.o.Member.Zone {
			r++
		}
		return r
	}
	slices.SortFunc(others, func(a, b string) int {
		return compare(rank(a)-rank(b), score(n.o.Name, b), score(n.o.Name, a), a, b)
	})
	jury := append([]string{n.o.Name}, others[:min(len(others), MostJurors-1)]...)
	slices.Sort(jury)
	return jury
}

// seconds writes a time for people.
func seconds(d time.Duration) string {
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return strconv.FormatFloat(d.Round(10*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
}

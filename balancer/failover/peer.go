package failover

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// peer is another node, as its heartbeats describe it.
type peer struct {
	boot ID
	// heard is when a heartbeat counted last, and on is when one counted on each address of this node. newest are the sending times of
	// the newest heartbeats there: each is sent to all addresses, and counts once on each.
	heard      Time
	on, newest [told]Time
	// ready, away and well are of its newest heartbeat, sent at.
	ready, away bool
	well        uint16
	sent        Time
	// echo is what heartbeats to the peer return to it.
	echo Stamp
	// alive is since when its session goes on though this node has voted it dead; 0 means it does not.
	alive Time
}

// told is of how many of its addresses a node tells whether they are well: Message.Well has so many bits.
const told = 16

// recent is how many heartbeats may be lost before a peer counts as silent for the choice among hosts.
const recent = 6

// recently says whether a time is so short ago that a peer counts as heard.
func (n *Node) recently(t Time) bool { return t > 0 && n.now.Since(t) < recent*n.o.Timing.Beat }

// lookEvery is the time between two looks whether what is here belongs elsewhere, though nothing has changed but the time.
const lookEvery = time.Second

// beats sends heartbeats, when they are due.
func (n *Node) beats() {
	if n.now < n.beat {
		return
	}
	n.beat = n.now.Add(n.o.Timing.Beat)
	well := n.well()
	if well != n.wasWell || n.now >= n.lookAgain {
		n.look, n.wasWell, n.lookAgain = true, well, n.now.Add(lookEvery)
	}
	m := Message{Kind: Beat, From: n.o.Name, Boot: n.o.Member.Boot, Sent: n.now, Ready: n.gate == open && !n.stopping, Away: n.hindered.away, Well: well}
	if n.my.live {
		m.Session = n.my.id
	}
	for _, name := range slices.Sorted(maps.Keys(n.at)) {
		if m.Echo = (Stamp{}); n.peers[name] != nil {
			m.Echo = n.peers[name].echo
		}
		if name != n.o.Name {
			n.do(Send{name, -1, m})
		}
	}
}

// reachTime is how long what is to be within reach of an address may be silent while peers are heard there.
const reachTime = 2 * time.Second

// Reached takes in that something answered that is to be within reach of one of this node's addresses (an index of Member.At). From
// then on the address is only well while that goes on; then no peer need be heard there.
func (n *Node) Reached(now Time, on int) []Action {
	if on < told {
		n.reached[on] = now
	}
	return nil
}

// Reaching processes that other hosts are to be within reach of one of this node's addresses. Until one of them has answered, it suffices
// that a peer is heard there.
func (n *Node) Reaching(now Time, on int) []Action {
	n.now = now
	if on < told {
		n.reached[on] = 0
	}
	return nil
}

// well returns a bit for each address of this node whose network is well: a peer was heard there, or what is to be within reach
// has answered. If nothing is, anywhere, all are.
func (n *Node) well() (bits uint16) {
	for i := range min(len(n.o.Member.At), len(n.reached)) {
		if n.recently(n.reached[i]) || n.hears(i) && (n.reached[i] == 0 || n.now.Since(n.reached[i]) < reachTime) {
			bits |= 1 << i
		}
	}
	return cmp.Or(bits, 1<<told-1)
}

// hears says whether a peer was heard on an address.
func (n *Node) hears(on int) bool {
	for _, p := range n.peers {
		if n.recently(p.on[on]) {
			return true
		}
	}
	return false
}

// Heard processes a message that arrived at one of this node's addresses (an index of Member.At). Anybody on the network may have
// recorded it earlier: an Answer and a Vote stay true, and an Ask is only a question, but a Beat must be new.
func (n *Node) Heard(now Time, on int, m Message) []Action {
	n.now = now
	if m.From == n.o.Name || n.members[m.From] == nil && n.sessions[m.From] == nil || on < 0 {
		return nil
	}
	switch m.Kind {
	case Beat:
		if p := n.peer(m.From); n.accept(p, on, m) {
			n.heardBeat(p, on, m)
		}
	case Answer:
		if n.my.live && m.Session == n.my.id && m.Sent > n.my.confirmed[m.From] && m.Sent <= now {
			n.my.confirmed[m.From] = m.Sent
			n.confirm()
			n.openGate()
		}
	case Ask:
		n.heardAsk(m)
	case Vote:
		if votes := n.votes[m.Session]; votes != nil {
			votes[m.From] = m.Boot
			n.bury()
		}
	}
	return n.flush()
}

// peer returns another node.
func (n *Node) peer(name string) *peer {
	if n.peers[name] == nil {
		n.peers[name] = &peer{}
	}
	return n.peers[name]
}

// accept reports whether a heartbeat counts, and remembers where it was heard. It must be fresh and newer than the last one at the same
// address. Nothing of a replayed or late one is used.
func (n *Node) accept(p *peer, on int, m Message) bool {
	counts := n.fresh(p, m)
	if counts || n.isRun(m) {
		if p.echo.Boot != m.Boot {
			p.echo = Stamp{m.Boot, 0}
		}
		p.echo.Sent = max(p.echo.Sent, m.Sent)
	}
	if !counts {
		return false
	}
	if p.boot != m.Boot { // its clock may have started again; where it was heard, and how it is, goes on
		p.boot, p.sent, p.alive, p.newest = m.Boot, 0, 0, [told]Time{}
	}
	if on >= told {
		if m.Sent <= p.sent {
			return false
		}
	} else {
		if m.Sent <= p.newest[on] {
			return false
		}
		p.newest[on], p.on[on] = m.Sent, n.now
	}
	n.look = n.look || !n.recently(p.heard)
	p.heard = n.now
	return true
}

// fresh reports whether a heartbeat was sent lately: it returns a heartbeat that this run sent lately. The clocks of two hosts are not
// compared. Nodes without echoes are trusted if etcd has their run.
func (n *Node) fresh(p *peer, m Message) bool {
	if m.Echoless {
		return n.isRun(m) || n.members[m.From] == nil && p.boot == m.Boot
	}
	limit := n.o.Timing.Silence
	if s := n.sessions[m.From]; s != nil {
		limit = max(limit, s.value.Silence)
	}
	return m.Echo.Boot == n.o.Member.Boot && m.Echo.Sent <= n.now && n.now.Since(m.Echo.Sent) < limit
}

// isRun reports whether a message is of the registered run of its sender. Without a way to find out it is, unless the sender is heard
// as another run.
func (n *Node) isRun(m Message) bool {
	if r := n.members[m.From]; r != nil && !n.hindered.away {
		return r.value.Boot == m.Boot
	}
	p := n.peer(m.From)
	return p.boot == m.Boot || !n.recently(p.heard)
}

// heardBeat confirms a peer's session, if this node knows it from etcd, and where the peer hears that.
func (n *Node) heardBeat(p *peer, on int, m Message) {
	if m.Sent < p.sent {
		return // a newer one came first, at another address
	}
	n.look = n.look || p.ready != m.Ready || p.away != m.Away || p.well != m.Well
	p.sent, p.ready, p.away, p.well = m.Sent, m.Ready, m.Away, m.Well
	j := n.juror(m.From, m.Session)
	switch {
	case j == nil || len(n.at[m.From]) == 0:
	case j.Confirm(n.now, m.Session, m.Sent):
		p.alive = 0
		n.do(Send{m.From, on, Message{Kind: Answer, From: n.o.Name, Boot: n.o.Member.Boot, Session: m.Session, Sent: m.Sent}})
	case p.alive == 0:
		p.alive = n.now
	case n.now.Since(p.alive) >= alive && n.nextBoot == 0: // who asks for another run before etcd has one would be neither for a while
		n.nextBoot = n.o.NewID()
		n.do(Register{n.nextBoot})
	}
}

// alive is how long a session that this node has voted dead must go on until it takes the vote back: as a rule the node itself was cut off.
// Until then etcd alone may confirm the session.
const alive = 3 * time.Second

// registeredAgain takes in that etcd has another run of this node: no vote of the one before counts, and sessions are confirmed again
// that it has voted dead. What it has confirmed stays known.
func (n *Node) registeredAgain() {
	m := n.members[n.o.Name]
	if m == nil || n.nextBoot == 0 || m.value.Boot != n.nextBoot {
		return
	}
	n.o.Member.Boot, n.nextBoot = n.nextBoot, 0
	for _, j := range n.jurors {
		if j.Dead {
			j.Dead, j.Answered = false, n.now
		}
	}
}

// juror returns this node as a juror of a peer's session; nil means it must neither confirm it nor vote on it. Etcd has this run of
// the node, and as of that registration or later the session: what an earlier run has voted stays so.
func (n *Node) juror(node string, session ID) *Juror {
	s := n.sessions[node]
	if session == 0 || s == nil || s.value.ID != session || !n.registered() {
		return nil
	}
	j := n.jurors[node]
	if j == nil {
		j = &Juror{}
		n.jurors[node] = j
	}
	j.Meet(session)
	return j
}

// heardAsk votes on a session.
func (n *Node) heardAsk(m Message) {
	j := n.juror(m.Subject, m.Session)
	if j == nil || m.Subject == n.o.Name || !j.Vote(n.now, n.o.Started, n.sessions[m.Subject].value.Timing) {
		return
	}
	n.do(Send{m.From, -1, Message{Kind: Vote, From: n.o.Name, Boot: n.o.Member.Boot, Session: m.Session, Subject: m.Subject}})
}

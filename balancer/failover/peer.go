package failover

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"vipd/balancer/failover/local"
)

// peer is another node, as its heartbeats describe it.
type peer struct {
	boot ID
	// heard is when a heartbeat last counted, and on is when one counted on each address of this
	// node. newest are the sending times of the newest heartbeats there: each is sent to all
	// addresses, and counts once on each.
	heard      local.Time
	on, newest [reported]local.Time
	// ready, away and well are from its newest heartbeat, sent at.
	ready, away bool
	well        uint16
	sent        local.Time
	// echo is returned to the peer in heartbeats.
	echo Stamp
	// alive is since when its session goes on though this node has voted it dead; 0 means it does
	// not.
	alive local.Time
}

// reported is the number of addresses whose network state a node reports: Message.Well has so many
// bits.
const reported = 16

// peers is what this node knows of other nodes from their heartbeats, and of the networks of its
// own addresses.
type peers struct {
	*env
	etcd *view
	all  map[string]*peer
	// reached is when a host that must be within reach of an address answered; 0 means never, or no
	// host must be.
	reached [reported]local.Time
	// next is when the next heartbeats are due. wasWell was reported by the last ones. reviewAt is
	// when to review the VIPs that are bound here though nothing has changed.
	next     local.Time
	wasWell  uint16
	reviewAt local.Time
}

func newPeers(e *env, etcd *view) *peers { return &peers{env: e, etcd: etcd, all: map[string]*peer{}} }

// reviewEvery is the time between two reviews of the VIPs that are bound here, if nothing has
// changed but the time.
const reviewEvery = time.Second

// beat sends heartbeats for a session (0: none) when they are due.
func (p *peers) beat(ready bool, session ID) {
	if p.now < p.next {
		return
	}
	p.next = p.now.Add(p.o.Timing.Beat)
	well := p.well()
	if well != p.wasWell || p.now >= p.reviewAt {
		p.review = true
		p.wasWell = well
		p.reviewAt = p.now.Add(reviewEvery)
	}
	m := Message{Kind: Beat, From: p.o.Name, Boot: p.o.Member.Boot, Session: session, Sent: p.now, Ready: ready, Away: p.etcd.away, Well: well}
	for _, name := range slices.Sorted(maps.Keys(p.etcd.at)) {
		if m.Echo = (Stamp{}); p.all[name] != nil {
			m.Echo = p.all[name].echo
		}
		if name != p.o.Name {
			p.do(Send{name, -1, m})
		}
	}
}

// reachTime is how long a host that must be within reach of an address may be silent while peers
// are heard there.
const reachTime = 2 * time.Second

// reach sets when a host answered that must be within reach of an address.
func (p *peers) reach(on int, at local.Time) {
	if on < reported {
		p.reached[on] = at
	}
}

// well returns a bit for each address of this node whose network is well: a peer was heard there,
// or a host that must be within reach has answered. If none is, all are.
func (p *peers) well() (bits uint16) {
	for i := range min(len(p.o.Member.At), reported) {
		if p.recently(p.reached[i]) || p.hears(i) && (p.reached[i] == 0 || p.now.Since(p.reached[i]) < reachTime) {
			bits |= 1 << i
		}
	}
	return cmp.Or(bits, 1<<reported-1)
}

// hears reports whether a peer was heard on an address.
func (p *peers) hears(on int) bool {
	for _, other := range p.all {
		if p.recently(other.on[on]) {
			return true
		}
	}
	return false
}

// heard reports whether a peer was heard recently.
func (p *peers) heard(name string) bool { return p.all[name] != nil && p.recently(p.all[name].heard) }

// heardOn reports, for each address of this node, whether a peer was heard there recently.
func (p *peers) heardOn(name string) []bool {
	on := make([]bool, len(p.o.Member.At))
	for i := range min(len(on), reported) {
		on[i] = p.all[name] != nil && p.recently(p.all[name].on[i])
	}
	return on
}

// reachesEtcd reports whether a node can be given a VIP: if it does not reach etcd, it would not
// learn of it, and no host would answer until then.
func (p *peers) reachesEtcd(name string) bool { return p.all[name] == nil || !p.all[name].away }

// peer returns another node.
func (p *peers) peer(name string) *peer {
	if p.all[name] == nil {
		p.all[name] = &peer{}
	}
	return p.all[name]
}

// receive returns the sender of a heartbeat that counts and is the newest, or nil. A heartbeat
// counts if it is fresh and newer than the last at the same address. Nothing of a replayed or late
// heartbeat is used.
func (p *peers) receive(on int, m Message) *peer {
	from := p.peer(m.From)
	if !p.accept(from, on, m) || m.Sent < from.sent { // a newer one was faster, at another address
		return nil
	}
	p.review = p.review || from.ready != m.Ready || from.away != m.Away || from.well != m.Well
	from.sent = m.Sent
	from.ready = m.Ready
	from.away = m.Away
	from.well = m.Well
	return from
}

// accept reports whether a heartbeat counts, and remembers where it was heard.
func (p *peers) accept(from *peer, on int, m Message) bool {
	counts := p.fresh(from, m)
	if counts || p.isRun(from, m) {
		if from.echo.Boot != m.Boot {
			from.echo = Stamp{m.Boot, 0}
		}
		from.echo.Sent = max(from.echo.Sent, m.Sent)
	}
	if !counts {
		return false
	}
	if from.boot != m.Boot { // its clock may have started again; where it was heard stays known
		from.boot = m.Boot
		from.sent = 0
		from.alive = 0
		from.newest = [reported]local.Time{}
	}
	if on >= reported {
		if m.Sent <= from.sent {
			return false
		}
	} else {
		if m.Sent <= from.newest[on] {
			return false
		}
		from.newest[on], from.on[on] = m.Sent, p.now
	}
	p.review = p.review || !p.recently(from.heard)
	from.heard = p.now
	return true
}

// fresh reports whether a heartbeat was sent lately: it returns a heartbeat that this run sent
// lately. The clocks of two hosts are not compared. Nodes without echoes are trusted if etcd has
// their run.
func (p *peers) fresh(from *peer, m Message) bool {
	if m.Echoless {
		return p.isRun(from, m) || p.etcd.members[m.From] == nil && from.boot == m.Boot
	}
	limit := p.o.Timing.Silence
	if s := p.etcd.sessions[m.From]; s != nil {
		limit = max(limit, s.value.Silence)
	}
	return m.Echo.Boot == p.o.Member.Boot && m.Echo.Sent <= p.now && p.now.Since(m.Echo.Sent) < limit
}

// isRun reports whether a message is from the registered run of its sender. If that can't be known,
// it is, unless the sender is heard as another run.
func (p *peers) isRun(from *peer, m Message) bool {
	if r := p.etcd.members[m.From]; r != nil && !p.etcd.away {
		return r.value.Boot == m.Boot
	}
	return from.boot == m.Boot || !p.recently(from.heard)
}

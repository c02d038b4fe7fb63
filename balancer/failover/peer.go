package failover

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"vipd/balancer/failover/local"
)

// peer holds what heartbeats show about another node.
type peer struct {
	boot ID
	// lastHeartbeat is when the last valid heartbeat arrived, and on holds the same for each of
	// this node's addresses. For each address, newest holds when the newest heartbeat was sent. A
	// node sends each heartbeat to all addresses, and it counts once per address.
	lastHeartbeat local.Time
	on, newest    [reported]local.Time
	// ready, away and well are from the newest heartbeat. The field sent is when that heartbeat was
	// sent.
	ready, away bool
	well        uint16
	sent        local.Time
	// echo is the stamp to return to the peer in heartbeats.
	echo Stamp
	// alive is when a heartbeat first showed that the peer's session continues although this node
	// voted it dead, or zero if there was none.
	alive local.Time
}

// reported is how many addresses a node reports in Message.Well, which has one bit for each
// address.
const reported = 16

// peers holds what heartbeats show about the other nodes and about the networks of this node's
// addresses.
type peers struct {
	*env
	etcd *view
	all  map[string]*peer
	// reached holds, for each of this node's addresses, when a host that the address must reach
	// last answered. It is zero if no host has answered, or if the address need not reach a host.
	reached [reported]local.Time
	// next is when the next heartbeats are due, and wasWell is Message.Well in the last heartbeats.
	// reviewAt is when to review the VIPs that are bound here even if nothing has changed.
	next     local.Time
	wasWell  uint16
	reviewAt local.Time
}

func newPeers(e *env, etcd *view) *peers { return &peers{env: e, etcd: etcd, all: map[string]*peer{}} }

// reviewEvery is how often to review the VIPs that are bound here even if nothing has changed.
const reviewEvery = time.Second

// beat sends heartbeats if they are due. The parameter session is 0 if this node has no session.
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
	m := Message{Kind: Beat, From: p.o.Name, Boot: p.o.Member.Boot, Session: session, Sent: p.now, Ready: ready, Away: p.etcd.etcdLost, Well: well}
	for _, name := range slices.Sorted(maps.Keys(p.etcd.at)) {
		if m.Echo = (Stamp{}); p.all[name] != nil {
			m.Echo = p.all[name].echo
		}
		if name != p.o.Name {
			p.do(Send{name, -1, m})
		}
	}
}

// reachTime is how long the hosts that an address must reach may be silent before the address
// counts as not working, even if heartbeats still arrive on it.
const reachTime = 2 * time.Second

// reach sets when a host that an address must reach last answered. Zero means that no host has
// answered.
func (p *peers) reach(on int, at local.Time) {
	if on < reported {
		p.reached[on] = at
	}
}

// well returns a bit for each of this node's addresses, which is set if the address's network
// works. A recent answer from a host that the address must reach proves this. A recent heartbeat is
// also proof, unless such hosts have answered before, but not for reachTime. If no network works,
// all bits are set.
func (p *peers) well() (bits uint16) {
	for i := range min(len(p.o.Member.At), reported) {
		if p.recently(p.reached[i]) || p.hasHeartbeatOn(i) && (p.reached[i] == 0 || p.now.Since(p.reached[i]) < reachTime) {
			bits |= 1 << i
		}
	}
	return cmp.Or(bits, 1<<reported-1)
}

// hasHeartbeatOn reports whether a heartbeat from any peer arrived recently on an address.
func (p *peers) hasHeartbeatOn(on int) bool {
	for _, other := range p.all {
		if p.recently(other.on[on]) {
			return true
		}
	}
	return false
}

func (p *peers) hasHeartbeat(name string) bool {
	return p.all[name] != nil && p.recently(p.all[name].lastHeartbeat)
}

// heardOn reports, for each of this node's addresses, whether a heartbeat from a peer arrived
// recently on the address.
func (p *peers) heardOn(name string) []bool {
	on := make([]bool, len(p.o.Member.At))
	for i := range min(len(on), reported) {
		on[i] = p.all[name] != nil && p.recently(p.all[name].on[i])
	}
	return on
}

// reachesEtcd reports whether a node is connected to etcd, according to its heartbeats. A node
// without etcd would not learn that it owns a VIP, so no host would answer for the VIP.
func (p *peers) reachesEtcd(name string) bool { return p.all[name] == nil || !p.all[name].away }

// peer returns the entry for another node, and adds it if missing.
func (p *peers) peer(name string) *peer {
	if p.all[name] == nil {
		p.all[name] = &peer{}
	}
	return p.all[name]
}

// receive stores the content of a heartbeat, and returns its sender. It returns nil if the
// heartbeat is not accepted or not the sender's newest. A heartbeat is accepted if it is fresh and
// newer than the last heartbeat at the same address. The content of a replayed or late heartbeat is
// never used.
func (p *peers) receive(on int, m Message) *peer {
	from := p.peer(m.From)
	if !p.accept(from, on, m) || m.Sent < from.sent { // or a newer heartbeat has arrived at another address
		return nil
	}
	p.review = p.review || from.ready != m.Ready || from.away != m.Away || from.well != m.Well
	from.sent = m.Sent
	from.ready = m.Ready
	from.away = m.Away
	from.well = m.Well
	return from
}

// accept reports whether a heartbeat counts. If so, it records when and at which address the
// heartbeat arrived.
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
	if from.boot != m.Boot { // a new run's clock may have restarted; from.on remains valid
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
	p.review = p.review || !p.recently(from.lastHeartbeat)
	from.lastHeartbeat = p.now
	return true
}

// fresh reports whether a heartbeat was sent recently. It must echo a recent heartbeat of this run,
// so the clocks of two hosts are never compared. A node whose version sends no echoes is trusted if
// its run is registered in etcd.
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

// isRun reports whether a message is from its sender's registered run. If etcd's records do not
// show the registered run, isRun accepts any run, unless another run of the sender sent a heartbeat
// recently.
func (p *peers) isRun(from *peer, m Message) bool {
	if r := p.etcd.members[m.From]; r != nil && !p.etcd.etcdLost {
		return r.value.Boot == m.Boot
	}
	return from.boot == m.Boot || !p.recently(from.lastHeartbeat)
}

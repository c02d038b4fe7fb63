package failover

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Options are what a node is given when it begins.
type Options struct {
	// Name is the node's, Boot names this run of it, and Member is what others read of it. Member.Boot and Weight count.
	Name   string
	Member Member
	Timing Timing
	// Started is when this run began: what an earlier one has confirmed may be as young as that.
	Started Time
	// Doubt is for how long from then on hosts may have VIPs that etcd's records give to others, because etcd was restored from a backup:
	// hosts are asked before a VIP is taken. Default 0.
	Doubt time.Duration
	// NewID returns an unused ID, and Wall the time of day, for people.
	NewID func() ID
	Wall  func() time.Time
}

// Policy is what users say of a VIP with hold = "one".
type Policy struct {
	// Prefer are nodes, best first; the others follow.
	Prefer []string
	// Preempt is how long a better node of Prefer must be well until the VIP goes back to it; 0 means never.
	Preempt time.Duration
	// Group names VIPs that are to be on one node; "" means it is alone.
	Group string
}

// Node is one host. Its methods are called by one goroutine, and return what is to be done.
type Node struct {
	o   Options
	now Time
	out []Action

	members  table[Member]
	sessions table[Session]
	owners   table[Owner]
	moves    table[Move]
	fences   table[Fence]
	// at are the addresses of each node that is registered or has a session: one that is cut off from etcd alone is registered no more.
	at map[string][]Address
	// newest are the revisions of the last changes that were learned, also of records that are gone: the answer to a transaction and
	// etcd's watch tell of the same, and either may come late.
	newest map[Key]int64
	// loaded: all records were read since this run was registered, and revision is how far they go.
	loaded   bool
	revision int64
	// refused is how far they went when a transaction was written that etcd has not carried out, as a rule for this node has not heard of a
	// change: until it has, or patient has come, it writes no other.
	refused int64
	patient Time

	units map[string]*unit
	// gone are units that users have taken away, until it is known that this node owns them no more.
	gone  map[string]*unit
	order []*unit // by name
	// groups have the units of each group, in order.
	groups map[string][]*unit
	// probing: a Probe is under way.
	probing bool
	// free are the units that no live session owns; counted has the addresses that each node owns. stale: both are
	// to be found anew.
	free    []*unit
	counted map[string]int
	stale   bool

	my    mine
	gate  gate
	bound int // addresses

	peers map[string]*peer
	// reached is when something to be within reach of an address answered; 0 means never, or nothing is to be.
	reached [told]Time
	jurors  map[string]*Juror
	// nextBoot is the run as which etcd is to have this node; 0 means the present one.
	nextBoot ID
	votes    map[ID]map[string]ID // boots of those who voted a session dead
	asked    Time
	beat     Time

	writes   map[int]func(Outcome, int64)
	unbinds  map[int]func()
	last     int  // ID of a Write or Unbind
	taking   bool // a transaction that takes VIPs is under way
	leaving  bool // all is given away, and the gate is being closed
	left     bool
	look     bool // what is bound here may belong elsewhere
	stopping bool
	hindered hindrance
	// wasWell is what the last heartbeat said of this node's addresses; lookAgain is when to look though nothing has changed.
	wasWell   uint16
	lookAgain Time
}

// unit is a VIP. Those of a group move together, each with a record of its own.
type unit struct {
	name   string
	addr   netip.Addr
	policy Policy
	bound  bool
	// giving is the ID of the Unbind that began to give it away; 0 means it is not given away.
	giving int
	// fresh: it has had no owner yet, as of the last refresh.
	fresh bool
	// since is when it was first looked at as free; 0 means it was not. better is since when a preferred node could have it.
	since, better Time
	// clear: no host outside of the fleet has it, as far as was found out before anybody here had it. stranger is the MAC of one
	// that has. A unit that could not be taken here is looked at again at askAgain.
	clear    bool
	stranger string
	askAgain Time
	// changed are the last times at which its owner changed.
	changed []Time
}

// New returns a node that knows nothing yet. Its gate must be closed and no VIP bound.
func New(o Options) *Node {
	n := &Node{
		o: o, members: table[Member]{}, sessions: table[Session]{}, owners: table[Owner]{}, moves: table[Move]{}, fences: table[Fence]{}, at: map[string][]Address{}, newest: map[Key]int64{},
		units: map[string]*unit{}, gone: map[string]*unit{}, peers: map[string]*peer{}, jurors: map[string]*Juror{},
		votes: map[ID]map[string]ID{}, writes: map[int]func(Outcome, int64){}, unbinds: map[int]func(){}, stale: true,
	}
	n.my = mine{id: o.NewID(), confirmed: map[string]Time{}}
	return n
}

// flush returns what is to be done.
func (n *Node) flush() []Action {
	out := n.out
	n.out = nil
	return out
}

func (n *Node) do(a Action) { n.out = append(n.out, a) }

// write begins a transaction; then gets its outcome and revision.
func (n *Node) write(w Write, then func(Outcome, int64)) {
	n.last++
	w.ID = n.last
	known := n.revision
	n.writes[w.ID] = func(o Outcome, revision int64) {
		if o == Refused || o == Unsent {
			n.refused, n.patient = known, n.now.Add(n.o.Timing.Beat)
		}
		then(o, revision)
	}
	n.do(w)
}

// behind says whether etcd would refuse what it has refused.
func (n *Node) behind() bool { return n.revision == n.refused && n.now < n.patient }

// Deadline returns until when the session is confirmed; 0 means it is not, or the gate is closed. The gate is refreshed while Timing.Passes says so.
func (n *Node) Deadline() Time {
	if !n.my.live || n.gate != opening && n.gate != open {
		return 0
	}
	return n.my.deadline
}

// Tick is called several times a heartbeat.
func (n *Node) Tick(now Time) []Action {
	n.now = now
	n.step()
	return n.flush()
}

// step does all that is due.
func (n *Node) step() {
	n.beats()
	if !n.loaded {
		return
	}
	n.session()
	n.openGate()
	n.renew()
	n.changeJury()
	n.refresh()
	n.reclaimDue()
	if n.behind() {
		return
	}
	n.giveAway()
	n.depart()
	n.bury()
	n.takeFree()
}

// Stored takes changes of etcd in, in the order of their revisions. All: they are everything there is at the revision, read
// after nodes/NODE of this run was written.
func (n *Node) Stored(now Time, changes []Change, revision int64, all bool) []Action {
	n.now = now
	if all {
		n.loaded, n.hindered.away = true, false
		changes = append(changes, n.removed(changes, revision)...)
	}
	n.revision = max(n.revision, revision)
	for _, c := range changes {
		n.learn(c)
	}
	n.step()
	return n.flush()
}

// removed are the records that this node knows and that are not among all.
func (n *Node) removed(all []Change, revision int64) (gone []Change) {
	there := map[Key]bool{}
	for _, c := range all {
		there[c.Key] = true
	}
	for _, known := range []struct {
		kind  Kind
		names iter.Seq[string]
	}{
		{Nodes, maps.Keys(n.members)}, {Sessions, maps.Keys(n.sessions)}, {VIPs, maps.Keys(n.owners)}, {Moves, maps.Keys(n.moves)}, {Fences, maps.Keys(n.fences)},
	} {
		for name := range known.names {
			if k := (Key{known.kind, name}); !there[k] {
				gone = append(gone, Change{Key: k, Revision: revision})
			}
		}
	}
	return gone
}

// learn takes one change in.
func (n *Node) learn(c Change) {
	if c.Revision <= n.newest[c.Key] {
		return
	}
	n.newest[c.Key] = c.Revision
	n.stale, n.look = true, true
	switch c.Kind {
	case Nodes:
		n.members.take(n.now, c)
		n.locate(c.Name)
		for _, votes := range n.votes { // it is asked again: a write that was long on its way can bring back a run whose votes count no more
			delete(votes, c.Name)
		}
		if c.Name == n.o.Name {
			n.registeredAgain()
		}
	case Sessions:
		if old := n.sessions[c.Name]; old != nil {
			delete(n.votes, old.value.ID) // it is gone, or it is not silent
		}
		n.sessions.take(n.now, c)
		n.locate(c.Name)
		if c.Name == n.o.Name {
			n.mySession(c)
		}
	case VIPs:
		before := n.owners[c.Name]
		n.owners.take(n.now, c)
		if after := n.owners[c.Name]; after != before {
			n.ownerChanged(c.Name, before == nil || after == nil || before.value.Session != after.value.Session)
		}
	case Moves:
		n.moves.take(n.now, c)
	case Fences:
		n.fences.take(n.now, c)
		if c.Name == n.o.Name && c.Text != nil && n.my.live { // a person says that this node is off
			n.lose("this node is fenced: " + n.fences[n.o.Name].value.Reason)
		}
	}
}

// locate follows where a node hears heartbeats.
func (n *Node) locate(name string) {
	if m := n.members[name]; m != nil {
		n.at[name] = m.value.At
	} else if n.sessions[name] == nil {
		delete(n.at, name)
	}
}

// Wrote takes the outcome of a Write in. The revision counts where it is done.
func (n *Node) Wrote(now Time, id int, outcome Outcome, revision int64) []Action {
	n.now = now
	then := n.writes[id]
	delete(n.writes, id)
	if then != nil {
		then(outcome, revision)
	}
	n.step()
	return n.flush()
}

// wrote applies what a Write has changed to this node's view, without waiting for the watch.
func (n *Node) wrote(w *Write, revision int64) {
	for _, k := range w.Delete {
		n.learn(Change{Key: k, Revision: revision})
	}
	for _, p := range w.Put {
		n.learn(Change{Key: p.Key, Revision: revision, Text: p.Text})
	}
}

// SetPolicies says which VIPs have hold = "one", and what of them.
func (n *Node) SetPolicies(now Time, policies map[netip.Addr]Policy) []Action {
	n.now = now
	next := map[string]*unit{}
	for _, a := range slices.SortedFunc(maps.Keys(policies), netip.Addr.Compare) {
		p := policies[a]
		u := n.unit(a.String())
		if u == nil {
			u = &unit{name: a.String(), addr: a}
		}
		u.policy = p
		next[u.name] = u
	}
	for name, old := range n.units {
		if next[name] == nil {
			n.gone[name] = old
			n.release(old) // at once: the gate covers it no more
		}
	}
	maps.DeleteFunc(n.gone, func(name string, u *unit) bool { return next[name] != nil || u.giving == 0 && !u.bound && !n.owns(u) })
	n.units, n.stale, n.groups = next, true, map[string][]*unit{}
	n.order = slices.SortedFunc(maps.Values(next), func(a, b *unit) int { return cmp.Compare(a.name, b.name) })
	n.each(func(u *unit) {
		if g := u.policy.Group; g != "" {
			n.groups[g] = append(n.groups[g], u)
		}
	})
	n.adopt()
	n.step()
	return n.flush()
}

// SetMember says what others read of this node from now on; the caller has written it to etcd, or is about to.
func (n *Node) SetMember(now Time, m Member) []Action {
	n.now = now
	m.Boot = n.o.Member.Boot // until etcd has another
	n.o.Member, n.look = m, true
	n.step()
	return n.flush()
}

// Stop gives away all VIPs that another node can take, and then ends the session; Left says when that is done.
func (n *Node) Stop(now Time) []Action {
	n.now = now
	n.stopping, n.look = true, true
	n.step()
	return n.flush()
}

// unit is one that there is, or that is gone.
func (n *Node) unit(name string) *unit { return cmp.Or(n.units[name], n.gone[name]) }

// each calls f for the units in order of their names.
func (n *Node) each(f func(*unit)) {
	for _, u := range n.order {
		f(u)
	}
}

// Addresses are where a node hears heartbeats.
func (n *Node) Addresses(name string) []Address { return n.at[name] }

// Left says whether a node that was stopped has no session any more.
func (n *Node) Left() bool { return n.left }

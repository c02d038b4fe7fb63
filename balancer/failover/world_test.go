package failover

import (
	"container/heap"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vipd/balancer/failover/local"
)

// world simulates a fleet in virtual time. It consists of hosts with their own kernels and clocks,
// a network that loses and delays messages, and etcd.
type world struct {
	*rand.Rand
	t      *testing.T
	now    local.Time
	queue  events
	serial int
	hosts  []*host
	etcd   etcd
	policy map[netip.Addr]Policy
	cut    map[[2]int]bool     // pairs of disconnected hosts, by index; -1 is etcd
	calm   bool                // no random faults happen
	wide   bool                // widen was called
	absent map[netip.Addr]bool // VIPs that users have removed
	// If shut is set, the kernels' gates have no effect: a host answers even if its gate is closed.
	shut bool
	spy  *spy // nil means no attacker
	dual string
	log  []string
	// fates lists the fates of the next transactions that change owners.
	fates []fate
	// taken holds, for each takeover, how long before it the previous owner gave its last sign of
	// life.
	taken  []time.Duration
	bound  int        // how many times any host has bound a VIP
	healed local.Time // time at which the last fault ends
}

type event struct {
	at     local.Time
	serial int
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].serial < e[j].serial
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (w *world) after(d time.Duration, do func()) {
	w.serial++
	heap.Push(&w.queue, event{w.now.Add(d), w.serial, do})
}

func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for len(w.queue) > 0 && w.queue[0].at <= end && w.dual == "" {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do()
	}
	w.now = end
}

func (w *world) notef(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%9.4f ", time.Duration(w.now).Seconds())+fmt.Sprintf(format, args...))
}

// etcd simulates etcd: it stores records, and a history of all changes for watchers.
type etcd struct {
	revision int64
	records  map[Key]RecordChange
	history  []RecordChange
	down     bool
	full     bool
}

func (e *etcd) put(k Key, value []byte) {
	c := RecordChange{Key: k, Revision: e.revision, Text: value}
	if value == nil {
		delete(e.records, k)
	} else {
		e.records[k] = c
	}
	e.history = append(e.history, c)
}

func (w *world) commit(a Write) (Outcome, int64) {
	o, revision := w.etcd.commit(a)
	if o == Done {
		w.deliverChanges()
	}
	return o, revision
}

// deliverChanges makes all hosts that follow etcd read the new changes.
func (w *world) deliverChanges() {
	for _, h := range w.hosts {
		if h.watched > 0 {
			h.follow()
		}
	}
}

func (e *etcd) commit(w Write) (Outcome, int64) {
	for _, c := range w.If {
		if e.records[c.Key].Revision != c.Revision {
			return Refused, 0
		}
	}
	e.revision++
	for _, k := range w.Delete {
		e.put(k, nil)
	}
	for _, p := range w.Put {
		e.put(p.Key, p.Text)
	}
	return Done, e.revision
}

// host simulates a host: a kernel with its gate and addresses, and a process. The process may stop
// between any two actions.
type host struct {
	w         *world
	index     int
	name      string
	rate      float64 // rate of the host's clock; 1 is exact
	shift     local.Time
	bound     map[netip.Addr]bool
	gate      local.Time // time at which the gate closes
	token     int
	member    Member
	stopped   local.Time // time until which the process is paused
	epoch     int        // changes when the process exits
	boots     int        // number of times the kernel has booted
	echoless  bool       // the host runs an earlier version of vipd, which does not set Message.Echo
	node      *Node
	inputs    []func(local.Time) []local.Action
	working   bool
	deadline  local.Time
	opened    bool
	refreshed local.Time
	away      bool                  // the host has noticed that etcd is unreachable
	watched   int                   // index of the next entry to read in etcd's history
	following bool                  // the host is about to read changes from etcd
	leased    local.Time            // when the lease of the record nodes/NODE expires
	lost      [2]bool               // per network: the host is disconnected from it
	covered   map[netip.Addr]Policy // the VIPs that the gate covers
}

func (h *host) clock() local.Time { return h.shift + local.Time(float64(h.w.now)*h.rate) }

// later makes the host's process call do after the duration d. A process that has been killed by
// then does not call it. A process that is paused then calls it after the pause.
func (h *host) later(d time.Duration, do func()) {
	epoch := h.epoch
	var try func()
	try = func() {
		switch {
		case h.epoch != epoch:
		case h.w.now < h.stopped:
			h.w.after(h.stopped.Since(h.w.now), try)
		default:
			do()
		}
	}
	h.w.after(d, try)
}

// hitch returns how long a small action of the process takes. A few actions take much longer than
// usual, as on a busy machine.
func (h *host) hitch() time.Duration {
	if !h.w.calm && h.w.IntN(3000) == 0 {
		return time.Duration(h.w.IntN(1500)) * time.Millisecond
	}
	return time.Duration(h.w.IntN(300)) * time.Microsecond
}

// start starts a process, which closes the gate, removes the VIPs from the kernel, registers and
// reads all records.
func (h *host) start() {
	h.epoch++
	h.inputs, h.working, h.deadline, h.opened, h.following, h.watched, h.away = nil, false, 0, false, false, 0, false
	h.later(h.hitch(), func() {
		h.reset()
		clear(h.bound)
		h.member.Boot = ID(h.w.Uint64() | 1)
		h.node = New(Options{Name: h.name, Member: h.member, Timing: NewTiming(800 * time.Millisecond), Started: h.clock(),
			NewID: func() ID { return ID(h.w.Uint64() | 1) }, Wall: func() time.Time { return time.Unix(h.w.Int64N(1<<33), 0) }}) // the wall clock returns random times
		h.updateVIPs()
		h.register()
		h.tick()
		h.refresher()
	})
}

func (h *host) updateVIPs() {
	policies := maps.Clone(h.w.policy)
	maps.DeleteFunc(policies, func(v netip.Addr, _ Policy) bool { return h.w.absent[v] })
	h.input(func(now local.Time) []local.Action {
		h.covered = maps.Clone(h.covered)
		maps.Copy(h.covered, policies)
		return h.node.SetPolicies(now, policies)
	})
	h.input(func(local.Time) []local.Action { h.covered = policies; return nil })
}

func (h *host) change(f func(*Member)) {
	if f(&h.member); h.node == nil {
		return
	}
	m := h.member
	h.input(func(now local.Time) []local.Action { return h.node.SetMember(now, m) })
	h.publish()
}

// publish rewrites the host's record nodes/NODE, unless the record's lease has expired.
func (h *host) publish() {
	h.later(time.Duration(1+h.w.IntN(5))*time.Millisecond, func() {
		if k := (Key{Nodes, h.name}); !h.reaches(-1) {
			h.later(100*time.Millisecond, h.publish)
		} else if h.w.etcd.records[k].Text != nil {
			h.w.commit(Write{Put: []Put{{k, encode(h.member)}}})
		}
	})
}

// stop makes the process release all VIPs and exit. A new process starts after the delay again.
func (h *host) stop(again time.Duration) {
	end := h.w.now.Add(2 * time.Second)
	h.input(h.node.Stop)
	var look func()
	look = func() {
		if !h.node.Left() && h.w.now < end {
			h.later(10*time.Millisecond, look)
			return
		}
		h.end()
		h.w.after(again, h.start)
	}
	h.later(0, look)
}

func (h *host) powerOff() {
	h.end()
	h.boots++
	h.member.Machine = fmt.Sprintf("%s/%d/1", h.name, h.boots)
}

// end kills the process, and removes its gate and addresses from the kernel.
func (h *host) end() {
	h.reset()
	clear(h.bound)
	h.epoch++
	h.node = nil
}

func (h *host) reset() { h.gate, h.token = 0, h.token+1 }

// reaches reports whether the host can exchange messages with the host with index other, or with
// etcd if other is -1.
func (h *host) reaches(other int) bool {
	return !h.w.cut[[2]int{h.index, other}] && !h.w.cut[[2]int{other, h.index}] && (other >= 0 || !h.w.etcd.down)
}

// register writes the host's record nodes/NODE under a lease, reads all records, and then follows
// changes.
func (h *host) register() {
	w := h.w
	h.later(time.Duration(1+w.IntN(5))*time.Millisecond, func() {
		if !h.reaches(-1) {
			h.later(100*time.Millisecond, h.register)
			return
		}
		w.commit(Write{Put: []Put{{Key{Nodes, h.name}, encode(h.member)}}})
		h.leased, h.away = w.now.Add(15*time.Second), false
		var all []RecordChange
		for _, c := range w.etcd.records {
			all = append(all, c)
		}
		slices.SortFunc(all, func(a, b RecordChange) int { return int(a.Revision - b.Revision) })
		revision := w.etcd.revision
		h.watched = len(w.etcd.history)
		h.later(time.Duration(w.IntN(4))*time.Millisecond, func() {
			h.input(func(now local.Time) []local.Action { return h.node.Stored(now, all, revision, true) })
			h.follow()
			h.keepLease()
		})
	})
}

// keepLease renews the lease of the record nodes/NODE. If the lease has expired or etcd was
// unreachable, the host registers again.
func (h *host) keepLease() {
	h.later(time.Second, func() {
		switch {
		case !h.reaches(-1):
			h.away = true
			h.input(h.node.LostEtcd)
		case h.away || h.w.etcd.records[Key{Nodes, h.name}].Text == nil:
			h.register()
			return
		default:
			h.leased = h.w.now.Add(15 * time.Second)
		}
		h.keepLease()
	})
}

// follow reads the changes that the host has not seen yet, in order and after a delay.
func (h *host) follow() {
	if h.following || h.node == nil {
		return
	}
	w := h.w
	h.following = true
	h.later(time.Duration(w.IntN(6))*time.Millisecond, func() {
		h.following = false
		if !h.reaches(-1) {
			h.following = true
			h.later(50*time.Millisecond, func() { h.following = false; h.follow() })
			return
		}
		if part := w.etcd.history[h.watched:]; len(part) > 0 {
			part = slices.Clone(part)
			h.watched += len(part)
			h.input(func(now local.Time) []local.Action {
				return h.node.Stored(now, part, part[len(part)-1].Revision, false)
			})
		}
	})
}

func (h *host) tick() {
	h.later(12*time.Millisecond, func() {
		if h.opened && h.clock().Since(h.refreshed) > 200*time.Millisecond {
			h.opened = false
			h.input(func(now local.Time) []local.Action { return h.node.Lapsed(now, local.NotRefreshed, 0) })
		}
		h.input(h.node.Tick)
		h.tick()
	})
}

// refresher simulates a separate thread that refreshes the gate. The refresh may be long after the
// check of the deadline.
func (h *host) refresher() {
	h.later(31*time.Millisecond, func() {
		if token, at := h.token, h.clock(); h.opened && at < h.deadline.Add(-h.node.o.Timing.Gate) {
			h.later(h.hitch(), func() {
				if h.token == token && h.w.now < h.gate {
					h.gate = h.w.now.Add(h.node.o.Timing.Gate)
				}
				h.refreshed = at
				h.w.checkOwners()
			})
		}
		h.refresher()
	})
}

// input queues an event for the node. After the node has processed it, the process performs the
// actions that the node returns.
func (h *host) input(f func(local.Time) []local.Action) {
	h.inputs = append(h.inputs, f)
	h.work()
}

func (h *host) work() {
	if h.working || len(h.inputs) == 0 {
		return
	}
	h.working = true
	f := h.inputs[0]
	h.inputs = h.inputs[1:]
	h.later(h.hitch(), func() {
		actions := f(h.clock())
		h.deadline = h.node.Deadline()
		h.carryOut(actions)
	})
}

func (h *host) carryOut(actions []local.Action) {
	if len(actions) == 0 {
		h.working = false
		h.work()
		return
	}
	h.later(h.hitch(), func() {
		h.act(actions[0])
		h.w.checkOwners()
		h.carryOut(actions[1:])
	})
}

func (h *host) act(a local.Action) {
	switch a := a.(type) {
	case Send:
		h.send(a)
	case Write:
		h.write(a)
	case local.CloseGate:
		h.opened = false
		h.reset()
		clear(h.bound)
		h.input(h.node.Closed)
	case local.OpenGate:
		h.gate = h.w.now.Add(h.node.o.Timing.Gate)
		h.opened, h.refreshed = true, h.clock()
		h.input(func(now local.Time) []local.Action { return h.node.Opened(now, nil) })
	case local.Bind:
		for _, v := range a.Addrs {
			_, covered := h.covered[v]
			h.bound[v] = covered
			h.w.bound++
		}
	case local.Unbind:
		for _, v := range a.Addrs {
			delete(h.bound, v)
		}
		if a.ID != 0 {
			h.input(func(now local.Time) []local.Action { return h.node.Unbound(now, a.ID) })
		}
	case Register:
		h.change(func(m *Member) { m.Boot = a.Boot })
	case local.Probe:
		found := map[netip.Addr]string{}
		if h.w.wide && !h.w.calm && h.w.IntN(10) == 0 {
			found[a.Addrs[0]] = "a stranger"
		}
		h.later(300*time.Millisecond, func() {
			h.input(func(now local.Time) []local.Action { return h.node.Probed(now, a.Addrs, found) })
		})
	case local.Note:
		h.w.notef("%s %s: %s", h.name, a.Kind, a.Text)
		if a.After > 0 {
			h.w.taken = append(h.w.taken, a.After)
		}
	}
}

func (h *host) send(a Send) {
	to := slices.IndexFunc(h.w.hosts, func(o *host) bool { return o.name == a.To })
	if to < 0 {
		return
	}
	for on := range h.member.At {
		if a.On < 0 || a.On == on {
			h.sendOn(on, to, a.Message)
		}
	}
}

func (h *host) sendOn(on, to int, m Message) {
	peer := h.w.hosts[to]
	if len(h.node.Addresses(peer.name)) == 0 || h.lost[on] || peer.lost[on] || !h.reaches(to) || !h.w.calm && h.w.IntN(50) == 0 {
		return
	}
	if m.Echoless = h.echoless; m.Echoless {
		m.Echo = Stamp{}
	}
	if h.w.spy.withholds(capture{h.index, to, on, m}) {
		return
	}
	delay := time.Duration(h.w.IntN(1000)) * time.Microsecond
	if !h.w.calm && h.w.IntN(100) == 0 {
		delay = time.Duration(h.w.IntN(2000)) * time.Millisecond
	}
	h.w.after(delay, func() { h.w.deliver(capture{h.index, to, on, m}) })
}

func (w *world) deliver(c capture) {
	peer := w.hosts[c.to]
	if peer.node != nil && w.now >= peer.stopped {
		peer.input(func(now local.Time) []local.Action { return peer.node.Received(now, c.on, c.message) })
	}
}

// write executes a transaction after a delay. The answer may be lost. After 400 ms without an
// answer, the node receives the outcome Unknown, although etcd may still execute the transaction.
func (h *host) write(a Write) {
	w, notified, epoch := h.w, false, h.epoch
	answer := func(o Outcome, revision int64) {
		if !notified && h.epoch == epoch {
			notified = true
			h.later(0, func() { h.input(func(now local.Time) []local.Action { return h.node.Wrote(now, a.ID, o, revision) }) })
		}
	}
	if h.away {
		h.later(time.Millisecond, func() { answer(Unsent, 0) })
		return
	}
	h.w.after(400*time.Millisecond, func() { answer(Unknown, 0) })
	if !h.reaches(-1) {
		return
	}
	delay, what := time.Duration(1+w.IntN(4))*time.Millisecond, answered
	if !w.calm && w.IntN(20) == 0 {
		delay = time.Duration(w.IntN(1500)) * time.Millisecond
	}
	owners := slices.ContainsFunc(a.Put, func(p Put) bool { return p.Kind == VIPs }) || slices.ContainsFunc(a.Delete, func(k Key) bool { return k.Kind == VIPs })
	if len(w.fates) > 0 && owners {
		if what, w.fates = w.fates[0], w.fates[1:]; what == tardy {
			delay = 450 * time.Millisecond
		}
	}
	w.after(delay, func() {
		if w.etcd.down || what == lost {
			return
		}
		if w.etcd.full && len(a.Put) > 0 {
			answer(Unsent, 0)
			return
		}
		o, revision := w.commit(a)
		if h.reaches(-1) && what != unheard && (w.calm || w.IntN(30) > 0) {
			answer(o, revision)
		}
	})
}

// fate describes what happens to a transaction. With the fate answered, etcd executes and answers
// it. With unheard, etcd executes it, but the answer is lost. With tardy, etcd executes it only
// after the node has received the outcome Unknown. With lost, etcd never executes it.
type fate int

const (
	answered fate = iota
	unheard
	tardy
	lost
)

// expire regularly deletes the records whose leases have expired.
func (w *world) expire() {
	w.after(500*time.Millisecond, func() {
		for _, h := range w.hosts {
			k := Key{Nodes, h.name}
			if !w.etcd.down && w.etcd.records[k].Text != nil && w.now > h.leased {
				w.etcd.revision++
				w.etcd.put(k, nil)
				w.deliverChanges()
			}
		}
		w.expire()
	})
}

func (h *host) answers(v netip.Addr) bool {
	_, covered := h.covered[v]
	return h.bound[v] && (h.w.shut || h.w.now < h.gate || !covered)
}

// checkOwners counts the hosts that answer for each VIP. It records when more than one host answers
// for the same VIP for the first time.
func (w *world) checkOwners() {
	for v := range w.policy {
		n := 0
		for _, h := range w.hosts {
			if h.answers(v) {
				n++
			}
		}
		if n > 1 && w.dual == "" {
			w.dual = fmt.Sprintf("at %s %d hosts answer for %s", time.Duration(w.now), n, v)
		}
	}
}

func newWorld(t *testing.T, seed uint64, hosts int, policy map[netip.Addr]Policy) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), t: t, now: local.Time(time.Second), policy: policy, cut: map[[2]int]bool{}, absent: map[netip.Addr]bool{},
		etcd: etcd{records: map[Key]RecordChange{}, revision: 1}}
	network := netip.MustParsePrefix("10.0.0.0/8")
	for i := range hosts {
		h := &host{w: w, index: i, name: fmt.Sprintf("gw%d", i+1), bound: map[netip.Addr]bool{}, covered: map[netip.Addr]Policy{}, rate: 1 + float64(w.IntN(2000)-1000)/1e6,
			shift: local.Time(w.Int64N(int64(time.Hour)))}
		h.member = Member{Machine: h.name + "/0/1", Weight: 1, At: []Address{{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Networks: []netip.Prefix{network}}}}
		w.hosts = append(w.hosts, h)
		h.start()
	}
	w.expire()
	return w
}

// fault injects a random fault. Most faults last for a random duration.
func (w *world) fault() {
	h := w.hosts[w.IntN(len(w.hosts))]
	long := time.Duration(200+w.IntN(4000)) * time.Millisecond
	if long%(8*time.Millisecond) == 0 {
		long *= 6 // the fault may last longer than a lease
	}
	w.healed = max(w.healed, w.now.Add(long))
	set := func(a, b int) {
		w.cut[[2]int{a, b}] = true
		w.after(long, func() { delete(w.cut, [2]int{a, b}) })
	}
	kinds := 7
	if w.wide {
		kinds = 14
	}
	switch w.IntN(kinds) {
	case 0:
		w.notef("kill %s", h.name)
		h.epoch++
		h.node = nil
		w.after(long/2, h.start)
	case 1:
		w.notef("stop %s for %s", h.name, long)
		h.stopped = max(h.stopped, w.now.Add(long))
	case 2:
		w.notef("cut %s from all for %s", h.name, long)
		for i := -1; i < len(w.hosts); i++ {
			set(h.index, i)
		}
	case 3:
		w.notef("cut %s from etcd for %s", h.name, long)
		set(h.index, -1)
	case 4:
		other := w.IntN(len(w.hosts))
		w.notef("cut %s from %s for %s", h.name, w.hosts[other].name, long)
		set(h.index, other)
	case 5:
		w.notef("etcd is away for %s", long)
		w.etcd.down = true
		w.after(long, func() {
			w.etcd.down = false
			for _, o := range w.hosts { // a new etcd leader extends all leases
				o.leased = max(o.leased, w.now.Add(15*time.Second))
			}
		})
	case 6:
		v := slices.MinFunc(slices.Collect(maps.Keys(w.policy)), netip.Addr.Compare)
		w.notef("move %s to %s", v, h.name)
		w.commit(Write{Put: []Put{{Key{Moves, v.String()}, encode(Move{To: h.name, Force: w.IntN(2) == 0})}}})
	default:
		w.wideFault(h, long)
	}
}

// widen gives the hosts a second network and weights, gives the VIPs preferred hosts, and enables
// more kinds of faults.
func (w *world) widen() {
	w.wide = true
	network := netip.MustParsePrefix("172.16.0.0/12")
	for i, h := range w.hosts {
		h.member.At = append(h.member.At, Address{Addr: netip.AddrFrom4([4]byte{172, 16, 0, byte(i + 1)}), Networks: []netip.Prefix{network}})
		h.member.Weight = w.IntN(3)
	}
	w.hosts[0].member.Weight = 1
	for v, p := range w.policy {
		p.Prefer, p.Preempt = []string{w.hosts[w.IntN(len(w.hosts))].name}, time.Duration(w.IntN(2))*time.Second
		w.policy[v] = p
	}
}

func (w *world) wideFault(h *host, long time.Duration) {
	vips := slices.SortedFunc(maps.Keys(w.policy), netip.Addr.Compare)
	v := vips[w.IntN(len(vips))]
	switch w.IntN(7) {
	case 0:
		w.notef("%s on standby for %s", h.name, long)
		h.change(func(m *Member) { m.Standby = true })
		w.after(long, func() { h.change(func(m *Member) { m.Standby = false }) })
	case 1:
		w.notef("%s can't serve %s for %s", h.name, v, long)
		h.change(func(m *Member) { m.Cannot = map[netip.Addr]string{v: "no endpoint is usable"} })
		w.after(long, func() { h.change(func(m *Member) { m.Cannot = nil }) })
	case 2:
		on := w.IntN(2)
		w.notef("%s loses network %d for %s", h.name, on, long)
		h.lost[on] = true
		w.after(long, func() { h.lost[on] = false })
	case 3:
		w.notef("stop of %s", h.name)
		if h.node != nil {
			h.stop(long / 2)
		}
	case 4:
		w.notef("power-off of %s, which an operator fences", h.name)
		h.powerOff()
		epoch := h.epoch
		w.after(long/4, func() {
			if h.epoch == epoch {
				w.commit(Write{Put: []Put{{Key{Fences, h.name}, encode(Fence{})}}})
			}
		})
		w.after(long/2, h.start)
	case 5:
		w.notef("etcd is full for %s", long)
		w.etcd.full = true
		w.after(long, func() { w.etcd.full = false })
	case 6:
		long /= time.Duration(1 + w.IntN(40))
		w.notef("no %s for %s", v, long)
		w.absent[v] = true
		w.updateVIPsLater()
		w.after(long, func() { delete(w.absent, v); w.updateVIPsLater() })
	}
}

func (w *world) updateVIPsLater() {
	for _, h := range w.hosts {
		if h.node != nil {
			h.later(time.Duration(w.IntN(200))*time.Millisecond, h.updateVIPs)
		}
	}
}

// owner returns the owner of a VIP according to etcd. It returns nil if the VIP has no owner in
// etcd, or if its owner does not answer for it.
func (w *world) owner(v netip.Addr) *host {
	var o Owner
	if json.Unmarshal(w.etcd.records[Key{VIPs, v.String()}].Text, &o) != nil {
		return nil
	}
	for _, h := range w.hosts {
		if h.name == o.Node && h.answers(v) {
			return h
		}
	}
	return nil
}

package failover

import (
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer/failover/local"
	"vipd/test/wait"
)

// transfer is the state of a fleet while a VIP moves between hosts. It consists of real nodes,
// their simulated kernels, and etcd with pending transactions. Time does not advance, so no session
// ends. The type model covers the end of sessions.
type transfer struct {
	etcd
	hosts   []*mover
	flights []*flight
	faults  int // number of faults that may still occur
}

// mover is a simulated host, on which one process runs at a time. The process's Node receives the
// results of kernel actions in order, but delayed. Options configures all processes on the host.
type mover struct {
	*Node
	Options
	queue       []local.Action
	reports     []report
	bound, gate bool
	watched     int  // index of the next entry to read in etcd's history
	gone        bool // users have removed the VIP
}

// report is a message from the kernel to the node that an action is complete. kind is the result of
// the action.
type report struct {
	kind string
	id   int
}

// flight is a transaction that is in flight. carriedOut reports whether etcd has executed the
// transaction, and never reports that etcd never will. told reports whether the node has received
// the outcome.
type flight struct {
	Write
	host                    int
	carriedOut, told, never bool
	outcome                 Outcome
	revision                int64
}

const standstill = local.Time(time.Hour)

func transferred() netip.Addr { return netip.MustParseAddr("10.1.0.1") }

// newTransfer returns a fleet of n hosts. The first host owns the VIP, and an operator has
// requested a move to the second host.
func newTransfer(n, faults int) *transfer {
	x := &transfer{etcd: etcd{records: map[Key]RecordChange{}}}
	name := func(i int) string { return fmt.Sprint("gw", i) }
	timing := NewTiming(800 * time.Millisecond)
	var jury []string
	for i := range n {
		jury = append(jury, name(i))
	}
	for i := range n {
		next := ID(1000 * (i + 1))
		h := &mover{Options: Options{
			Name:   name(i),
			Member: Member{Boot: next, Machine: name(i), Weight: 1, At: []Address{{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}},
			Timing: timing, NewID: func() ID { next++; return next }, Wall: func() time.Time { return time.Time{} },
		}}
		h.Node = New(h.Options)
		x.hosts = append(x.hosts, h)
		x.commit(Write{Put: []Put{{Key{Nodes, name(i)}, encode(h.Member)}, {Key{Sessions, name(i)}, encode(Session{ID: next, Machine: name(i), Jury: jury, Timing: timing})}}})
	}
	x.commit(Write{Put: []Put{{Key{VIPs, transferred().String()}, encode(Owner{Node: name(0), Session: 1001, Generation: 1})}}})
	for i := range x.hosts {
		x.load(i)
	}
	for len(x.next()) > 0 { // until the gates are open and the initial transactions are done
		x.next()[0].do()
	}
	x.faults = faults
	x.move(1)
	return x
}

// load passes all of etcd's records, and a message from each peer, to a node.
func (x *transfer) load(i int) {
	h := x.hosts[i]
	all := slices.SortedFunc(maps.Values(x.records), func(a, b RecordChange) int { return int(a.Revision - b.Revision) })
	h.watched = len(x.history)
	x.apply(i, h.SetPolicies(standstill, x.policies(h)))
	x.apply(i, h.Stored(standstill, all, x.revision, true))
	for j, peer := range x.hosts {
		if j != i {
			x.apply(i, h.Received(standstill, 0, Message{Kind: Answer, From: peer.Name, Boot: peer.Member.Boot, Session: h.session.id, Sent: standstill}))
			x.apply(i, h.Received(standstill, 0, Message{Kind: Beat, From: peer.Name, Boot: peer.Member.Boot, Session: peer.session.id, Sent: standstill,
				Echo: Stamp{h.Member.Boot, standstill}, Ready: true, Well: 1}))
		}
	}
}

// restart kills a host's process and starts a new process, which closes the gate before it
// registers. The new process never learns the outcomes of the previous process's transactions.
func (x *transfer) restart(i int) {
	h := x.hosts[i]
	h.queue, h.reports, h.gate, h.bound = nil, nil, false, false
	for _, f := range x.flights {
		f.told = f.told || f.host == i
	}
	x.dropObsolete()
	h.Member.Boot += 100
	h.Node = New(h.Options)
	x.commit(Write{Put: []Put{{Key{Nodes, h.Name}, encode(h.Member)}}})
	x.load(i)
}

// isWaiting reports whether a host's node is waiting for a timeout.
func (h *mover) isWaiting() bool {
	return h.writer.behind() || len(h.holding.unsure) > 0 || h.holding.until > standstill
}

// pass makes all of a node's timeouts expire without advancing the time.
func (x *transfer) pass(i int) {
	h := x.hosts[i]
	h.writer.patient, h.holding.retry, h.holding.until, h.review = 0, 0, 0, true
	x.apply(i, h.Tick(standstill))
}

func (x *transfer) policies(h *mover) map[netip.Addr]Policy {
	if h.gone {
		return nil
	}
	return map[netip.Addr]Policy{transferred(): {}}
}

// move requests that the VIP move to the host with index to.
func (x *transfer) move(to int) {
	x.commit(Write{Put: []Put{{Key{Moves, transferred().String()}, encode(Move{To: x.hosts[to].o.Name})}}})
}

// apply passes the transactions in actions to etcd, and the other actions to the node's kernel.
func (x *transfer) apply(i int, actions []local.Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case Write:
			x.flights = append(x.flights, &flight{Write: a, host: i})
		case Send, local.Note:
		default:
			x.hosts[i].queue = append(x.hosts[i].queue, a)
		}
	}
}

// work performs the next queued action in a host's kernel.
func (x *transfer) work(i int) {
	h := x.hosts[i]
	if len(h.queue) == 0 {
		return
	}
	a := h.queue[0]
	h.queue = h.queue[1:]
	switch a := a.(type) {
	case local.CloseGate:
		h.gate, h.bound = false, false
		h.reports = append(h.reports, report{"closed", 0})
	case local.OpenGate:
		h.gate = true
		h.reports = append(h.reports, report{"opened", 0})
	case local.Bind:
		h.bound = true
	case local.Unbind:
		if h.bound = false; a.ID != 0 {
			h.reports = append(h.reports, report{"unbound", a.ID})
		}
	case local.Probe:
		h.reports = append(h.reports, report{"probed", 0})
	}
}

// deliverResult passes the result of the oldest completed kernel action to a node.
func (x *transfer) deliverResult(i int) {
	h := x.hosts[i]
	if len(h.reports) == 0 {
		return
	}
	t := h.reports[0]
	h.reports = h.reports[1:]
	switch t.kind {
	case "closed":
		x.apply(i, h.Closed(standstill))
	case "opened":
		x.apply(i, h.Opened(standstill, nil))
	case "unbound":
		x.apply(i, h.Unbound(standstill, t.id))
	case "probed":
		x.apply(i, h.Probed(standstill, []netip.Addr{transferred()}, nil))
	}
}

// watch delivers the records of etcd's next revision to a node.
func (x *transfer) watch(i int) {
	h := x.hosts[i]
	part := x.history[h.watched:]
	part = part[:slices.IndexFunc(append(slices.Clone(part), RecordChange{}), func(c RecordChange) bool { return c.Revision != part[0].Revision })]
	h.watched += len(part)
	x.apply(i, h.Stored(standstill, slices.Clone(part), part[0].Revision, false))
}

// step is a step that can follow the current state. Its field faults is the number of faults that
// it includes.
type step struct {
	format string
	args   []any
	faults int
	do     func()
}

func (s step) String() string { return fmt.Sprintf(s.format, s.args...) }

func (x *transfer) next() (all []step) {
	add := func(faults int, do func(), format string, args ...any) {
		if faults <= x.faults {
			all = append(all, step{format, args, faults, do})
		}
	}
	for i, h := range x.hosts {
		if len(h.queue) > 0 {
			add(0, func() { x.work(i) }, "%s does %T", h.Name, h.queue[0])
		}
		if len(h.reports) > 0 {
			add(0, func() { x.deliverResult(i) }, "%s receives %s", h.Name, h.reports[0].kind)
		}
		if h.watched < len(x.history) {
			add(0, func() { x.watch(i) }, "%s receives revision %d", h.Name, x.history[h.watched].Revision)
		}
		fewer := 1
		if h.gone {
			fewer = 0
		}
		add(fewer, func() { h.gone = !h.gone; x.apply(i, h.SetPolicies(standstill, x.policies(h))) }, "users have removed the VIP at %s: %t", h.Name, !h.gone)
		if h.Node.gate.state == open {
			add(1, func() { x.apply(i, h.Lapsed(standstill, local.Changed, 0)) }, "the gate of %s lapses", h.Name)
		}
		if !h.Node.gate.stopping {
			add(1, func() { x.apply(i, h.Stop(standstill)) }, "%s stops", h.Name)
		}
		add(1, func() { x.move(i) }, "a move to %s is requested", h.Name)
		add(1, func() { x.restart(i) }, "%s is killed and restarts", h.Name)
		if h.isWaiting() && h.watched == len(x.history) {
			add(0, func() { x.pass(i) }, "%s retries", h.Name)
		}
	}
	for _, f := range x.flights {
		host, id := x.hosts[f.host].Name, f.ID
		if !f.carriedOut && !f.never {
			add(0, func() { f.carriedOut = true; f.outcome, f.revision = x.commit(f.Write) }, "%s's transaction %d is carried out", host, id)
		}
		if !f.told {
			if f.carriedOut {
				add(0, func() { x.answer(f, f.outcome) }, "%s's transaction %d is answered", host, id)
			}
			add(1, func() { x.answer(f, Unknown) }, "%s's transaction %d has an unknown outcome", host, id)
			if !f.carriedOut {
				add(1, func() { f.never = true; x.answer(f, Unsent) }, "%s's transaction %d is not sent", host, id)
			}
		} else if !f.carriedOut {
			add(0, func() { f.never = true; x.dropObsolete() }, "%s's transaction %d is lost", host, id)
		}
	}
	return all
}

func (x *transfer) answer(f *flight, o Outcome) {
	f.told = true
	revision := f.revision
	if o != Done {
		revision = 0
	}
	x.apply(f.host, x.hosts[f.host].Wrote(standstill, f.ID, o, revision))
	x.dropObsolete()
}

// dropObsolete drops transactions that can no longer have an effect.
func (x *transfer) dropObsolete() {
	x.flights = slices.DeleteFunc(x.flights, func(f *flight) bool { return f.told && (f.carriedOut || f.never) })
}

// wrong describes the rule that the current state breaks. It returns "" if the state breaks no
// rule.
func (x *transfer) wrong() string {
	answers, gone, moving := 0, 0, 0
	for _, h := range x.hosts {
		if h.bound && h.gate {
			answers++
		}
		if h.gone {
			gone++
		}
		moving += len(h.queue) + len(h.reports) + len(x.history) - h.watched
		if h.isWaiting() {
			moving++
		}
	}
	switch {
	case answers > 1:
		return "two hosts answer"
	case answers == 1 || gone > 0 || moving+len(x.flights) > 0:
		return ""
	}
	for _, h := range x.hosts { // eventually, peers would revoke a stopped host's session, and would confirm a new session
		if o := h.etcd.owners[transferred().String()]; !h.Node.gate.stopping && h.Node.gate.state != open || h.Node.gate.stopping && (h.bound || o != nil && o.value.Node == h.Name) {
			return ""
		}
	}
	return "nobody answers though nothing is pending"
}

func (x *transfer) print(seed maphash.Seed) uint64 {
	var b strings.Builder
	for _, h := range x.hosts {
		n := h.Node
		fmt.Fprint(&b, h.bound, h.gate, h.gone, h.watched, len(h.queue), h.queue, h.reports, h.isWaiting(), len(n.holding.unsure), n.gate.state, n.vips.bound, n.writer.claiming, n.gate.leaving, n.gate.left, n.review, n.writer.behind(), n.gate.stopping, n.stale, n.takeover.probing, n.session.live, n.session.id, n.session.revision, n.writer.last,
			slices.Sorted(maps.Keys(n.writer.waiting)), slices.Sorted(maps.Keys(n.holding.unbinds)), len(n.takeover.free))
		for _, units := range []map[string]*vip{n.vips.byName, n.vips.removed} {
			for _, u := range units {
				fmt.Fprint(&b, "vip", u.bound, u.giving, u.fresh, u.clear, len(u.changed))
			}
			b.WriteByte('|')
		}
		for _, r := range n.etcd.owners {
			fmt.Fprint(&b, r.revision, r.value)
		}
		for _, r := range n.etcd.moves {
			fmt.Fprint(&b, r.revision, r.value)
		}
	}
	for _, f := range x.flights {
		fmt.Fprint(&b, f.host, f.ID, f.carriedOut, f.told, f.outcome, f.revision, ";")
	}
	for _, k := range []RecordKind{VIPs, Moves} {
		fmt.Fprint(&b, x.records[Key{k, transferred().String()}].Revision)
	}
	fmt.Fprint(&b, x.revision, x.faults)
	return maphash.String(seed, b.String())
}

// visitTransfers visits all states, nearest to the start first, but no more than the parameter most
// allows. It returns the number of visited states, and the steps that lead to the first state that
// breaks a rule.
func visitTransfers(hosts, faults, most int) (states int, way []string) {
	seed, seen := maphash.MakeSeed(), map[uint64]bool{}
	replay := func(path []byte, visit func(step)) *transfer {
		x := newTransfer(hosts, faults)
		for _, i := range path {
			s := x.next()[i]
			visit(s)
			x.faults -= s.faults
			s.do()
		}
		return x
	}
	ignore := func(step) {}
	queue := [][]byte{nil}
	for ; len(queue) > 0 && len(seen) < most; queue = queue[1:] {
		for i := range replay(queue[0], ignore).next() {
			path := append(slices.Clone(queue[0]), byte(i))
			x := replay(path, ignore)
			if wrong := x.wrong(); wrong != "" {
				replay(path, func(s step) { way = append(way, s.String()) })
				return len(seen), append(way, wrong)
			}
			if p := x.print(seed); !seen[p] {
				seen[p] = true
				queue = append(queue, path)
			}
		}
	}
	return len(seen), nil
}

// TestTransfers visits the states that a fleet can reach while a VIP moves. Two hosts must never
// answer, and one host must answer when nothing is pending. Only "make soak" visits states far from
// the start, a second fault and a third host.
func TestTransfers(t *testing.T) {
	for _, c := range []struct{ hosts, faults, most int }{{2, 1, wait.Soak(600, math.MaxInt)}, {2, wait.Soak(0, 2), math.MaxInt}, {3, wait.Soak(0, 1), math.MaxInt}} {
		began := time.Now()
		states, way := visitTransfers(c.hosts, c.faults, c.most)
		t.Logf("%d hosts, %d faults: %d states in %s", c.hosts, c.faults, states, time.Since(began).Round(time.Millisecond))
		if way != nil {
			t.Errorf("%d hosts: these steps lead to a state that breaks a rule:\n%s", c.hosts, strings.Join(way, "\n"))
		}
	}
}

// TestLateAnswerIgnored delays the answer to a host that reclaims a VIP. Before the answer arrives,
// users remove the VIP and add it again, so the VIP has no owner. The host must ignore the late
// answer.
func TestLateAnswerIgnored(t *testing.T) {
	x := newTransfer(2, 2)
	for _, name := range []string{
		"gw0 receives revision 6", "gw0 does local.Unbind", "gw0 receives unbound", "users have removed the VIP at gw0: true", "gw1 receives revision 6",
		"gw0's transaction 3 has an unknown outcome", "gw0's transaction 4 is carried out", "gw0 receives revision 7", "gw0 does local.Unbind", "gw0 receives unbound",
		"users have removed the VIP at gw0: false", "gw1 receives revision 7", "gw0's transaction 6 is carried out", "gw0 receives revision 8", "gw0's transaction 4 is answered",
	} {
		i := slices.IndexFunc(x.next(), func(s step) bool { return s.String() == name })
		if i < 0 {
			t.Fatalf("step %q is missing from next()", name)
		}
		s := x.next()[i]
		x.faults -= s.faults
		s.do()
	}
	if gw0 := x.hosts[0]; len(gw0.queue) > 0 || gw0.Node.vips.bound > 0 {
		t.Errorf("after the late answer: actions = %v, want none, because the VIP has no owner", gw0.queue)
	}
}

package failover

import (
	"slices"
	"testing"
	"time"

	"vipd/test/wait"
)

// capture is a message in transit. It is from the host with index from to address number on of the
// host with index to.
type capture struct {
	from, to, on int
	message      Message
}

// spy is an attacker on the network who does not have the key. It records, withholds and replays
// messages, but can't change them. It can't redirect them either, because the signature of a
// message covers its destination address.
type spy struct {
	captured []capture
	// beats holds the captured heartbeats of each host, by the index of the host.
	beats map[int][]capture
	// withhold reports whether the attacker drops a message. If withhold is nil, all messages
	// arrive.
	withhold func(capture) bool
}

func newSpy() *spy { return &spy{beats: map[int][]capture{}} }

// withholds records a message, and reports whether the attacker drops it.
func (s *spy) withholds(c capture) bool {
	if s == nil {
		return false
	}
	s.captured = append(s.captured, c)
	if c.message.Kind == Beat {
		s.beats[c.from] = append(s.beats[c.from], c)
	}
	return s.withhold != nil && s.withhold(c)
}

// replay keeps sending captured messages again until the test ends. Most of the replayed messages
// are recent.
func (s *spy) replay(w *world) {
	if s == nil {
		return
	}
	w.after(time.Duration(w.IntN(4000))*time.Microsecond, func() {
		if n := len(s.captured); n > 0 {
			age := w.IntN(n) + 1
			if w.IntN(3) > 0 {
				age = min(age, 1+w.IntN(200))
			}
			w.deliver(s.captured[n-age])
		}
		s.replay(w)
	})
}

// TestNeverTwoOwnersWithReplays injects random faults while an attacker replays messages. Two hosts
// must never answer for the same VIP. After the faults, each VIP must have an owner even though the
// replays continue.
func TestNeverTwoOwnersWithReplays(t *testing.T) {
	for seed := range uint64(wait.Soak(8, 3000)) {
		neverTwo(t, seed, seed/8%2 == 1, newSpy())
	}
}

// replays describes an attack with the captured heartbeats of an owner that dies.
type replays struct {
	name string
	// hold reports whether the attacker also delays the heartbeats. Delayed heartbeats arrive in
	// order, but at half their rate, even after the owner's death.
	hold bool
	// echoless reports whether the owner runs an earlier version of vipd, which sends no
	// Message.Echo.
	echoless bool
	// next returns the message to replay at a step. The argument all holds the captured heartbeats
	// of the owner, and the first earlier of them are from its previous run.
	next  func(all []capture, earlier, step int) capture
	limit time.Duration
}

// TestReplaysDelayNoTakeover kills the owner while an attacker replays its heartbeats. The takeover
// must be as fast as without replays. If the attacker also delayed the heartbeats before the
// owner's death, the takeover may be later by at most Timing.Silence (800 ms).
func TestReplaysDelayNoTakeover(t *testing.T) {
	const usual = time.Second
	last := func(all []capture, _, _ int) capture { return all[len(all)-1] }
	for _, c := range []replays{
		{name: "last", limit: usual, next: last},
		{name: "last of an earlier version", echoless: true, limit: usual, next: last},
		{name: "in order", limit: usual, next: func(all []capture, earlier, step int) capture { return all[(earlier+step)%len(all)] }},
		{name: "earlier run between", limit: usual, next: func(all []capture, earlier, step int) capture {
			if step%2 == 0 {
				return all[earlier-1]
			}
			return all[len(all)-1]
		}},
		{name: "delayed", hold: true, limit: usual + 800*time.Millisecond, next: func(all []capture, earlier, step int) capture {
			return all[min(earlier+step/5, len(all)-1)] // one heartbeat per 50 ms, which is half the rate
		}},
	} {
		t.Run(c.name, func(t *testing.T) { wantTakeoverDespite(t, c) })
	}
}

// wantTakeoverDespite restarts the owner of a VIP, and kills its second run during the attack c.
// Another host must take over the VIP in time.
func wantTakeoverDespite(t *testing.T, c replays) {
	w, vip, owner := owned(t, 3)
	w.spy, owner.echoless = newSpy(), c.echoless
	w.run(time.Second)
	owner.stop(0)
	w.run(10 * time.Second)
	w.commit(Write{Put: []Put{{Key{Moves, vip.String()}, encode(Move{To: owner.name})}}})
	w.run(10 * time.Second)
	if w.owner(vip) != owner {
		t.Fatalf("number of VIPs by owner = %v, want the VIP on %s", w.owners(), owner.name)
	}
	all := w.spy.beats[owner.index]
	earlier := slices.IndexFunc(all, func(m capture) bool { return m.message.Boot != all[0].message.Boot })
	step := 0
	again := func() {
		w.deliverAll(c.next(w.spy.beats[owner.index], earlier, step))
		step++
		w.run(10 * time.Millisecond)
	}
	if c.hold {
		w.spy.withhold = func(m capture) bool { return m.from == owner.index && m.message.Kind == Beat }
		earlier = len(all)
		for w.run(50 * time.Millisecond); step < 1000; {
			again()
		}
	}
	owner.powerOff()
	died := w.now
	for w.owner(vip) == nil && w.dual == "" {
		if again(); w.now.Since(died) > 30*time.Second {
			t.Fatalf("owner of the VIP %s after the owner's death = none, want another host", w.now.Since(died))
		}
	}
	if after := w.now.Since(died); after > c.limit || w.dual != "" {
		t.Errorf("time from the owner's death to the takeover = %s, want at most %s; %s", after, c.limit, w.dual)
	}
}

// deliverAll delivers a message to all hosts.
func (w *world) deliverAll(c capture) {
	for to := range w.hosts {
		c.to = to
		w.deliver(c)
	}
}

// TestOtherRunConfirmsOwnerWithoutEtcd cuts off a juror until it votes the owner's session dead,
// while the owner can't reach etcd. When the juror is connected again, it retracts its vote by
// registering as a new run. The owner can't learn of this run from etcd. The new run must still
// confirm the owner's session, even during replays.
func TestOtherRunConfirmsOwnerWithoutEtcd(t *testing.T) {
	w, vip, owner := owned(t, 3)
	w.spy = newSpy()
	w.spy.replay(w)
	juror, third := w.hosts[(owner.index+1)%3], w.hosts[(owner.index+2)%3]
	w.cut[[2]int{owner.index, -1}] = true
	w.run(20 * time.Second)
	if w.etcd.records[Key{Nodes, owner.name}].Text != nil {
		t.Fatal("the owner's record nodes/NODE in etcd exists, want it expired")
	}
	before := juror.node.o.Member.Boot
	w.cut[[2]int{juror.index, -1}], w.cut[[2]int{juror.index, owner.index}], w.cut[[2]int{juror.index, third.index}] = true, true, true
	w.run(6 * time.Second)
	for _, to := range []int{-1, owner.index, third.index} {
		delete(w.cut, [2]int{juror.index, to})
	}
	w.run(10 * time.Second)
	if juror.node.o.Member.Boot == before {
		t.Fatal("the juror still has its earlier run, want a new run that retracts the vote")
	}
	w.cut[[2]int{owner.index, third.index}] = true
	for range 100 {
		if w.run(100 * time.Millisecond); w.owner(vip) != owner {
			t.Fatalf("number of VIPs by owner = %v, want the VIP on %s, confirmed by %s", w.owners(), owner.name, juror.name)
		}
	}
}

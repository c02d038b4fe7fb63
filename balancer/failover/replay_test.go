package failover

import (
	"slices"
	"testing"
	"time"

	"vipd/test/wait"
)

// capture is a message in transit. The host with index from sent it to address number on of the
// host with index to.
type capture struct {
	from, to, on int
	message      Message
}

// spy is an attacker on the network that does not have the key. It records, withholds and replays
// messages, but can't change them. Nor can it redirect them, because a message's signature covers
// its destination address.
type spy struct {
	captured []capture
	// beats maps the index of each host to its captured heartbeats.
	beats map[int][]capture
	// withhold reports whether the attacker drops a message. If withhold is nil, all messages
	// arrive.
	withhold func(capture) bool
}

func newSpy() *spy { return &spy{beats: map[int][]capture{}} }

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

// replay replays captured messages, mostly recent messages, until the test ends.
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

// replays describes an attack that replays the heartbeats of a dead owner.
type replays struct {
	name string
	// hold reports whether the attacker also delays the heartbeats. Delayed heartbeats arrive in
	// order, but at half their rate, even after the owner's death.
	hold bool
	// echoless reports whether the owner runs an earlier version of vipd, which sends no
	// Message.Echo.
	echoless bool
	// next returns the message to replay at a step. The argument all holds the owner's captured
	// heartbeats. The argument earlier is how many of them, at the start of the list, are from the
	// owner's previous run.
	next  func(all []capture, earlier, step int) capture
	limit time.Duration
}

// TestReplaysDelayNoTakeover kills the owner while an attacker replays its heartbeats. The takeover
// must be as fast as without replays. If the attacker also delayed the heartbeats before the
// owner's death, the takeover may take up to Timing.Silence (800 ms) longer.
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

// wantTakeoverDespite restarts a VIP's owner, and kills its second run during the attack c. Another
// host must take over the VIP within c.limit.
func wantTakeoverDespite(t *testing.T, c replays) {
	w, vip, owner := owned(t, 3)
	w.spy, owner.echoless = newSpy(), c.echoless
	w.run(time.Second)
	owner.stop(0)
	w.run(10 * time.Second)
	w.commit(Write{Put: []Put{{Key{Moves, vip.String()}, encode(Move{To: owner.name})}}})
	w.run(10 * time.Second)
	if w.owner(vip) != owner {
		t.Fatalf("VIPs per owner = %v, want the VIP on %s", w.owners(), owner.name)
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
			t.Fatalf("%s after the owner's death, the VIP has no owner", w.now.Since(died))
		}
	}
	if after := w.now.Since(died); after > c.limit || w.dual != "" {
		t.Errorf("time from the owner's death to the takeover = %s, want at most %s; %s", after, c.limit, w.dual)
	}
}

func (w *world) deliverAll(c capture) {
	for to := range w.hosts {
		c.to = to
		w.deliver(c)
	}
}

// TestOtherRunConfirmsOwnerWithoutEtcd cuts off a juror until it votes the owner's session dead,
// while the owner can't reach etcd. When the juror is connected again, it retracts its vote by
// registering as a new run. The owner can't learn of this run from etcd. The new run must still be
// able to confirm the owner's session, even during replays.
func TestOtherRunConfirmsOwnerWithoutEtcd(t *testing.T) {
	w, vip, owner := owned(t, 3)
	w.spy = newSpy()
	w.spy.replay(w)
	juror, third := w.hosts[(owner.index+1)%3], w.hosts[(owner.index+2)%3]
	w.cut[[2]int{owner.index, -1}] = true
	w.run(20 * time.Second)
	if w.etcd.records[Key{Nodes, owner.name}].Text != nil {
		t.Fatal("the owner's record nodes/NODE still exists in etcd, want it expired")
	}
	before := juror.node.o.Member.Boot
	w.cut[[2]int{juror.index, -1}], w.cut[[2]int{juror.index, owner.index}], w.cut[[2]int{juror.index, third.index}] = true, true, true
	w.run(6 * time.Second)
	for _, to := range []int{-1, owner.index, third.index} {
		delete(w.cut, [2]int{juror.index, to})
	}
	w.run(10 * time.Second)
	if juror.node.o.Member.Boot == before {
		t.Fatal("the juror has not started a new run to retract its vote")
	}
	w.cut[[2]int{owner.index, third.index}] = true
	for range 100 {
		if w.run(100 * time.Millisecond); w.owner(vip) != owner {
			t.Fatalf("VIPs per owner = %v, want the VIP on %s, confirmed by %s", w.owners(), owner.name, juror.name)
		}
	}
}

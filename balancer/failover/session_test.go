package failover

import (
	"net/netip"
	"testing"
	"time"

	"vipd/balancer/failover/local"
)

// TestAfterPowerLoss turns off all hosts, and then turns on only the host that owned a VIP. This
// host must own the VIP again, even if too few hosts are running to revoke its previous session.
func TestAfterPowerLoss(t *testing.T) {
	for hosts := 1; hosts <= 3; hosts++ {
		w, vip, owner := owned(t, hosts)
		for _, h := range w.hosts {
			h.powerOff()
		}
		w.run(time.Minute)
		owner.start()
		w.run(10 * time.Second)
		w.answered(vip, "the owner is back")
	}
}

// TestCutOffJuror cuts off a juror until it votes the owner's session dead. When the juror is
// connected again, it must confirm the session, so the owner keeps its VIP during an etcd outage.
func TestCutOffJuror(t *testing.T) {
	for hosts := 2; hosts <= 3; hosts++ {
		w, vip, owner := owned(t, hosts)
		cut := w.hosts[(owner.index+1)%hosts]
		for i := -1; i < hosts; i++ {
			w.cut[[2]int{cut.index, i}] = true
		}
		w.run(6 * time.Second)
		clear(w.cut)
		w.run(10 * time.Second)
		w.etcd.down = true
		for range 100 {
			w.run(100 * time.Millisecond)
			if w.owner(vip) != owner {
				t.Fatalf("%d hosts: without etcd, the owner lost the VIP although %s is connected again", hosts, cut.name)
			}
		}
		if age := owner.node.Status(owner.clock()).Confirmed[cut.name]; age < 0 || age > time.Second {
			t.Errorf("%d hosts: %s is connected again: age of its last confirmation = %s, want 0 to 1s", hosts, cut.name, age)
		}
	}
}

// TestRegisteredOnce makes a juror retract its votes while it can't reach etcd. The juror retracts
// votes by registering as a new run. Although it can't register, it must start only one new run.
func TestRegisteredOnce(t *testing.T) {
	w, _, owner := owned(t, 2)
	other := w.hosts[1-owner.index]
	w.cut[[2]int{0, 1}], w.cut[[2]int{other.index, -1}] = true, true
	w.run(6 * time.Second)
	delete(w.cut, [2]int{0, 1})
	runs := map[ID]bool{}
	for range 200 {
		w.run(100 * time.Millisecond)
		runs[other.member.Boot] = true
	}
	if len(runs) != 2 {
		t.Errorf("runs of the juror = %d, want 2: the original run and one new run", len(runs))
	}
}

// TestOtherRunOnTwoNetworks delivers a heartbeat from a host's new run on one network, and then a
// heartbeat from another run on a second network. A network must not count as failed because it has
// not yet delivered heartbeats from the new run, and no VIP may move.
func TestOtherRunOnTwoNetworks(t *testing.T) {
	w := newWorld(t, 1, 2, addresses(1))
	w.calm = true
	for i, h := range w.hosts {
		h.member.At = append(h.member.At, Address{Addr: netip.AddrFrom4([4]byte{172, 16, 0, byte(i + 1)}), Networks: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")}})
	}
	w.run(5 * time.Second)
	owner := w.owner(netip.MustParseAddr("10.1.0.1"))
	other := w.hosts[1-owner.index]
	for on := range 2 {
		owner.node.Received(owner.clock(), on, Message{
			Kind: Beat, From: other.name, Boot: ID(on + 1), Session: other.node.session.id, Sent: other.clock(), Ready: true, Well: 3,
			Echo: Stamp{owner.member.Boot, owner.clock()},
		})
		for _, a := range owner.node.Tick(owner.clock()) {
			if u, got := a.(local.Unbind); got {
				t.Errorf("after a message from a new run on network %[1]d, the owner released %[2]v", on, u.Addrs)
			}
		}
	}
}

// TestLateWriteOfEarlierRun delays the write that registers a juror's earlier run. The late write
// must not restore a vote that a later run has retracted.
func TestLateWriteOfEarlierRun(t *testing.T) {
	w, vip, owner := owned(t, 3)
	taker, juror := w.hosts[(owner.index+1)%3], w.hosts[(owner.index+2)%3]
	if taker.node.takeover.turn(owner.name, owner.node.session.id) > juror.node.takeover.turn(owner.name, owner.node.session.id) {
		taker, juror = juror, taker
	}
	late := encode(juror.member)
	for i := -1; i < 3; i++ {
		w.cut[[2]int{owner.index, i}] = true
	}
	w.cut[[2]int{juror.index, -1}], w.cut[[2]int{taker.index, -1}] = true, true
	for i := 0; taker.node.jurors.votes[owner.node.session.id][juror.name] == 0; i++ {
		if w.run(time.Millisecond); i == 10_000 {
			t.Fatal("after 10 s, the juror has not voted")
		}
	}
	w.cut[[2]int{juror.index, taker.index}] = true
	for _, i := range []int{juror.index, owner.index} {
		delete(w.cut, [2]int{owner.index, i})
	}
	delete(w.cut, [2]int{juror.index, -1})
	w.run(10 * time.Second)
	if w.owner(vip) != owner {
		t.Fatalf("VIPs per owner = %v, want the VIP on %s, confirmed by %s", w.owners(), owner.name, juror.name)
	}
	w.cut[[2]int{juror.index, -1}] = true
	w.commit(Write{Put: []Put{{Key{Nodes, juror.name}, late}}})
	delete(w.cut, [2]int{taker.index, -1})
	w.run(10 * time.Second)
	if w.dual != "" {
		t.Error(w.dual)
	}
}

// TestFenceWithoutSession replaces hosts with new machines that have the same names. A new machine
// can't get a session while the old machine's session is in etcd. A fence must end the old session,
// whether or not the new machine is running.
func TestFenceWithoutSession(t *testing.T) {
	w, vip, _ := owned(t, 3)
	for _, h := range w.hosts {
		h.powerOff()
		h.member.Machine = "new/1/" + h.name
	}
	w.run(time.Minute)
	for _, h := range w.hosts[:2] {
		h.start()
	}
	w.run(10 * time.Second)
	if s := w.hosts[0].node.Status(w.hosts[0].clock()); w.owner(vip) != nil || !s.Obstructed {
		t.Errorf("new machine with an old machine's name: status = %+v, want it obstructed, and the VIP without an owner", s)
	}
	w.commit(Write{Put: []Put{{Key{Fences, "gw3"}, encode(Fence{})}}})
	w.run(time.Second)
	if w.etcd.records[Key{Sessions, "gw3"}].Text != nil {
		t.Error("the fenced machine's session still exists in etcd")
	}
	w.commit(Write{Put: []Put{{Key{Fences, "gw1"}, encode(Fence{})}}})
	w.run(10 * time.Second)
	w.answered(vip, "the machine with the name of another one that is off")
}

// TestCopiedMachine starts a copy of a machine, with the same ID and name. The copy must not
// replace the session of the original machine, which is still running.
func TestCopiedMachine(t *testing.T) {
	w, vip, owner := owned(t, 1)
	c := &host{w: w, index: 1, name: owner.name, bound: map[netip.Addr]bool{}, covered: map[netip.Addr]Policy{}, rate: 1, member: owner.member}
	c.member.Machine = owner.name + "/1/1"
	w.hosts = append(w.hosts, c)
	c.start()
	w.run(time.Minute)
	if w.dual != "" || !owner.answers(vip) {
		t.Errorf("after a copy started: %q, want no second owner; VIPs per owner = %v, want the original machine to keep the VIP", w.dual, w.owners())
	}
}

// TestRevocationByReplacedVoter registers another run of a host that has voted. etcd must refuse a
// revocation that counts the earlier run's vote.
func TestRevocationByReplacedVoter(t *testing.T) {
	w, _, owner := owned(t, 3)
	taker, voter := w.hosts[(owner.index+1)%3], w.hosts[(owner.index+2)%3]
	votes := map[string]ID{taker.name: taker.node.o.Member.Boot, voter.name: voter.node.o.Member.Boot}
	ballot := func() (Write, []string) {
		return taker.node.jurors.voterConditions(owner.name, taker.node.etcd.sessions[owner.name], votes)
	}
	write, voters := ballot()
	if len(voters) != 2 {
		t.Fatalf("voters = %q, want both jurors", voters)
	}
	voter.change(func(m *Member) { m.Boot++ })
	w.run(time.Second)
	if _, voters := ballot(); len(voters) != 1 || voters[0] != taker.name {
		t.Errorf("after one voter registered another run: voters = %q, want only %s", voters, taker.name)
	}
	if outcome, _ := w.etcd.commit(write); outcome != Refused {
		t.Errorf("outcome of the revocation = %v, want %v", outcome, Refused)
	}
}

// TestManyNetworks delivers a peer's confirmations on a network whose number is too large for
// heartbeats to report. The node must accept the confirmations.
func TestManyNetworks(t *testing.T) {
	w, _, owner := owned(t, 2)
	const beyond = 20
	owner.input(func(now local.Time) []local.Action { return owner.node.Reached(now, beyond) })
	other := w.hosts[1-owner.index]
	other.lost[0] = true
	for range 60 { // without confirmations for this long, jurors would soon vote the session dead
		owner.input(func(now local.Time) []local.Action {
			return owner.node.Received(now, beyond, Message{Kind: Answer, From: other.name, Boot: other.member.Boot, Session: owner.node.session.id, Sent: now})
		})
		w.run(10 * time.Millisecond)
	}
	if age := owner.node.Status(owner.clock()).Confirmed[other.name]; age < 0 || age > 100*time.Millisecond {
		t.Errorf("age of the last confirmation = %s, want at most 100ms", age)
	}
	for at, want := range map[int]bool{0: true, 1: false, reported - 1: false, reported: true, beyond: true} {
		if got := isWell(1, at); got != want {
			t.Errorf("isWell for network %d = %t, want %t", at, got, want)
		}
	}
}

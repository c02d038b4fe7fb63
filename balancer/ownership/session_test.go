package ownership

import (
	"net/netip"
	"testing"
	"time"
)

// TestAfterPowerLoss: when all hosts have lost power, those that come back own the VIP, also where too few are left to bury the session of
// its owner before, which may be one of their own.
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

// TestCutOffJuror: a host that was cut off and has found the owner's session dead confirms it again: the owner outlives a failure of etcd.
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
				t.Fatalf("%d hosts: the owner rests without etcd, though %s is back", hosts, cut.name)
			}
		}
		if age := owner.node.Status(owner.clock()).Confirmed[cut.name]; age < 0 || age > time.Second {
			t.Errorf("%d hosts: %s is back, and has last confirmed the owner %s ago", hosts, cut.name, age)
		}
	}
}

// TestFenceWithoutSession: what a person says of machines that are off counts for hosts that have no session, and for those that replace one
// of them.
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
		t.Errorf("machines are taken for others that had their names, with status %+v", s)
	}
	w.commit(Write{Put: []Put{{Key{Fences, "gw3"}, text(Fence{})}}})
	w.run(time.Second)
	if w.etcd.records[Key{Sessions, "gw3"}].Text != nil {
		t.Error("a machine that is off keeps its session")
	}
	w.commit(Write{Put: []Put{{Key{Fences, "gw1"}, text(Fence{})}}})
	w.run(10 * time.Second)
	w.answered(vip, "the machine with the name of another one that is off")
}

// TestCopiedMachine: a copy of a machine, with its ID and its name, does not replace the session of one that runs, and that etcd confirms.
func TestCopiedMachine(t *testing.T) {
	w, vip, owner := owned(t, 1)
	c := &host{w: w, index: 1, name: owner.name, bound: map[netip.Addr]bool{}, covered: map[netip.Addr]Policy{}, rate: 1, member: owner.member}
	c.member.Machine = owner.name + "/1/1"
	w.hosts = append(w.hosts, c)
	c.start()
	w.run(time.Minute)
	if w.dual != "" || !owner.answers(vip) {
		t.Errorf("a copy was started: %s; the VIP is on %v", w.dual, w.owners())
	}
}

package failover

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// owned returns a world without random faults, where one of the hosts owns the only VIP.
func owned(t *testing.T, hosts int) (w *world, vip netip.Addr, owner *host) {
	t.Helper()
	w = newWorld(t, 1, hosts, addresses(1))
	w.calm = true
	w.run(5 * time.Second)
	vip = netip.MustParseAddr("10.1.0.1")
	if owner = w.owner(vip); owner == nil {
		t.Fatal("the VIP has no owner")
	}
	return w, vip, owner
}

// answered checks that a VIP has an owner that answers for it.
func (w *world) answered(v netip.Addr, when string) {
	w.t.Helper()
	if w.owner(v) != nil {
		return
	}
	w.t.Errorf("%s: %s has no owner", when, v)
	for _, line := range w.log {
		w.t.Log(line)
	}
}

// TestEtcdLostDuringMove makes etcd unreachable for a VIP's owner while the VIP moves. When etcd is
// reachable again, the owner must answer for the VIP again.
func TestEtcdLostDuringMove(t *testing.T) {
	w, vip, owner := owned(t, 2)
	w.move(vip, w.hosts[1-owner.index])
	w.fates = []fate{lost}
	w.run(100 * time.Millisecond) // the VIP is now unbound, and the transaction that names its new owner is pending
	w.cut[[2]int{owner.index, -1}] = true
	w.run(8 * time.Second)
	w.commit(Write{Delete: []Key{{Moves, vip.String()}}}) // etcd deletes the request, because its lease has expired
	clear(w.cut)
	w.run(3 * time.Second)
	w.answered(vip, "etcd is back")
}

// TestEtcdRefusesWrites makes etcd full, or unreachable for a VIP's owner, while the VIP should
// move. The VIP must stay on its host. Failed handovers may unbind and rebind it, but only a few
// times. When etcd accepts writes again, the VIP must move.
func TestEtcdRefusesWrites(t *testing.T) {
	for what, most := range map[string]int{"unreachable": 0, "full": 4} {
		w, vip, owner := owned(t, 3)
		begin, end := func() { w.cut[[2]int{owner.index, -1}] = true }, func() { clear(w.cut) }
		if what == "full" {
			begin, end = func() { w.etcd.full = true }, func() { w.etcd.full = false }
		}
		begin()
		w.run(2 * time.Second)
		before := w.bound
		owner.change(func(m *Member) { m.Cannot = map[netip.Addr]string{vip: "no endpoint is usable"} })
		w.run(20 * time.Second)
		if n := w.bound - before; n > most || w.owner(vip) != owner {
			t.Errorf("etcd is %s: the VIP was bound %d times, want at most %d; VIPs per owner = %v, want the VIP to stay", what, n, most, w.owners())
		}
		end()
		w.run(time.Minute)
		if w.owner(vip) == owner {
			t.Errorf("etcd was %s: the VIP did not move after etcd accepted writes again", what)
		}
		w.answered(vip, what)
	}
}

// TestOwnerCutOffFromEtcd cuts an owner off from etcd for longer than its lease. It must remain the
// owner while other hosts confirm its session, even if one of three hosts restarts and so forgets
// the owner's addresses. If all other hosts restart, they must take over the VIP.
func TestOwnerCutOffFromEtcd(t *testing.T) {
	for _, hosts := range []int{2, 3} {
		w, vip, owner := owned(t, hosts)
		w.cut[[2]int{owner.index, -1}] = true
		for i := range 600 {
			if w.run(100 * time.Millisecond); w.owner(vip) != owner {
				t.Fatalf("%d hosts, after %d00 ms: VIPs per owner = %v, want the VIP to stay", hosts, i, w.owners())
			}
			if i == 300 && hosts > 2 {
				w.hosts[(owner.index+1)%3].restart()
			}
		}
		for _, h := range w.hosts {
			if h != owner {
				h.restart()
			}
		}
		w.run(5 * time.Second)
		w.answered(vip, "no other host knows where the owner is")
	}
}

// TestNoMoveToCutOffHost cuts a host off from etcd. The host must not get a VIP although its peers
// receive its heartbeats, because it would not learn of the move from etcd.
func TestNoMoveToCutOffHost(t *testing.T) {
	vip := netip.MustParseAddr("10.1.0.1")
	w := newWorld(t, 1, 3, map[netip.Addr]Policy{vip: {Prefer: []string{"gw1", "gw2"}}})
	w.calm = true
	w.run(5 * time.Second)
	w.cut[[2]int{1, -1}] = true
	w.run(2 * time.Second)
	w.hosts[0].change(func(m *Member) { m.Standby = true })
	w.run(time.Second)
	if w.answered(vip, "the next host is cut off from etcd"); w.owner(vip) == w.hosts[0] {
		t.Error("a host on standby still owns the VIP")
	}
	clear(w.cut)
	w.run(5 * time.Second)
	w.hosts[2].change(func(m *Member) { m.Standby = true })
	w.run(time.Second)
	w.chosen("etcd is back", map[string]int{"gw2": 1})
}

// TestFailedHandoverIsNoMove makes a handover fail several times. The failures must not count as
// moves, so the VIP must still move when a handover succeeds.
func TestFailedHandoverIsNoMove(t *testing.T) {
	w, vip, owner := owned(t, 2)
	w.fates = []fate{lost, answered, lost, answered, lost, answered}
	owner.change(func(m *Member) { m.Cannot = map[netip.Addr]string{vip: "no endpoint is usable"} })
	w.run(10 * time.Second)
	if w.answered(vip, "etcd answers"); w.owner(vip) == owner {
		t.Errorf("the VIP's owner has not changed; log:\n%s", strings.Join(w.log, "\n"))
	}
}

package failover

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer/failover/local"
	"vipd/test/wait"
)

func addresses(n int) map[netip.Addr]Policy {
	out := map[netip.Addr]Policy{}
	for i := range n {
		out[netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i%250 + 1)})] = Policy{}
	}
	return out
}

// TestNeverTwoOwners injects faults from seeds. At most one host may answer for a VIP at any time.
// When all faults are over, each VIP must have an owner, and a group must have one owner.
func TestNeverTwoOwners(t *testing.T) {
	// These seeds once failed in make soak. A VIP moved to a node just before that node lost its
	// confirmation, a second handover started before the outcome of the first was known, and the
	// gate closed and opened in between.
	for _, seed := range []uint64{1113, 5059, 31028} {
		neverTwo(t, seed, false, nil)
	}
	for seed := range uint64(wait.Soak(8, 10000)) {
		neverTwo(t, seed, seed/8%2 == 1, nil)
	}
}

// neverTwo runs the random history of a seed. Two hosts must never answer for the same VIP, and at
// the end each VIP must have an owner.
func neverTwo(t *testing.T, seed uint64, wide bool, s *spy) {
	t.Helper()
	policies := addresses(1 + int(seed%4))
	for v := range policies {
		policies[v] = Policy{Group: []string{"", "g"}[seed/4%2]}
	}
	w := newWorld(t, seed, 2+int(seed%3), policies)
	w.spy = s
	s.replay(w)
	if wide {
		w.widen()
	}
	w.run(3 * time.Second)
	for range 12 {
		w.fault()
		w.run(time.Duration(w.IntN(2500)) * time.Millisecond)
	}
	w.calm = true
	w.run(max(w.healed.Since(w.now), 0) + 20*time.Second)
	one := map[*host]bool{}
	for v, p := range w.policy {
		if w.owner(v) == nil && w.dual == "" {
			w.dual = "nobody answers for " + v.String() + " though all is well"
		}
		if one[w.owner(v)] = true; p.Group != "" && len(one) > 1 && w.dual == "" {
			w.dual = "the group is on two hosts though all is well"
		}
	}
	if w.dual != "" {
		for _, line := range w.log {
			t.Log(line)
		}
		t.Fatalf("seed %d: %s", seed, w.dual)
	}
}

// TestTwoOwnersWithoutGate runs the faults of TestNeverTwoOwners without gates. Two hosts must
// answer, which proves that the faults are severe enough.
func TestTwoOwnersWithoutGate(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(t, seed, 3, addresses(1))
		w.shut = true
		w.run(3 * time.Second)
		for range 12 {
			w.fault()
			w.run(time.Duration(w.IntN(2500)) * time.Millisecond)
		}
		if w.dual != "" {
			return
		}
	}
	t.Error("histories without a gate in which two hosts answer = 0 of 20, want some")
}

// TestTakeOver kills the owner. Another host must answer within a second, and the first must not
// get its VIP back.
func TestTakeOver(t *testing.T) {
	w := newWorld(t, 1, 3, addresses(1))
	w.calm = true
	w.run(3 * time.Second)
	var vip netip.Addr
	for vip = range w.policy {
	}
	first := w.owner(vip)
	if first == nil {
		t.Fatal("owner of the VIP = none, want a host")
	}
	first.epoch++
	killed := w.now
	for w.owner(vip) == first || w.owner(vip) == nil {
		if w.run(time.Millisecond); w.now.Since(killed) > time.Second {
			t.Fatal("owner of the VIP after the kill = none, want another host")
		}
	}
	t.Logf("taken after %s", w.now.Since(killed))
	w.run(100 * time.Millisecond)
	for _, h := range w.hosts {
		if h != first && len(h.node.jurors.votes) > 0 {
			t.Errorf("votes of %s on an ended session exist, want none", h.name)
		}
	}
	second := w.owner(vip)
	first.start()
	w.run(20 * time.Second)
	if w.owner(vip) != second {
		t.Error("the VIP moved away from a healthy owner, want it to stay")
	}
}

// TestNotes closes the gate of an owner. Its notes must contain the reason, the duration and the
// VIPs, and the next owner's note must contain the time without an owner. If too few hosts are left
// to revoke an owner, the last host must name that owner.
func TestNotes(t *testing.T) {
	w := newWorld(t, 1, 3, addresses(1))
	w.calm = true
	w.run(3 * time.Second)
	vip := netip.MustParseAddr("10.1.0.1")
	first := w.owner(vip)
	for i := -1; i < len(w.hosts); i++ {
		w.cut[[2]int{first.index, i}] = true
	}
	w.run(3 * time.Second)
	log := strings.Join(w.log, "\n")
	for _, want := range []string{
		first.name + ` gate: gate closed: not confirmed for 0\.[45]\d*s \(gw\d, gw\d and etcd silent\); 1 VIP no longer answers: 10\.1\.0\.1\n`,
		` took: took 10\.1\.0\.1 from ` + first.name + ` \(silent for (0\.[89]|1)\d*s; confirmed by gw\d\)`,
	} {
		if !regexp.MustCompile(want).MatchString(log + "\n") {
			t.Errorf("no line matches %s:\n%s", want, log)
		}
	}
	if len(w.taken) != 1 || w.taken[0] < 800*time.Millisecond || w.taken[0] > time.Second {
		t.Errorf("claims of the VIP at %v, want one after 800ms to 1s", w.taken)
	}

	clear(w.cut)
	w.run(20 * time.Second)
	w.commit(Write{Put: []Put{{Key{Moves, vip.String()}, encode(Move{Request: Request{By: "ann", Reason: "kernel"}})}}})
	w.run(time.Second)
	log = strings.Join(w.log, "\n")
	for _, want := range []string{
		` \(move by ann: "kernel"\)`,
		// The VIP first moved at the start, about 27 s before.
		`flapping: 10\.1\.0\.1 has moved 3 times within a minute, so failing checks and preempt will not move it for 3\d(\.\d+)?s`,
	} {
		if !regexp.MustCompile(want).MatchString(log) {
			t.Errorf("no line matches %s:\n%s", want, log)
		}
	}
	second := w.owner(vip)
	first = w.hosts[(second.index+1)%3]
	left := slices.IndexFunc(w.hosts, func(h *host) bool { return h != first && h != second })
	for _, h := range []*host{first, second} {
		h.epoch++
		h.node = nil
	}
	w.run(3 * time.Second)
	s := w.hosts[left].node.Status(w.hosts[left].clock())
	silent := []string{first.name, second.name}
	slices.Sort(silent)
	if !slices.Equal(s.Waiting[second.name], silent) || !slices.Contains(s.Free, vip) || s.Heard[first.name][0] {
		t.Errorf("status of the third host, when the others are silent = %+v, want waiting %v and %s free", s, silent, vip)
	}
}

// TestVIPRemovedAndAdded removes a VIP and adds it again. It must stay unbound until the result of
// its release is known.
func TestVIPRemovedAndAdded(t *testing.T) {
	w := newWorld(t, 1, 1, addresses(1))
	w.calm = true
	w.run(3 * time.Second)
	h, vip := w.hosts[0], netip.MustParseAddr("10.1.0.1")
	if w.owner(vip) != h {
		t.Fatal("owner of the VIP = none, want the only host")
	}
	find := func(actions []local.Action, got func(local.Action) bool) local.Action {
		t.Helper()
		i := slices.IndexFunc(actions, got)
		if i < 0 {
			t.Fatalf("wanted action is missing in %+v", actions)
		}
		return actions[i]
	}
	unbinds := func(a local.Action) bool { u, ok := a.(local.Unbind); return ok && u.Addrs[0] == vip }
	binds := func(a local.Action) bool { b, ok := a.(local.Bind); return ok && b.Addrs[0] == vip }
	writes := func(a local.Action) bool { _, ok := a.(Write); return ok }

	gone := find(h.node.SetPolicies(h.clock(), nil), unbinds).(local.Unbind)
	deleted := find(h.node.Unbound(h.clock(), gone.ID), writes).(Write)
	if len(deleted.Delete) != 1 || deleted.Delete[0].Name != vip.String() {
		t.Fatalf("write of a removed VIP = %+v, want one deletion", deleted)
	}
	if actions := h.node.SetPolicies(h.clock(), w.policy); slices.ContainsFunc(actions, binds) {
		t.Error("the VIP was bound before etcd confirmed that it has no owner")
	}
	kept := find(h.node.Wrote(h.clock(), deleted.ID, Unknown, 0), writes).(Write)
	_, revision := w.etcd.commit(kept)
	find(h.node.Wrote(h.clock(), kept.ID, Done, revision), binds)
}

// owners maps each host to the number of VIPs for which it answers.
func (w *world) owners() map[string]int {
	byNode := map[string]int{}
	for v := range w.policy {
		if h := w.owner(v); h != nil {
			byNode[h.name]++
		}
	}
	return byNode
}

// chosen checks that each host has the wanted number of VIPs.
func (w *world) chosen(when string, want map[string]int) {
	w.t.Helper()
	if got := w.owners(); !maps.Equal(got, want) {
		w.t.Errorf("%s: owners of VIPs = %v, want %v", when, got, want)
	}
}

// TestOwnerChoice starts hosts with weights and preferences. The numbers of VIPs must follow the
// weights, and rendezvous hashing must break ties. A VIP must return to a preferred host only if
// its policy has preempt.
func TestOwnerChoice(t *testing.T) {
	calm := func(vips int, change func(*world)) *world {
		w := newWorld(t, 1, 3, addresses(vips))
		w.calm = true
		change(w)
		w.run(10 * time.Second)
		return w
	}
	calm(9, func(*world) {}).chosen("equal weights", map[string]int{"gw1": 3, "gw2": 3, "gw3": 3})
	calm(9, func(w *world) { w.hosts[0].member.Weight, w.hosts[2].member.Weight = 2, 0 }).chosen("weights of 2, 1 and 0", map[string]int{"gw1": 6, "gw2": 3})
	w := calm(1, func(*world) {})
	first := slices.MaxFunc([]string{"gw1", "gw2", "gw3"}, func(a, b string) int { return cmp.Compare(score("10.1.0.1", a), score("10.1.0.1", b)) })
	w.chosen("equals", map[string]int{first: 1})

	for preempt, back := range map[time.Duration]string{0: "gw2", 30 * time.Second: "gw3"} {
		w := calm(1, func(w *world) {
			for v := range w.policy {
				w.policy[v] = Policy{Prefer: []string{"gw3", "gw2"}, Preempt: preempt}
			}
		})
		w.chosen("preferred", map[string]int{"gw3": 1})
		w.hosts[2].powerOff()
		w.run(5 * time.Second)
		w.chosen("the next one that is preferred", map[string]int{"gw2": 1})
		w.hosts[2].start()
		w.run(25 * time.Second)
		w.chosen("the preferred one is back", map[string]int{"gw2": 1})
		w.run(10 * time.Second)
		w.chosen(fmt.Sprintf("preempt after %s", preempt), map[string]int{back: 1})
	}
}

// TestHandover makes hosts unable to serve a VIP, puts them on standby and stops them. Within
// milliseconds, the VIP must move to another host that can own it. After three moves in a minute,
// it must stay.
func TestHandover(t *testing.T) {
	w := newWorld(t, 1, 3, addresses(1))
	w.calm = true
	w.run(10 * time.Second)
	vip := netip.MustParseAddr("10.1.0.1")
	unable := func(h *host, yes bool) {
		h.change(func(m *Member) {
			if m.Cannot = nil; yes {
				m.Cannot = map[netip.Addr]string{vip: "no endpoint is usable"}
			}
		})
		w.run(20 * time.Millisecond)
	}
	leaves := func(why string, h *host) {
		t.Helper()
		if o := w.owner(vip); o == nil || o == h {
			t.Errorf("%s: owner of the VIP = %v, want another host", why, w.owners())
		}
	}
	h := w.owner(vip)
	for _, other := range w.hosts {
		unable(other, true)
	}
	if w.owner(vip) != h {
		t.Error("the VIP left its host although no other host can serve it")
	}
	for _, other := range w.hosts {
		unable(other, other == h)
	}
	leaves("it can't be served", h)
	unable(h, false)

	h = w.owner(vip)
	h.change(func(m *Member) { m.Standby = true })
	w.run(20 * time.Millisecond)
	leaves("standby", h)
	h.change(func(m *Member) { m.Standby = false })

	h = w.owner(vip)
	unable(h, true)
	if w.owner(vip) != h {
		t.Error("a VIP that moved three times in a minute moved again")
	}
	w.run(time.Minute)
	leaves("a minute later", h)

	h = w.owner(vip)
	h.stop(time.Hour)
	w.run(20 * time.Millisecond)
	leaves("its host ends", h)

	last := w.owner(vip)
	for _, other := range w.hosts {
		if other != h && other != last {
			other.powerOff() // so the session that ended first is not revoked again
		}
	}
	w.run(3 * time.Second)
	if w.owner(vip) != last {
		t.Error("owner of the VIP changed, want the last host")
	}
}

// TestStandbySpreadsVIPs puts a host on standby. The other hosts must own its VIPs in proportion to
// their weights, and the notes must name these hosts.
func TestStandbySpreadsVIPs(t *testing.T) {
	w := newWorld(t, 1, 3, addresses(340))
	w.calm = true
	w.run(10 * time.Second)
	first, got := w.hosts[0], w.owners() // one host has 114 VIPs, the others have 113
	for _, h := range w.hosts {
		if got[h.name] < got[first.name] {
			first = h
		}
	}
	first.change(func(m *Member) { m.Standby = true })
	w.run(10 * time.Second)
	for _, h := range w.hosts {
		if n := w.owners()[h.name]; h != first && n != 170 {
			t.Errorf("VIPs are on %v, want 170 on each", w.owners())
		}
		if to := " to " + h.name + " (standby)"; h != first && !strings.Contains(strings.Join(w.log, "\n"), to) {
			t.Errorf("no line has %q", to)
		}
	}
}

// TestForcedMove moves a VIP by force to a host that can't serve it. The VIP must stay there
// despite preferences, until the host can no longer own it. A move to a host that can't add the
// VIP, or is on standby, must be refused.
func TestForcedMove(t *testing.T) {
	vip := netip.MustParseAddr("10.1.0.1")
	w := newWorld(t, 1, 2, map[netip.Addr]Policy{vip: {Prefer: []string{"gw1"}, Preempt: time.Second}})
	w.calm = true
	w.run(10 * time.Second)
	from, to := w.hosts[0], w.hosts[1]
	move := func(force bool) {
		w.commit(Write{Put: []Put{{Key{Moves, vip.String()}, encode(Move{To: to.name, Force: force})}}})
		w.run(5 * time.Second)
	}
	got := func(what string, h *host) {
		t.Helper()
		if w.owner(vip) != h {
			t.Errorf("%s: owner of the VIP = %v, want %s", what, w.owners(), h.name)
		}
	}
	change := func(f func(*Member)) { to.change(f); w.run(20 * time.Millisecond) }

	change(func(m *Member) {
		m.Cannot, m.Absent = map[netip.Addr]string{vip: "it can't be added"}, []netip.Addr{vip}
	})
	move(true)
	got("it can't be added there", from)
	change(func(m *Member) { m.Absent, m.Standby = nil, true })
	move(true)
	got("there is standby", from)
	change(func(m *Member) { m.Standby = false })
	move(false)
	got("it can't be served there", from)
	move(true)
	got("it was moved there by force", to)
	change(func(m *Member) { m.Cannot = nil })
	w.run(2 * time.Minute) // until the VIP may move again
	got("it could be served there meanwhile", to)
	change(func(m *Member) { m.Cannot = map[netip.Addr]string{vip: "no endpoint is usable"} })
	got("it can't be served there again", to)
	change(func(m *Member) { m.Absent = []netip.Addr{vip} })
	got("it can't be there any more", from)
}

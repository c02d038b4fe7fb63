package failover

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"vipd/balancer/failover/local"
	"vipd/test/wait"
)

// disturbance is a fault that TestMovesUnderAllFaults injects while a VIP moves between two hosts.
type disturbance struct {
	name string
	do   func(w *world, v netip.Addr, from, to *host)
}

func (w *world) cutFor(h *host, other int) {
	k := [2]int{h.index, other}
	w.cut[k] = true
	w.after(time.Second, func() { delete(w.cut, k) })
}

func (h *host) restart() {
	h.epoch++
	h.node = nil
	h.w.after(100*time.Millisecond, h.start)
}

func (w *world) removeFor(v netip.Addr, d time.Duration) {
	all := func(absent bool) {
		w.absent[v] = absent
		for _, h := range w.hosts {
			if h.node != nil {
				h.updateVIPs()
			}
		}
	}
	all(true)
	w.after(d, func() { all(false) })
}

func (w *world) move(v netip.Addr, to *host) {
	w.commit(Write{Put: []Put{{Key{Moves, v.String()}, encode(Move{To: to.name})}}})
}

var disturbances = []disturbance{
	{"nothing", func(*world, netip.Addr, *host, *host) {}},
	{"moved again", func(w *world, v netip.Addr, _, to *host) { w.move(v, to) }},
	{"moved back", func(w *world, v netip.Addr, from, _ *host) { w.move(v, from) }},
	{"moved back and forth", func(w *world, v netip.Addr, from, to *host) {
		w.move(v, from)
		w.after(50*time.Millisecond, func() { w.move(v, to) })
	}},
	{"removed for 3 ms", func(w *world, v netip.Addr, _, _ *host) { w.removeFor(v, 3*time.Millisecond) }},
	{"removed for 0.42 s", func(w *world, v netip.Addr, _, _ *host) { w.removeFor(v, 420*time.Millisecond) }},
	{"giver cut from etcd", func(w *world, _ netip.Addr, from, _ *host) { w.cutFor(from, -1) }},
	{"giver cut from its peer", func(w *world, _ netip.Addr, from, to *host) { w.cutFor(from, to.index) }},
	{"giver paused", func(w *world, _ netip.Addr, from, _ *host) { from.stopped = w.now.Add(1500 * time.Millisecond) }},
	{"giver killed", func(_ *world, _ netip.Addr, from, _ *host) { from.restart() }},
	{"taker killed", func(_ *world, _ netip.Addr, _, to *host) { to.restart() }},
	{"giver stops", func(_ *world, _ netip.Addr, from, _ *host) {
		if from.node != nil {
			from.stop(100 * time.Millisecond)
		}
	}},
	{"giver's gate lapses", func(_ *world, _ netip.Addr, from, _ *host) {
		if from.opened = false; from.node != nil {
			from.input(func(now local.Time) []local.Action { return from.node.Lapsed(now, local.NotRefreshed, 0) })
		}
	}},
}

// moments returns when disturbances start, in milliseconds after the request for a move. They cover
// the move itself, and the moment when a transaction's outcome counts as unknown. Only "make soak"
// tests all of them.
func moments() []int {
	if !wait.Soaking() {
		return []int{6, 406}
	}
	return []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 100, 300, 400, 403, 406, 409, 412, 450, 455, 460, 600, 900}
}

// history is a test case: a VIP moves, its first two transactions have certain fates, and a
// disturbance starts at a certain moment.
type history struct {
	fates [2]fate
	at    time.Duration
	disturbance
}

// TestMovesUnderAllFaults moves a VIP between two hosts. It tests each pair of fates for the first
// two transactions with each disturbance at each moment. Two hosts must never answer at the same
// time, and in the end one host must answer.
func TestMovesUnderAllFaults(t *testing.T) {
	n := 0
	for i := range 16 * len(disturbances) * len(moments()) {
		part := func(values int) (v int) { v, i = i%values, i/values; return v }
		var h history
		h.disturbance = disturbances[part(len(disturbances))]
		h.at = time.Duration(moments()[part(len(moments()))]) * time.Millisecond
		for j := range h.fates {
			h.fates[j] = fate(part(4))
		}
		if n++; !h.happens(t) {
			break
		}
	}
	t.Logf("%d histories", n)
}

// happens runs the history. It reports whether one host answers in the end, and two hosts never
// answered at the same time.
func (h history) happens(t *testing.T) bool {
	t.Helper()
	w := newWorld(t, 1, 2, addresses(1))
	w.calm = true
	w.run(2 * time.Second)
	v := netip.MustParseAddr("10.1.0.1")
	from := w.owner(v)
	if from == nil {
		t.Fatal("the VIP has no owner")
	}
	to := w.hosts[1-from.index]
	w.log, w.fates = nil, h.fates[:]
	w.move(v, to)
	w.run(h.at)
	w.notef("%s", h.name)
	h.do(w, v, from, to)
	for range 10 { // most moves finish in the first 2 s
		if w.run(2 * time.Second); w.owner(v) != nil || w.dual != "" {
			break
		}
	}
	if w.dual == "" && w.owner(v) == nil {
		w.dual = "nobody answers after the faults"
	}
	if w.dual != "" {
		t.Errorf("fates of the transactions = %v: %s; log:\n%s", h.fates, w.dual, strings.Join(w.log, "\n"))
	}
	return w.dual == ""
}

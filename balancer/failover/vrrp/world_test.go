package vrrp_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/failover/vrrp"
)

// The simulated time advances in steps of a millisecond.
const (
	ms       = time.Millisecond
	interval = 100 * ms
	gateTime = interval / 2
)

// These are the mistakes that the model must find.
const (
	gateless        = "kernels have no gate"
	refreshesLapsed = "the refresher overlooks a lapse"
)

// world simulates two hosts with their kernels on one network, in virtual time.
type world struct {
	now   local.Time
	hosts []*host
	// mistake is the mistake (see above) that this world makes, or "".
	mistake string
	// packets holds the packets in transit. later holds the inputs that nodes will receive at a
	// given time.
	packets []packet
	later   []laterInput
	// spoil changes the packets of a host while they are in transit. If spoil is nil, the packets
	// stay unchanged.
	spoil func(from *host, d *vrrp.Datagram)
	// random determines the delay of each packet, up to 5 ms. If random is nil, each delay is 1 ms.
	random *rand.Rand
	// log contains all events if verbose is true.
	verbose bool
	log     []string
	// both is the longest period in which both hosts answered. nobody is the longest period without
	// an answer after the first answer.
	both, nobody           time.Duration
	bothSince, nobodySince local.Time
	wrong                  string
}

type laterInput struct {
	at local.Time
	to *host
	f  func(local.Time) []local.Action
}

type packet struct {
	to *host
	at local.Time
	d  vrrp.Datagram
}

// host simulates a kernel with a gate and a VIP, and a process with three threads.
type host struct {
	w     *world
	group vrrp.Group
	node  *vrrp.Node
	// gate is when the gate closes.
	gate                    local.Time
	bound                   bool
	loop, worker, refresher thread
	inbox                   []func(local.Time) []local.Action
	// opened, refreshed and deadline are the state of the thread that refreshes the gate.
	opened              bool
	refreshed, deadline local.Time
	ticked, checked     local.Time
	busy                local.Time // no thread acts before this time
	// acts counts the acts of the process. An act is atomic: a fault can only happen before or
	// after it.
	acts  int
	fault fault
	down  bool
	// adverts holds, for each advert, the number of the act that sent it. The function lost reports
	// whether advert n is lost.
	adverts []int
	lost    func(n int) bool
}

// thread holds a thread's remaining acts, and the end of its pause.
type thread struct {
	todo    []func()
	stopped local.Time
}

// fault is a fault in a process, just before act number act.
type fault struct {
	name string
	act  int
	do   func(h *host)
	// lasts is the duration of the fault. If 0, the process never continues. hangs reports whether
	// only one of the process's threads is affected.
	lasts time.Duration
	hangs bool
}

func newWorld(groups ...vrrp.Group) *world {
	w := &world{now: local.Time(time.Second), nobodySince: -1}
	for _, g := range groups {
		h := &host{w: w, group: g, lost: func(int) bool { return false }}
		w.hosts = append(w.hosts, h)
	}
	return w
}

// start starts a new process. The process first closes the gate and removes the VIP.
func (h *host) start() {
	h.w.notef("%s starts", h.group.Link.Source)
	h.gate, h.bound, h.opened, h.down, h.inbox = 0, false, false, false, nil
	h.loop, h.worker, h.refresher = thread{}, thread{}, thread{}
	h.node = vrrp.New([]vrrp.Group{h.group})
}

func (w *world) notef(format string, args ...any) {
	if !w.verbose {
		return
	}
	w.log = append(w.log, fmt.Sprintf("%6d ", time.Duration(w.now)/ms)+fmt.Sprintf(format, args...))
}

func (h *host) answers() bool { return h.bound && (h.gate > h.w.now || h.w.mistake == gateless) }

func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now < end; w.now = w.now.Add(ms) {
		w.deliver()
		for _, h := range w.hosts {
			h.step()
		}
		w.observe()
	}
}

// deliver gives each packet that is due to its host.
func (w *world) deliver() {
	for i := 0; i < len(w.packets); i++ {
		if p := w.packets[i]; p.at <= w.now {
			p.d.At = w.now
			p.to.input(func(now local.Time) []local.Action { return p.to.node.Received(now, p.d) })
			w.packets = slices.Delete(w.packets, i, i+1)
			i--
		}
	}
	for i := 0; i < len(w.later); i++ {
		if p := w.later[i]; p.at <= w.now {
			p.to.input(p.f)
			w.later = slices.Delete(w.later, i, i+1)
			i--
		}
	}
}

// observe measures for how long both hosts answer, and for how long no host answers.
func (w *world) observe() {
	n := 0
	for _, h := range w.hosts {
		if h.answers() {
			n++
		}
	}
	measure := func(is bool, since *local.Time, longest *time.Duration) {
		if !is {
			*since = 0
		} else if *since == 0 {
			*since = w.now
		} else if *since > 0 {
			*longest = max(*longest, w.now.Since(*since)+ms)
		}
	}
	if n > 1 && w.bothSince == 0 {
		w.notef("both answer")
		w.both = max(w.both, ms)
	}
	measure(n > 1, &w.bothSince, &w.both)
	if n > 0 || w.nobodySince >= 0 { // nobodySince is -1 before the first answer
		measure(n == 0, &w.nobodySince, &w.nobody)
	}
}

func (h *host) input(f func(local.Time) []local.Action) {
	if h.node != nil && !h.down {
		h.inbox = append(h.inbox, f)
	}
}

// step performs the acts that the threads of the host can perform in the current millisecond.
func (h *host) step() {
	if h.node == nil || h.down || h.w.now < h.busy && len(h.inbox) == 0 && len(h.loop.todo)+len(h.worker.todo)+len(h.refresher.todo) == 0 {
		return
	}
	if h.idle(&h.refresher) && h.w.now.Since(h.checked) >= gateTime/8 {
		h.refresher.todo = append(h.refresher.todo, h.check)
	}
	h.act(&h.refresher, 2)
	for h.idle(&h.loop) {
		if next := h.next(); next != nil {
			h.loop.todo = append(h.loop.todo, func() { h.handle(next) })
			h.act(&h.loop, 100)
			continue
		}
		break
	}
	h.act(&h.loop, 100)
	h.act(&h.worker, 1)
	h.busy = min(h.checked.Add(gateTime/8), h.ticked.Add(10*ms))
	if due := h.node.Next(); due > 0 {
		h.busy = min(h.busy, due)
	}
}

func (h *host) idle(t *thread) bool { return len(t.todo) == 0 && t.stopped <= h.w.now && !h.down }

func (h *host) act(t *thread, n int) {
	for ; n > 0 && len(t.todo) > 0 && t.stopped <= h.w.now && !h.down; n-- {
		if h.acts++; h.fault.do != nil && h.acts == h.fault.act {
			h.w.notef("%s: %s before act %d", h.group.Link.Source, h.fault.name, h.acts)
			h.fault.do(h)
			continue
		}
		do := t.todo[0]
		t.todo = t.todo[1:]
		do()
	}
}

// check performs the work of the refresher thread. It checks the deadline in one act, and refreshes
// the gate in the next act.
func (h *host) check() {
	at := h.w.now
	h.checked = at
	lapsed := at.Since(h.refreshed) > gateTime*4/5 && h.w.mistake != refreshesLapsed
	if h.opened && !lapsed && local.Passes(at, h.deadline, gateTime) {
		h.refresher.todo = append(h.refresher.todo, func() {
			if h.gate > h.w.now {
				h.gate = h.w.now.Add(gateTime)
			}
			h.refreshed = at
		})
	}
}

// next returns the next input of the node's loop. If the gate has lapsed, the lapse is the next
// input.
func (h *host) next() func(local.Time) []local.Action {
	if late := h.w.now.Since(h.refreshed); h.opened && late > gateTime*4/5 {
		h.opened = false
		return func(now local.Time) []local.Action { return h.node.Lapsed(now, local.NotRefreshed, late) }
	}
	if len(h.inbox) > 0 {
		first := h.inbox[0]
		h.inbox = h.inbox[1:]
		return first
	}
	if due := h.node.Next(); h.w.now.Since(h.ticked) >= 10*ms || due > h.ticked && due <= h.w.now {
		h.ticked = h.w.now
		return h.node.Tick
	}
	return nil
}

// handle passes an input to the node. Each action that the node returns becomes a separate act.
func (h *host) handle(f func(local.Time) []local.Action) {
	actions := f(h.w.now)
	h.deadline = h.node.Deadline()
	for _, a := range actions {
		switch a := a.(type) {
		case vrrp.Send:
			h.loop.todo = append(h.loop.todo, func() { h.send(a) })
		case local.Note:
			h.w.notef("%s: %s", h.group.Link.Source, a.Text)
		case local.Probe:
			h.probe(a)
		default:
			h.worker.todo = append(h.worker.todo, func() { h.work(a) })
		}
	}
}

// probe checks whether the other host has the VIP, and delivers the answer later.
func (h *host) probe(a local.Probe) {
	found := map[netip.Addr]string{}
	for _, other := range h.w.hosts {
		if other != h && other.answers() {
			found[a.Addrs[0]] = "02:00:00:00:00:01"
		}
	}
	h.w.later = append(h.w.later, laterInput{h.w.now.Add(a.Within), h, func(now local.Time) []local.Action { return h.node.Probed(now, a.Addrs, found) }})
}

func (h *host) send(s vrrp.Send) {
	at := h.w.now
	leave := func() {
		h.adverts = append(h.adverts, h.acts)
		h.w.notef("%s sends priority %d", h.group.Link.Source, s.Packets[0].Data[2])
		if h.lost(len(h.adverts)) {
			h.w.notef("which is lost")
			return
		}
		for _, other := range h.w.hosts {
			if other != h {
				delay := ms
				if h.w.random != nil {
					delay = time.Duration(1+h.w.random.IntN(5)) * ms
				}
				d := vrrp.Datagram{From: s.Source, To: s.Packets[0].To, TTL: vrrp.TTL, Data: s.Packets[0].Data}
				if h.w.spoil != nil {
					h.w.spoil(h, &d)
				}
				h.w.packets = append(h.w.packets, packet{other, h.w.now.Add(delay), d})
			}
		}
	}
	report := func() { h.handle(func(now local.Time) []local.Action { return h.node.Sent(now, s, at, nil) }) }
	h.loop.todo = append([]func(){leave, report}, h.loop.todo...)
}

// work performs an action of the node in the kernel.
func (h *host) work(a local.Action) {
	switch a := a.(type) {
	case local.OpenGate:
		if h.bound {
			h.w.wrong = "a gate was opened with the VIP bound"
		}
		h.gate, h.opened, h.refreshed = h.w.now.Add(gateTime), true, h.w.now
		h.input(func(now local.Time) []local.Action {
			actions := h.node.Opened(now, nil)
			if !h.opened { // the gate has lapsed before the node learns that it was open
				actions = append(actions, h.node.Lapsed(now, local.NotRefreshed, 0)...)
			}
			return actions
		})
	case local.CloseGate:
		h.gate, h.bound, h.opened = 0, false, false
		h.input(h.node.Closed)
	case local.Bind:
		h.bound = true
	case local.Unbind:
		h.bound = false
		if a.ID != 0 {
			h.input(func(now local.Time) []local.Action { return h.node.Unbound(now, a.ID) })
		}
	}
}

// The following functions inject faults into a process. A worker that hangs never performs another
// action.
func kill(h *host) { h.down = true }
func stopFor(d time.Duration) func(h *host) {
	return func(h *host) {
		for _, t := range []*thread{&h.loop, &h.worker, &h.refresher} {
			t.stopped = h.w.now.Add(d)
		}
	}
}
func hangLoop(h *host)   { h.loop.stopped = h.w.now.Add(time.Hour) }
func hangWorker(h *host) { h.worker.stopped = h.w.now.Add(time.Hour) }

func pair(a, b uint8, preempt time.Duration) []vrrp.Group {
	var all []vrrp.Group
	for i, priority := range []uint8{a, b} {
		all = append(all, vrrp.Group{
			Name: "main", RouterID: 51, Priority: priority, Version: 3, Interval: interval, Preempt: preempt,
			Link:      vrrp.Link{Source: netip.AddrFrom4([4]byte{10, 9, 0, byte(1 + i)})},
			Advertise: addrs("10.9.0.100"), VIPs: addrs("10.9.0.100"),
		})
	}
	return all
}

package owner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer/failover"
	"vipd/balancer/lib/wake"
)

// Kernel is what the owner needs of the host's kernel. All but Refresh are called by one goroutine, but for those that say so.
type Kernel interface {
	// Close closes the gate, so that no refresh opens it, and then takes every VIP away.
	Close() error
	// Open opens the gate.
	Open() error
	// Refresh keeps an open gate open, and leaves a closed one as it is. It never waits.
	Refresh()
	// Cover changes the VIPs, and the devices where they may be. What is bound is among them.
	Cover(places) error
	// Bind adds addresses, and announces them until they are unbound. It returns why, for each that could not be added.
	Bind([]netip.Addr) map[netip.Addr]error
	Unbind([]netip.Addr) error
	// Lost are the VIPs that Bind has added, and that are not there any more.
	Lost() []netip.Addr
	// Probe asks whether other hosts have VIPs, and returns their MACs. Any goroutine may call it.
	Probe(ctx context.Context, vips []netip.Addr) (map[netip.Addr]net.HardwareAddr, error)
	// Announced is how many addresses were announced, each time counted. Any goroutine may call it.
	Announced() uint64
	// Intact says what another program has changed of the gate; "" means nothing.
	Intact() (string, error)
	// Run does what is to be done beside all that, until ctx ends.
	Run(ctx context.Context)
	// End leaves a closed gate behind. Nothing is called after it.
	End() error
}

// Hears is what a kernel tells. Its functions must not block.
type Hears struct {
	// Rival is told when another host says that it has a VIP that is here.
	Rival func(netip.Addr, net.HardwareAddr)
	// Gone is told when a VIP may be lost.
	Gone func()
	// Reached is told the interface when one of the hosts answers that are to be within reach there, and these hosts.
	Reached func(on string, hosts []netip.Addr)
}

// Maker makes the part that changes the kernel, for these places.
type Maker func(places, Hears) (Kernel, error)

// cover has the kernel know other VIPs and devices.
type cover struct{ places }

// queue holds what a kernel is to do. It has no bound: the loop that adds to it must not wait for the worker, which waits for the loop.
type queue struct {
	wake wake.Signal
	mu   sync.Mutex // guards all
	all  []any      // actions, and covers
}

func (q *queue) add(a any) {
	q.mu.Lock()
	q.all = append(q.all, a)
	q.mu.Unlock()
	q.wake.Send()
}

// unbinds are Unbinds that follow each other.
type unbinds []failover.Unbind

// mostUnbound bounds the VIPs of unbinds: one that moves to another host is silent until all of them are removed.
const mostUnbound = 100

// take takes what comes first, Unbinds together; nil means nothing waits.
func (q *queue) take() (first any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var some unbinds
	for vips := 0; len(some) < len(q.all) && vips < mostUnbound; {
		u, is := q.all[len(some)].(failover.Unbind)
		if !is {
			break
		}
		some, vips = append(some, u), vips+len(u.Addrs)
	}
	switch {
	case len(some) > 0:
		first, q.all = some, q.all[len(some):]
	case len(q.all) > 0:
		first, q.all = q.all[0], q.all[1:]
	}
	if len(q.all) > 0 {
		q.wake.Send()
	}
	return first
}

// work is what a kernel does in order, apart from the loop.
type work struct {
	kernel Kernel
	timing failover.Timing
	queue  queue
	tell   func(func(failover.Time) []failover.Action)
	node   *failover.Node
	failed func(what string, err error)
	done   <-chan struct{}
	absent absent
	gone   wake.Signal

	// deadline is until when the session is confirmed. opened: the gate was opened, and refreshed is when it last was.
	deadline, refreshed atomic.Int64
	opened              atomic.Bool
	// late is the longest time by which a refresh came too late.
	late atomic.Int64
}

// retry is the time between attempts to close.
const retry = 50 * time.Millisecond

func (w *work) run() {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-w.done:
			return
		case <-w.queue.wake:
			w.act(w.queue.take())
		case <-look.C:
			w.look()
		case <-w.gone:
			w.restore()
		}
	}
}

// restore puts back what is gone from its interface.
func (w *work) restore() {
	lost := w.kernel.Lost()
	if len(lost) == 0 || !w.opened.Load() {
		return
	}
	failed := w.bind(lost)
	back := slices.DeleteFunc(lost, func(a netip.Addr) bool { return failed[a] != nil })
	if len(back) == 0 {
		return
	}
	note := failover.Note{Kind: failover.NoteBack, Text: fmt.Sprintf("put %v back, which had gone from their interfaces", back), VIPs: len(back)}
	w.tell(func(failover.Time) []failover.Action { return []failover.Action{note} })
}

// look rebuilds the gate where another program has changed it, and tries again to add what is absent.
func (w *work) look() {
	if again := w.absent.again(); len(again) > 0 {
		w.bind(again)
	}
	why, err := w.kernel.Intact()
	if err != nil {
		w.failed("looking at the gate", err)
	}
	if why != "" && w.opened.CompareAndSwap(true, false) {
		w.failed("another program has changed the gate", errors.New(why))
		w.lapse(failover.Changed)
	}
}

// lapse tells the node why its gate has to be closed.
func (w *work) lapse(why failover.Lapse) {
	w.tell(func(now failover.Time) []failover.Action { return w.node.Lapsed(now, why, 0) })
}

func (w *work) act(a any) {
	switch a := a.(type) {
	case cover:
		if err := w.kernel.Cover(a.places); err != nil {
			// What the gate does not stand for must not be bound while it is open.
			w.failed("changing the VIPs of the gate", err)
			w.act(failover.CloseGate{})
			w.lapse(failover.Changed)
		}
	case failover.CloseGate:
		w.opened.Store(false)
		w.absent.unbound(w.absent.again())
		for err := w.kernel.Close(); err != nil; err = w.kernel.Close() {
			w.failed("closing the gate", err) // nothing is opened before it is closed
			select {
			case <-w.done:
				return
			case <-time.After(retry):
			}
		}
		w.tell(w.node.Closed)
	case failover.OpenGate:
		began := now()
		err := w.kernel.Open()
		if err == nil {
			w.refreshed.Store(int64(began))
			w.opened.Store(true)
		}
		w.tell(func(now failover.Time) []failover.Action {
			actions := w.node.Opened(now, err)
			if err == nil && !w.opened.Load() { // it lapsed before the node knew that it was open
				actions = append(actions, w.node.Lapsed(now, failover.NotRefreshed, 0)...)
			}
			return actions
		})
	case failover.Bind:
		w.bind(a.Addrs)
	case unbinds:
		w.unbind(a)
	}
}

// unbind removes VIPs.
func (w *work) unbind(all unbinds) {
	var vips []netip.Addr
	for _, u := range all {
		vips = append(vips, u.Addrs...)
	}
	w.absent.unbound(vips)
	if err := w.kernel.Unbind(vips); err != nil {
		// What can't be taken away must be silent before anybody else may have it.
		w.failed("taking VIPs away", err)
		w.act(failover.CloseGate{})
		w.lapse(failover.StillBound)
		return
	}
	for _, u := range all {
		if u.ID != 0 {
			w.tell(func(now failover.Time) []failover.Action { return w.node.Unbound(now, u.ID) })
		}
	}
}

// bind adds VIPs, and returns why, for each that could not be added.
func (w *work) bind(vips []netip.Addr) (failed map[netip.Addr]error) {
	failed = w.kernel.Bind(vips)
	if err := w.absent.bound(vips, failed); err != nil {
		w.failed("adding VIPs", err)
	}
	return failed
}

// refresh prolongs the gate while the session is confirmed, until done.
func (w *work) refresh() {
	every := w.timing.Gate / 8
	for next := now(); ; next = next.Add(every) {
		at := now()
		if late := at.Since(next); late > time.Duration(w.late.Load()) {
			w.late.Store(int64(late))
		}
		if next < at {
			next = at
		}
		if w.opened.Load() && w.timing.Passes(at, failover.Time(w.deadline.Load())) {
			w.kernel.Refresh()
			w.refreshed.Store(int64(at))
		}
		select {
		case <-w.done:
			return
		default:
			time.Sleep(next.Add(every).Since(now()))
		}
	}
}

// lapsed says whether the gate may have closed by itself, and how long ago it was refreshed.
func (w *work) lapsed(at failover.Time) (late time.Duration, yes bool) {
	late = at.Since(failover.Time(w.refreshed.Load()))
	return late, w.opened.Load() && late > w.timing.Gate*4/5 && w.opened.CompareAndSwap(true, false)
}

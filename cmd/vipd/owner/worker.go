package owner

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover/local"
	"vipd/balancer/lib/wake"
)

// worker performs the kernel actions in order, separately from the loop.
type worker struct {
	kernel     Kernel
	user       gateUser
	queue      queue
	gate       refresher
	absent     absent
	lost       wake.Signal // sent when a VIP may be lost
	queueInput func(func(local.Time) []local.Action)
	failed     func(what string, err error)
	done       <-chan struct{}
}

func newWorker(k Kernel, u gateUser, gate time.Duration, tell func(func(local.Time) []local.Action), failed func(string, error), gone wake.Signal) *worker {
	return &worker{kernel: k, user: u, queue: queue{wake: wake.New()}, gate: refresher{kernel: k, timeout: gate}, lost: gone, queueInput: tell, failed: failed}
}

// closeRetry is the pause between two attempts to close the gate.
const closeRetry = 50 * time.Millisecond

func (w *worker) run() {
	check := time.NewTicker(time.Second)
	defer check.Stop()
	for {
		select {
		case <-w.done:
			return
		case <-w.queue.wake:
			w.act(w.queue.next())
		case <-check.C:
			w.check()
		case <-w.lost:
			w.restore()
		}
	}
}

// restore binds the VIPs that are missing from their interfaces.
func (w *worker) restore() {
	lost := w.kernel.Lost()
	if len(lost) == 0 || !w.gate.opened.Load() {
		return
	}
	failed := w.bind(lost)
	back := slices.DeleteFunc(lost, func(a netip.Addr) bool { return failed[a] != nil })
	if len(back) == 0 {
		return
	}
	note := local.Note{Kind: local.NoteBack, Text: fmt.Sprintf("restored VIPs that were missing from their interfaces: %v", back), VIPs: len(back)}
	w.queueInput(func(local.Time) []local.Action { return []local.Action{note} })
}

// check retries VIPs that could not be added, and reports if another program has changed the gate.
func (w *worker) check() {
	if again := w.absent.again(); len(again) > 0 {
		w.add(again)
	}
	why, err := w.kernel.Intact()
	if err != nil {
		w.failed("the gate can't be read", err)
	}
	if why != "" && w.gate.opened.CompareAndSwap(true, false) {
		w.failed("another program has changed the gate", errors.New(why))
		w.lapse(local.Changed)
	}
}

// lapse reports to the decider that the gate must be closed, and why.
func (w *worker) lapse(why local.Lapse) {
	w.queueInput(func(now local.Time) []local.Action { return w.user.Lapsed(now, why, 0) })
}

func (w *worker) act(a any) {
	switch a := a.(type) {
	case cover:
		if err := w.kernel.Cover(a.places); err != nil {
			// VIPs that the gate does not cover must not be bound while the gate is open.
			w.failed("the gate's VIPs can't be changed", err)
			w.close()
			w.lapse(local.Changed)
		}
	case local.CloseGate:
		w.close()
	case local.OpenGate:
		w.open()
	case local.Bind:
		w.add(a.Addrs)
	case unbinds:
		w.unbind(a)
	}
}

// close closes the gate. It returns only after the gate is closed, so a later action can't open the
// gate first.
func (w *worker) close() {
	w.gate.opened.Store(false)
	w.absent.unbound(w.absent.again())
	for err := w.kernel.Close(); err != nil; err = w.kernel.Close() {
		w.failed("the gate can't be closed", err)
		select {
		case <-w.done:
			return
		case <-time.After(closeRetry):
		}
	}
	w.queueInput(w.user.Closed)
}

func (w *worker) open() {
	err := w.gate.open()
	w.queueInput(func(now local.Time) []local.Action {
		actions := w.user.Opened(now, err)
		if err == nil && !w.gate.opened.Load() { // the gate lapsed before the decider processed that it was open
			actions = append(actions, w.user.Lapsed(now, local.NotRefreshed, 0)...)
		}
		return actions
	})
}

func (w *worker) unbind(all unbinds) {
	var vips []netip.Addr
	for _, u := range all {
		vips = append(vips, u.Addrs...)
	}
	w.absent.unbound(vips)
	if err := w.kernel.Unbind(vips); err != nil {
		// A VIP that can't be removed must be silenced before another host may have it.
		w.failed("removing VIPs", err)
		w.close()
		w.lapse(local.StillBound)
		return
	}
	for _, u := range all {
		if u.ID != 0 {
			w.queueInput(func(now local.Time) []local.Action { return w.user.Unbound(now, u.ID) })
		}
	}
}

// add adds VIPs that the decider wants, and reports the added VIPs to it.
func (w *worker) add(vips []netip.Addr) {
	failed := w.bind(vips)
	if added := slices.DeleteFunc(slices.Clone(vips), func(a netip.Addr) bool { return failed[a] != nil }); len(added) > 0 {
		w.queueInput(func(now local.Time) []local.Action { return w.user.Bound(now, added) })
	}
}

// bind adds VIPs. It returns an error for each VIP that could not be added.
func (w *worker) bind(vips []netip.Addr) (failed map[netip.Addr]error) {
	failed = w.kernel.Bind(vips)
	if err := w.absent.bound(vips, failed); err != nil {
		w.failed("adding VIPs", err)
	}
	return failed
}

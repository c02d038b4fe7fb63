package owner

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"vipd/balancer/failover"
	"vipd/balancer/failover/local"
	"vipd/test/wait"
)

// refusing is a kernel that has lost VIPs, and refuses one of them.
type refusing struct {
	Kernel
	lost    []netip.Addr
	refuses netip.Addr
}

func (k *refusing) Lost() []netip.Addr { return k.lost }

func (k *refusing) Bind([]netip.Addr) map[netip.Addr]error {
	return map[netip.Addr]error{k.refuses: errors.New("IPv6 is disabled")}
}

// TestRestoredVIPs restores VIPs that another program removed. The event must name the restored
// VIPs. A VIP that the kernel refuses must be retried.
func TestRestoredVIPs(t *testing.T) {
	back, refused := netip.MustParseAddr("10.9.0.100"), netip.MustParseAddr("fd09::100")
	for _, lost := range [][]netip.Addr{{back, refused}, {refused}} {
		var notes []local.Action
		w := worker{
			kernel:     &refusing{lost: slices.Clone(lost), refuses: refused},
			queueInput: func(f func(local.Time) []local.Action) { notes = append(notes, f(0)...) },
			failed:     func(string, error) {},
		}
		w.gate.opened.Store(true)
		w.restore()
		var want []local.Action
		if len(lost) == 2 {
			want = []local.Action{local.Note{Kind: local.NoteBack, Text: "restored VIPs that were missing from their interfaces: [10.9.0.100]", VIPs: 1}}
		}
		if fmt.Sprint(notes) != fmt.Sprint(want) {
			t.Errorf("lost %v: notes = %v, want %v", lost, notes, want)
		}
		if again := w.absent.again(); !slices.Equal(again, []netip.Addr{refused}) {
			t.Errorf("VIPs to retry = %v, want %s", again, refused)
		}
	}
}

// removing is a kernel that counts removed VIPs and calls.
type removing struct {
	Kernel
	vips, calls int
}

func (k *removing) Unbind(vips []netip.Addr) error {
	k.vips, k.calls = k.vips+len(vips), k.calls+1
	return nil
}

func (k *removing) Intact() (string, error) { return "", nil }

// TestRemovedAtOnce removes many VIPs at the same time. The loop must continue while its worker is
// busy, and few calls must be sufficient to remove all VIPs.
func TestRemovedAtOnce(t *testing.T) {
	const many = 10_000
	var all []local.Action
	for i := range many {
		all = append(all, local.Unbind{ID: i + 1, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}})
	}
	ctx, end := context.WithCancel(t.Context())
	k := &removing{}
	c := &core{inputs: make(chan func(local.Time) []local.Action), ended: make(chan struct{}), decider: &byEtcd{Node: failover.New(failover.Options{NewID: newID})}}
	c.worker = newWorker(k, c.decider, 0, c.queueInput, nil, nil)
	c.worker.done = ctx.Done()
	var parts sync.WaitGroup
	t.Cleanup(func() { close(c.ended); end(); parts.Wait() })
	parts.Go(c.worker.run)
	handled := make(chan bool, 1)
	go func() {
		c.handle(ctx, func(local.Time) []local.Action { return all })
		handled <- true
	}()
	wait.For(t, wait.Patience, "the loop to go on", func() bool { return len(handled) > 0 })
	<-handled
	for range many {
		c.handle(ctx, <-c.inputs)
	}
	end()
	parts.Wait()
	if most := many/maxUnbound + 1; k.vips != many || k.calls > most {
		t.Errorf("removed VIPs = %d in %d calls, want %d in at most %d", k.vips, k.calls, many, most)
	}
}

type opens struct{ Kernel }

func (opens) Open() error { return nil }

// TestOpenedLate makes a gate lapse after it was opened, but before the node has processed that it
// is open. The gate must be closed, so it can be opened again.
func TestOpenedLate(t *testing.T) {
	timing := failover.NewTiming(time.Hour)
	n := failover.New(failover.Options{Name: "a", Member: failover.Member{Boot: 7, Weight: 1}, Timing: timing, NewID: newID, Wall: time.Now})
	member := failover.RecordChange{Key: failover.Key{Kind: failover.Nodes, Name: "a"}, Revision: 5, Text: []byte(`{"boot":"0000000000000007","weight":1}`)}
	var did []local.Action
	for _, a := range n.Stored(now(), []failover.RecordChange{member}, 5, true) {
		if begins, is := a.(failover.Write); is {
			did = append(did, n.Wrote(now(), begins.ID, failover.Done, 6)...)
		}
	}
	if !slices.Contains(did, local.Action(local.OpenGate{})) {
		t.Fatalf("actions = %v, want OpenGate", did)
	}
	w := newWorker(opens{}, &byEtcd{Node: n}, timing.Gate, nil, nil, nil)
	w.queueInput = func(opened func(local.Time) []local.Action) {
		at := now().Add(timing.Gate * 9 / 10)
		late, yes := w.gate.lapsed(at)
		if !yes {
			t.Error("gate is open = true, want false")
		}
		did = append(n.Lapsed(at, local.NotRefreshed, late), opened(at)...)
	}
	w.act(local.OpenGate{})
	if !slices.Contains(did, local.Action(local.CloseGate{})) {
		t.Errorf("actions = %v, want CloseGate", did)
	}
}

type refreshes struct {
	opens
	count int
}

func (k *refreshes) Refresh() { k.count++ }

// TestRefreshOverdue wakes the refresher after the gate has closed because of its timeout. Even if
// the deadline is far in the future, the refresher must not refresh the gate, because the loop
// would then miss the lapse.
func TestRefreshOverdue(t *testing.T) {
	k := &refreshes{}
	r := refresher{kernel: k, timeout: 100 * time.Millisecond}
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	opened := local.Time(r.refreshed.Load())
	r.deadline.Store(int64(opened.Add(time.Hour)))
	r.refresh(opened.Add(70 * time.Millisecond))
	if k.count != 1 {
		t.Fatalf("refreshes before the timeout = %d, want 1", k.count)
	}
	r.refresh(opened.Add(200 * time.Millisecond))
	if k.count != 1 {
		t.Errorf("overdue gate: refreshes = %d, want none", k.count-1)
	}
	if late, lapsed := r.lapsed(opened.Add(210 * time.Millisecond)); !lapsed || late != 140*time.Millisecond {
		t.Errorf("lapsed = %s, %t, want 140ms, true", late, lapsed)
	}
}

package dnat

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
)

// flowTable simulates a conntrack table with a few flows.
type flowTable struct {
	mu     sync.Mutex
	flows  map[string]conntrack.Flow
	broken bool
	sweeps int // number of searches
	// before is called when a search starts, and after is called when the search has returned all
	// flows. Both may be nil.
	before, after func()
}

func (f *flowTable) Cut(_ context.Context, keys map[balancer.Key]bool, stale func(*conntrack.Flow) bool) (n int, err error) {
	if f.before != nil {
		f.before()
	}
	if f.after != nil {
		defer f.after()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sweeps++; f.broken {
		return 0, errors.New("broken")
	}
	for name, flow := range f.flows {
		if keys[flow.Frontend()] && stale(&flow) {
			delete(f.flows, name)
			n++
		}
	}
	return n, nil
}

func (f *flowTable) Close() error { return nil }

// key returns the key of the n-th frontend. For consecutive n, the protocol alternates between TCP
// and UDP.
func key(n int) balancer.Key {
	return balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(n)}), Port: 80, Proto: []balancer.Protocol{balancer.TCP, balancer.UDP}[n%2]}
}

// address returns the i-th endpoint's address.
func address(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}), 8080)
}

// web returns a frontend with key k, whose active backends are the endpoints with these numbers.
func web(k balancer.Key, numbers ...int) *balancer.Frontend {
	f := &balancer.Frontend{Key: k, Service: "web", Policy: balancer.Policy{Forward: balancer.NATForward, DrainTimeout: time.Minute}}
	for _, i := range numbers {
		f.Backends = append(f.Backends, balancer.Backend{Addr: address(i), State: balancer.Active, Weight: 1})
	}
	return f
}

// removed returns f, with its last backend draining until the argument until.
func removed(f *balancer.Frontend, until time.Time) *balancer.Frontend {
	g := *f
	g.Backends = slices.Clone(f.Backends)
	last := &g.Backends[len(g.Backends)-1]
	last.State, last.Weight, last.Until = balancer.Removed, 0, until
	return &g
}

// add adds a flow from a client of frontend k to endpoint i. If i is 0, the flow has no endpoint.
func (f *flowTable) add(name string, k balancer.Key, i int, status conntrack.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	client := netip.MustParseAddrPort("10.1.0.2:1000")
	to := k.AddrPort()
	if i > 0 {
		to = address(i)
	}
	f.flows[name] = conntrack.Flow{Proto: k.Proto, Orig: conntrack.Tuple{Src: client, Dst: k.AddrPort()}, Reply: conntrack.Tuple{Src: to, Dst: client}, Status: status}
}

func (f *flowTable) breaks(broken bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = broken
}

// TestStaleFlowsAreDropped changes the frontends of a mode whose connections the kernel tracks.
// Flows that are older than the virtual server must be removed immediately. Flows that an earlier
// mode translated must be removed when their endpoint's drain time ends.
func TestStaleFlowsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &flowTable{flows: map[string]conntrack.Flow{}}
		fl := NewFlows(table, slog.New(slog.DiscardHandler))
		has := func(when, name string, want bool) {
			t.Helper()
			synctest.Wait()
			table.mu.Lock()
			defer table.mu.Unlock()
			if _, got := table.flows[name]; got != want {
				t.Errorf("%s: %s exists = %v, want %v", when, name, got, want)
			}
		}
		take := func(was, f *balancer.Frontend) {
			fl.Applied([]dataplane.Change{{Key: was.Key, Old: was, New: f}}, nil)
			synctest.Wait()
		}
		begin := func(f *balancer.Frontend) {
			fl.Applied([]dataplane.Change{{Key: f.Key, New: f}}, nil)
			synctest.Wait()
		}
		dns, front := web(key(1), 1, 2), web(key(0), 1, 2)
		table.add("an untranslated datagram", dns.Key, 0, 0)
		table.add("an unanswered, untranslated connection", front.Key, 0, 0)
		table.add("an answered, untranslated connection", front.Key, 0, conntrack.SeenReply)
		table.add("a flow of another service", key(7), 0, 0)
		direct := web(key(3), 1)
		direct.Forward = balancer.DRForward
		table.add("a datagram by dr", direct.Key, 0, 0)
		table.breaks(true)
		begin(dns)
		begin(front)
		begin(direct)
		has("while conntrack refuses deletions", "an untranslated datagram", true)
		table.breaks(false)
		time.Sleep(retryCut)
		has("after the services were added", "an untranslated datagram", false)
		has("after the services were added", "an unanswered, untranslated connection", false)
		has("after the services were added", "an answered, untranslated connection", true)
		has("after the services were added", "a flow of another service", true)
		has("after the services were added", "a datagram by dr", true)

		empty := web(key(4))
		begin(empty)
		time.Sleep(time.Minute)
		table.add("a refused attempt", empty.Key, 0, 0)
		take(empty, web(empty.Key, 1))
		time.Sleep(maxPause)
		has("after the first endpoint was added", "a refused attempt", false)

		table.add("a flow", dns.Key, 2, 0)
		take(dns, web(dns.Key, 1))
		has("after its endpoint was removed", "a flow", false)

		table.add("a connection", front.Key, 2, conntrack.SeenReply)
		table.add("a connection to the other endpoint", front.Key, 1, conntrack.SeenReply)
		leaving := removed(front, time.Now().Add(time.Minute))
		take(front, leaving)
		time.Sleep(30 * time.Second)
		take(leaving, front)
		time.Sleep(time.Hour)
		has("after a canceled drain", "a connection", true)
		take(front, removed(front, time.Now().Add(time.Minute)))
		time.Sleep(time.Minute - time.Second)
		has("before the end of the drain time", "a connection", true)
		time.Sleep(time.Second)
		has("after the end of the drain time", "a connection", false)
		take(front, nil)
		time.Sleep(time.Minute - time.Second)
		has("before the end of the frontend's drain timeout", "a connection to the other endpoint", true)
		time.Sleep(time.Second)
		has("after the end of the frontend's drain timeout", "a connection to the other endpoint", false)
		if err := fl.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestSweepsAreShared makes several changes within a short time. All of them must share one search
// of conntrack. Adding an endpoint must not cause a search.
func TestSweepsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &flowTable{}
		fl := NewFlows(table, slog.New(slog.DiscardHandler))
		time.Sleep(time.Millisecond)
		want := func(when string, n int) {
			t.Helper()
			time.Sleep(2 * minPause)
			synctest.Wait()
			table.mu.Lock()
			defer table.mu.Unlock()
			if table.sweeps != n {
				t.Errorf("%s: searches of conntrack = %d, want %d", when, table.sweeps, n)
			}
			table.sweeps = 0
		}
		take := func(was, f *balancer.Frontend) { fl.Applied([]dataplane.Change{{Key: f.Key, Old: was, New: f}}, nil) }
		for n := range 10 {
			take(nil, web(key(2*n), 1, 2))
			time.Sleep(minPause / 20)
		}
		want("new services", 1)
		time.Sleep(time.Minute)
		want("the end of the drain time of another mode's connections", 1)
		take(web(key(0), 1, 2), web(key(0), 1, 2, 3))
		want("a new endpoint", 0)
		leaving := removed(web(key(0), 1, 2, 3), time.Now().Add(time.Minute))
		take(web(key(0), 1, 2, 3), leaving)
		want("a draining endpoint", 1)
		time.Sleep(time.Minute)
		want("the end of its drain time", 1)
		take(leaving, web(key(0), 1, 2))
		want("the removal of the drained endpoint", 1)
		take(web(key(0), 1, 2), web(key(0), 1))
		take(web(key(2), 1, 2), web(key(2), 1))
		want("two endpoints removed at the same time", 1)
		if err := fl.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestReturnsDuringASweep removes a frontend, and adds it again during the resulting sweep (a
// search for flows to remove). Connections that are opened afterwards must stay.
func TestReturnsDuringASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &flowTable{flows: map[string]conntrack.Flow{}}
		front := web(key(0), 1)
		front.DrainTimeout = 0
		var fl *Flows
		var gone, returned atomic.Bool
		table.before = func() {
			if gone.Load() && !returned.Swap(true) {
				fl.Applied([]dataplane.Change{{Key: front.Key, New: front}}, nil)
				table.add("a new connection", front.Key, 1, conntrack.DstNAT)
			}
		}
		fl = NewFlows(table, slog.New(slog.DiscardHandler))
		fl.Applied([]dataplane.Change{{Key: front.Key, New: front}}, nil)
		time.Sleep(time.Minute)
		gone.Store(true)
		fl.Applied([]dataplane.Change{{Key: front.Key, Old: front}}, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !returned.Load() || len(table.flows) != 1 {
			t.Errorf("frontend added during the sweep = %t, flows = %v; want true and only the new connection", returned.Load(), table.flows)
		}
		if err := fl.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestGoesDuringASweep removes a drained endpoint at the end of a sweep that started before its
// drain time was over. The endpoint's connections must be removed.
func TestGoesDuringASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &flowTable{flows: map[string]conntrack.Flow{}}
		all, end := web(key(0), 1, 2, 3), time.Now().Add(10*time.Minute)
		draining := removed(all, end)
		var fl *Flows
		var late, gone atomic.Bool
		table.after = func() {
			if late.Load() && !gone.Swap(true) {
				time.Sleep(time.Second)
				fl.Applied([]dataplane.Change{{Key: all.Key, Old: draining, New: web(key(0), 1)}}, nil)
			}
		}
		fl = NewFlows(table, slog.New(slog.DiscardHandler))
		fl.Applied([]dataplane.Change{{Key: all.Key, New: all}}, nil)
		table.add("to the endpoint that drains", all.Key, 3, conntrack.DstNAT)
		fl.Applied([]dataplane.Change{{Key: all.Key, Old: all, New: draining}}, nil)
		time.Sleep(time.Until(end) - 500*time.Millisecond)
		late.Store(true)
		fewer := *draining // the second endpoint is removed without a drain
		fewer.Backends = slices.Delete(slices.Clone(draining.Backends), 1, 2)
		fl.Applied([]dataplane.Change{{Key: all.Key, Old: draining, New: &fewer}}, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !gone.Load() || len(table.flows) > 0 {
			t.Errorf("endpoint removed during the sweep = %t, flows = %v; want true and no flows", gone.Load(), table.flows)
		}
		if err := fl.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestConnectionsOfAnotherModeAreItsOwn uses a connection that userspace mode has redirected to its
// own port. While that port accepts connections, the connection must not be stale, and this package
// must not count or list it.
func TestConnectionsOfAnotherModeAreItsOwn(t *testing.T) {
	fl := NewFlows(&flowTable{}, slog.New(slog.DiscardHandler))
	f := web(key(0), 1, 2)
	fl.process([]dataplane.Change{{Key: f.Key, New: f}}, nil)
	flow := conntrack.Flow{
		Proto: balancer.TCP, Status: conntrack.DstNAT | conntrack.SeenReply, Orig: conntrack.Tuple{Dst: f.AddrPort()},
		Reply: conntrack.Tuple{Src: netip.MustParseAddrPort("10.1.0.1:40001")},
	}
	if fl.judge(time.Now())(&flow) {
		t.Error("before the frontend's removal: stale = true, want false")
	}
	later := fl.judge(time.Now().Add(time.Hour))
	one, other := Accepts(40001), Accepts(40001)
	one()
	one()
	if later(&flow) {
		t.Error("while the port accepts connections: stale = true, want false")
	}
	ranged := flow
	ranged.Orig.Dst, ranged.Ports = netip.AddrPortFrom(f.Addr, 8003), balancer.NewPortRange(8000, 8009)
	if !isAccepted(&ranged) {
		t.Error("connection to the fourth port of a range: isAccepted = false, want true")
	}
	other()
	if !later(&flow) {
		t.Error("after the port was closed: stale = false, want true")
	}
	if port, counted := fl.portOf(&flow); counted {
		t.Errorf("connection's bytes are counted for %v, want for no port", port)
	}
	if fl.leadsTo(f, flow.Backend()) {
		t.Error("the connection is listed, want it missing")
	}
}

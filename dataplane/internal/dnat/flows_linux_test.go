package dnat

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
	"vipd/test/lab"
	"vipd/test/wait"
)

// tracked returns the servers of the frontend's connections in conntrack, sorted by address.
func (r *rig) tracked(proto balancer.Protocol) []netip.Addr {
	r.Helper()
	var all []netip.Addr
	conn := r.tracker.traffic.conn
	if err := conn.Each(context.Background(), conntrack.Filter{Proto: proto, Dst: vip(), Port: 80}, func(f *conntrack.Flow) error {
		all = append(all, f.Backend().Addr())
		return nil
	}); err != nil {
		r.Fatal(err)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// untilCut waits until the only connection ends, which must not happen before due.
func (r *rig) untilCut(due time.Time) {
	r.Helper()
	seen := time.Now()
	wait.For(r.T, time.Until(due)+5*time.Second, "the connection to be cut", func() bool {
		now := time.Now()
		n := len(r.tracked(balancer.TCP))
		if n > 0 {
			seen = now
		}
		return n == 0
	})
	if time.Now().Before(due) {
		r.Errorf("the connection ended %s before its drain time was over", due.Sub(seen))
	}
}

// TestRestartKnowsConnections simulates a restart while a connection is open. The new process must
// list the connection, and must end it when the frontend is removed.
func TestRestartKnowsConnections(t *testing.T) {
	r := newRig(t)
	f := r.web(balancer.TCP, 2)
	e := r.drive(f)
	r.ask(balancer.TCP)
	e = e.restart(f)
	conns, err := dataplane.Connections(context.Background(), r.tracker, dataplane.ConnectionQuery{})
	if err != nil || len(conns) != 1 || conns[0].Service != "web" {
		t.Errorf("after a restart: connections = %+v, %v; want one connection to the service web", conns, err)
	}
	if n := r.counted().Backends[0].Active; n != 1 {
		t.Errorf("live connections = %d, want 1", n)
	}
	e.set() // the removed frontend has a drain timeout of 0
	r.untilCut(time.Now())
}

// TestRestartKeepsTime simulates restarts during drains, and removes an endpoint while no process
// is running. Each connection must end when its drain time ends.
func TestRestartKeepsTime(t *testing.T) {
	t.Run("draining", func(t *testing.T) {
		r := newRig(t)
		e := r.drive(r.web(balancer.TCP, 2))
		r.ask(balancer.TCP)
		f := r.web(balancer.TCP, 2, 3)
		b := &f.Backends[0]
		b.State, b.Weight, b.Until = balancer.Removed, 0, time.Now().Add(3*time.Second)
		e.set(f)
		e.restart(f)
		r.untilCut(b.Until)
	})
	t.Run("gone", func(t *testing.T) {
		r := newRig(t)
		e := r.drive(r.web(balancer.TCP, 2))
		r.ask(balancer.TCP)
		f := r.web(balancer.TCP, 3)
		f.DrainTimeout = 2 * time.Second
		due := time.Now().Add(f.DrainTimeout)
		e.restart(f)
		r.untilCut(due)
	})
}

// TestFailingIsCut makes the health checks of an endpoint fail. Its service cuts connections to
// such endpoints, so they must end.
func TestFailingIsCut(t *testing.T) {
	for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		t.Run(string(proto), func(t *testing.T) {
			r := newRig(t)
			e := r.drive(r.web(proto, 2))
			r.ask(proto)
			if len(r.tracked(proto)) != 1 {
				t.Fatal("connections in conntrack = 0, want 1 because the connection may continue")
			}
			f := r.web(proto, 2, 3)
			b := &f.Backends[0]
			b.State, b.Weight = balancer.Down, 0
			e.set(f)
			if len(r.tracked(proto)) != 1 {
				t.Error("connections in conntrack = 0, want 1 because the connection may continue")
			}
			f = r.web(proto, 2, 3)
			b = &f.Backends[0]
			b.State, b.Weight, b.Until = balancer.Down, 0, time.Unix(0, 0).UTC()
			e.set(f)
			wait.For(t, 5*time.Second, "the connection to be cut", func() bool { return len(r.tracked(proto)) == 0 })
		})
	}
}

// TestDrainsGetTimes changes when a started drain ends, and changes a frontend's drain_timeout
// before removing the frontend. Connections must end at the new deadlines.
func TestDrainsGetTimes(t *testing.T) {
	t.Run("endpoint", func(t *testing.T) {
		r := newRig(t)
		e := r.drive(r.web(balancer.TCP, 2))
		r.ask(balancer.TCP)
		drained := func(until time.Time) *balancer.Frontend {
			f := r.web(balancer.TCP, 2, 3)
			f.Backends[0].State, f.Backends[0].Weight, f.Backends[0].Until = balancer.Draining, 0, until
			return f
		}
		e.set(drained(time.Time{}))
		until := time.Now().Add(time.Second)
		e.set(drained(until))
		r.untilCut(until)
	})
	t.Run("frontend", func(t *testing.T) {
		r := newRig(t)
		f := r.web(balancer.TCP, 2)
		f.DrainTimeout = time.Hour
		e := r.drive(f)
		r.ask(balancer.TCP)
		g := r.web(balancer.TCP, 2)
		g.DrainTimeout = time.Second
		e.set(g)
		due := time.Now().Add(g.DrainTimeout)
		e.set()
		r.untilCut(due)
	})
}

// TestReturnKeepsTime removes a frontend, and adds it again with another endpoint. A connection
// from before the removal must end when its own drain time is over, even if later connections end
// earlier.
func TestReturnKeepsTime(t *testing.T) {
	r := newRig(t)
	f := r.web(balancer.TCP, 2)
	f.DrainTimeout = 3 * time.Second
	r.apply(f)
	r.ask(balancer.TCP)
	due := time.Now().Add(f.DrainTimeout)
	r.remove(f)
	r.apply(r.web(balancer.TCP, 3))
	r.ask(balancer.TCP)
	if got := r.tracked(balancer.TCP); !slices.Equal(got, []netip.Addr{r.address(2), r.address(3)}) && time.Now().Before(due) {
		t.Fatalf("servers of the connections = %s, want both servers", got)
	}
	r.apply(r.web(balancer.TCP, 4)) // this frontend's previous endpoint has no drain time
	wait.For(t, 5*time.Second, "the later connection to be cut", func() bool { return !slices.Contains(r.tracked(balancer.TCP), r.address(3)) })
	if !slices.Contains(r.tracked(balancer.TCP), r.address(2)) && time.Now().Before(due) {
		t.Error("the earlier connection was deleted before its drain time was over")
	}
	r.untilCut(due)
}

// TestUDPMovesAfterFailure makes conntrack refuse to delete flows. The next attempt must move these
// flows to another backend.
func TestUDPMovesAfterFailure(t *testing.T) {
	r := newRig(t)
	r.apply(r.web(balancer.UDP, 2))
	client, _ := r.ask(balancer.UDP)
	good := r.tracker.flows.conn
	bad, err := conntrack.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := bad.Close(); err != nil {
		t.Fatal(err)
	}
	f := r.web(balancer.UDP, 3)
	batch := []dataplane.Change{{Key: f.Key, New: f}}
	r.tracker.flows.conn = bad
	var failed dataplane.KeyErrors
	if err := r.Apply(context.Background(), batch); !errors.As(err, &failed) || failed[f.Key] == nil {
		t.Errorf("without conntrack: Apply = %v, want an error for the key", err)
	}
	r.tracker.flows.conn = good
	if err := r.Apply(context.Background(), batch); err != nil {
		t.Fatal(err)
	}
	if answer, err := lab.Ask(client); err != nil || answer.Server != "s3" {
		t.Errorf("server = %q, error = %v; want s3", answer.Server, err)
	}
}

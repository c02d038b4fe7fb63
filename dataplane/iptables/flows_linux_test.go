package iptables

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
	"vipd/test/wait"
)

// bareHost keeps nothing: these tests are about rules and flows.
type bareHost struct{}

func (bareHost) Prepare(context.Context, balancer.Desired) error { return nil }
func (bareHost) Finish(context.Context, snap.Map[balancer.Key, *balancer.Frontend]) error {
	return nil
}
func (bareHost) Intact(context.Context) (string, error) { return "", nil }
func (bareHost) Resync()                                {}
func (bareHost) Problems() []balancer.Problem           { return nil }

// driven is an engine over the rig's dataplane.
type driven struct {
	*rig
	engine *dataplane.Engine
	stop   func()
	sets   int64
}

// drive has an engine carry out what it is told, until stop or the end of the test.
func (r *rig) drive(frontends ...*balancer.Frontend) *driven {
	r.Helper()
	e := &driven{rig: r, engine: dataplane.NewEngine(dataplane.Options{Dataplane: r.d, Host: bareHost{}, Log: slog.New(slog.DiscardHandler)})}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.engine.Run(ctx) }()
	stopped := false
	e.stop = func() {
		if cancel(); !stopped {
			<-ended
		}
		stopped = true
	}
	r.Cleanup(e.stop)
	e.set(frontends...)
	return e
}

// set returns when all is carried out.
func (e *driven) set(frontends ...*balancer.Frontend) {
	e.Helper()
	var d balancer.Desired
	for _, f := range frontends {
		d.Frontends = d.Frontends.Set(f.Key, f)
	}
	e.sets++
	d.Revision.Store = e.sets
	e.engine.Set(d)
	wait.For(e.T, 10*time.Second, "the engine to carry it out", func() bool {
		s := e.engine.Status()
		return s.Ready && s.Applied.Store == e.sets && len(s.Failing) == 0
	})
}

// restart is a new process over the rules that the last one has left.
func (e *driven) restart(frontends ...*balancer.Frontend) *driven {
	e.Helper()
	backend := e.d.families[xtables.IPv4].tool.Backend()
	e.stop()
	if err := e.d.Close(context.Background(), true); err != nil {
		e.Fatal(err)
	}
	d, err := New(context.Background(), Options{Backend: backend})
	if err != nil {
		e.Fatal(err)
	}
	e.d = d
	return e.drive(frontends...)
}

// remove takes a frontend away.
func (r *rig) remove(f *balancer.Frontend) {
	r.Helper()
	if err := r.d.Apply(context.Background(), []dataplane.Change{{Key: f.Key, Old: f}}); err != nil {
		r.Fatal(err)
	}
}

// tracked are the servers that conntrack leads clients of the frontend to, sorted.
func (r *rig) tracked(proto balancer.Protocol) []netip.Addr {
	r.Helper()
	var all []netip.Addr
	conn := r.d.traffic.conn
	if err := conn.Each(context.Background(), conntrack.Filter{Proto: proto, Dst: vip(), Port: 80}, func(f *conntrack.Flow) error {
		all = append(all, f.Backend().Addr())
		return nil
	}); err != nil {
		r.Fatal(err)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// untilCut waits for the end of the only connection, and checks that it does not come before due.
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
		r.Errorf("the connection was last seen %s before its time", due.Sub(seen))
	}
}

// TestRestartKnowsConnections has a process know and end the connections that were made before it began, and write
// nothing for it.
func TestRestartKnowsConnections(t *testing.T) {
	eachBackend(t, func(r *rig) {
		f := r.web(balancer.TCP, 2)
		e := r.drive(f)
		r.ask(balancer.TCP)
		e = e.restart(f)
		conns, err := r.d.Connections(context.Background())
		if err != nil || len(conns) != 1 || conns[0].Service != "web" {
			t.Errorf("connections after a restart: %+v, %v", conns, err)
		}
		total, backends, _ := r.counted()
		if b := backends[f.Backends[0].Addr]; total != 1 || b.Active != 1 {
			t.Errorf("counted %d connections, %d live; want 1 and 1", total, b.Active)
		}
		y := r.d.families[xtables.IPv4]
		if c := y.chains[y.fronts[f.Key].chain]; c.text != 0 || c.rules == 0 {
			t.Errorf("the chain was written though it was right: %+v", c)
		}
		if n := e.engine.Status().Repairs; n != 0 {
			t.Errorf("%d repairs of what nobody broke", n)
		}
		e.set() // its drain timeout is 0
		r.untilCut(time.Now())
	})
}

// TestRestartKeepsTime has connections end at their time in spite of a restart, that of an endpoint that went during it
// included.
func TestRestartKeepsTime(t *testing.T) {
	t.Run("draining", func(t *testing.T) {
		r := newRig(t, xtables.NFT)
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
		r := newRig(t, xtables.NFT)
		e := r.drive(r.web(balancer.TCP, 2))
		r.ask(balancer.TCP)
		f := r.web(balancer.TCP, 3)
		f.DrainTimeout = 2 * time.Second
		due := time.Now().Add(f.DrainTimeout)
		e.restart(f)
		r.untilCut(due)
	})
}

// TestFailingIsCut has an endpoint fail its checks whose service cuts the connections then.
func TestFailingIsCut(t *testing.T) {
	for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		t.Run(string(proto), func(t *testing.T) {
			r := newRig(t, xtables.NFT)
			e := r.drive(r.web(proto, 2))
			r.ask(proto)
			if len(r.tracked(proto)) != 1 {
				t.Fatal("there is no connection to cut")
			}
			f := r.web(proto, 2, 3)
			b := &f.Backends[0]
			b.State, b.Weight = balancer.Down, 0
			e.set(f)
			if len(r.tracked(proto)) != 1 {
				t.Error("it was cut though it may live on")
			}
			f = r.web(proto, 2, 3)
			b = &f.Backends[0]
			b.State, b.Weight, b.Until = balancer.Down, 0, time.Unix(0, 0).UTC()
			e.set(f)
			wait.For(t, 5*time.Second, "the connection to be cut", func() bool { return len(r.tracked(proto)) == 0 })
		})
	}
}

// TestDrainsGetTimes has an endpoint that drains already get an end, and a frontend another drain timeout.
func TestDrainsGetTimes(t *testing.T) {
	t.Run("endpoint", func(t *testing.T) {
		r := newRig(t, xtables.NFT)
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
		r := newRig(t, xtables.NFT)
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

// TestReturnKeepsTime has the connections of a frontend that went end at their time, though another has come to its key,
// and those of that one at theirs.
func TestReturnKeepsTime(t *testing.T) {
	r := newRig(t, xtables.NFT)
	f := r.web(balancer.TCP, 2)
	f.DrainTimeout = 3 * time.Second
	r.apply(f)
	r.ask(balancer.TCP)
	due := time.Now().Add(f.DrainTimeout)
	r.remove(f)
	r.apply(r.web(balancer.TCP, 3))
	r.ask(balancer.TCP)
	if got := r.tracked(balancer.TCP); !slices.Equal(got, []netip.Addr{r.address(2), r.address(3)}) {
		t.Fatalf("connections to %s, want one to each server", got)
	}
	r.apply(r.web(balancer.TCP, 4)) // takes away an endpoint that is owed nothing
	wait.For(t, 5*time.Second, "the later connection to be cut alone", func() bool {
		return slices.Equal(r.tracked(balancer.TCP), []netip.Addr{r.address(2)})
	})
	r.untilCut(due)
}

// TestUDPMovesAfterFailure has flows move with the next try when conntrack refuses the first.
func TestUDPMovesAfterFailure(t *testing.T) {
	r := newRig(t, xtables.NFT)
	r.apply(r.web(balancer.UDP, 2))
	client, _ := r.ask(balancer.UDP)
	good := r.d.flows.conn
	bad, err := conntrack.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := bad.Close(); err != nil {
		t.Fatal(err)
	}
	f := r.web(balancer.UDP, 3)
	batch := []dataplane.Change{{Key: f.Key, New: f}}
	r.d.flows.conn = bad
	var failed dataplane.KeyErrors
	if err := r.d.Apply(context.Background(), batch); !errors.As(err, &failed) || failed[f.Key] == nil {
		t.Errorf("without conntrack Apply says %v", err)
	}
	r.d.flows.conn = good
	if err := r.d.Apply(context.Background(), batch); err != nil {
		t.Fatal(err)
	}
	if answer, err := lab.Ask(client); err != nil || answer.Server != "s3" {
		t.Errorf("answered by %q, %v; want s3", answer.Server, err)
	}
}

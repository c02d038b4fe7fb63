package ipvsnl

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"vipd/balancer"
)

// TestFake shows what only the fake has: faults, a memory of what it was asked, and traffic that one makes up.
func TestFake(t *testing.T) {
	f := NewFake()
	f.Schedulers = []string{"wrr"}
	broken := errors.New("broken")
	s, to := Service{Key: key("10.96.0.1:80"), Scheduler: "wrr"}, Destination{Addr: netip.MustParseAddrPort("10.2.0.1:8080"), Forward: balancer.NATForward}
	f.Fault = func(o Op) error {
		if o.Destination.Weight == 7 {
			return broken
		}
		return nil
	}
	faulty := to
	faulty.Weight = 7
	ops := []Op{{AddService, s, Destination{}}, {AddDestination, s, faulty}, {AddDestination, s, to}}
	if errs := f.Do(t.Context(), ops); len(errs) != 3 || errs[0] != nil || !errors.Is(errs[1], broken) || errs[2] != nil {
		t.Fatal(errs)
	}
	if !slices.Equal(f.Ops(), ops) {
		t.Errorf("got %v, want %v", f.Ops(), ops)
	}
	if err := f.SetDestination(s.Key, to.Addr, func(d *DestinationState) { d.Active, d.OutBytes = 3, 1<<40 }); err != nil {
		t.Fatal(err)
	}
	want := DestinationState{Destination: to, Active: 3, Stats: Stats{OutBytes: 1 << 40}}
	if got, err := f.Destinations(t.Context(), s.Key); err != nil || !slices.Equal(got, []DestinationState{want}) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	c := Connection{Proto: balancer.TCP, Client: to.Addr, Frontend: s.Key.AddrPort(), Backend: to.Addr, State: "established"}
	f.SetConnections([]Connection{c, c})
	for got, err := range f.Connections(t.Context()) {
		if got != c || err != nil {
			t.Errorf("got %+v, %v", got, err)
		}
		break
	}
	if has, err := f.HasScheduler(t.Context(), "sh"); has || err != nil {
		t.Errorf("it has sh: %v, %v", has, err)
	}
	f.Flush()
	if _, err := f.Service(t.Context(), s.Key); !errors.Is(err, ErrNoService) {
		t.Errorf("got %v, want %v", err, ErrNoService)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	refuses(t, f)
}

// refuses wants everything to be refused because c is closed.
func refuses(t *testing.T, c Conn) {
	t.Helper()
	ctx := t.Context()
	_, service := c.Service(ctx, key("10.96.0.1:80"))
	_, services := c.Services(ctx)
	_, destinations := c.Destinations(ctx, key("10.96.0.1:80"))
	_, table := c.Table(ctx)
	_, count := c.Services4(ctx)
	_, timeouts := c.Timeouts(ctx)
	_, scheduler := c.HasScheduler(ctx, "wrr")
	var connections error
	for _, connections = range c.Connections(ctx) {
	}
	for i, err := range []error{
		errors.Join(c.Do(ctx, fleet(1, 0))...), service, services, destinations, table, count, timeouts,
		c.SetTimeouts(ctx, Timeouts{TCP: time.Second}), scheduler, connections,
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("call %d: got %v, want %v", i, err, os.ErrClosed)
		}
	}
}

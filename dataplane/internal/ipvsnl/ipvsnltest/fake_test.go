package ipvsnltest

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// TestFake uses features that only a Fake has: injected failures, recorded requests, and simulated
// traffic. Each feature must take effect.
func TestFake(t *testing.T) {
	f, web := NewFake(), balancer.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Proto: balancer.TCP}
	f.Schedulers = []string{"wrr"}
	broken := errors.New("broken")
	s, to := ipvsnl.Service{Key: web, Scheduler: "wrr"}, ipvsnl.Destination{Addr: netip.MustParseAddrPort("10.2.0.1:8080"), Forward: balancer.NATForward}
	f.Fault = func(o ipvsnl.Op) error {
		if o.Destination.Weight == 7 {
			return broken
		}
		return nil
	}
	faulty := to
	faulty.Weight = 7
	ops := []ipvsnl.Op{
		{Verb: ipvsnl.AddService, Service: s}, {Verb: ipvsnl.AddDestination, Service: s, Destination: faulty}, {Verb: ipvsnl.AddDestination, Service: s, Destination: to},
	}
	if errs := f.Do(t.Context(), ops); len(errs) != 3 || errs[0] != nil || !errors.Is(errs[1], broken) || errs[2] != nil {
		t.Fatal(errs)
	}
	if !slices.Equal(f.Ops(), ops) {
		t.Errorf("Ops = %v, want %v", f.Ops(), ops)
	}
	if err := f.SetDestination(s.Key, to.Addr, func(d *ipvsnl.DestinationState) { d.Active, d.OutBytes = 3, 1<<40 }); err != nil {
		t.Fatal(err)
	}
	want := ipvsnl.DestinationState{Destination: to, Active: 3, Stats: ipvsnl.Stats{OutBytes: 1 << 40}}
	if got, err := f.Destinations(t.Context(), s.Key); err != nil || !slices.Equal(got, []ipvsnl.DestinationState{want}) {
		t.Errorf("destinations = %+v, %v; want %+v", got, err, want)
	}
	c := ipvsnl.Connection{Proto: balancer.TCP, Client: to.Addr, Frontend: s.Key.AddrPort(), Backend: to.Addr, State: "established"}
	f.SetConnections([]ipvsnl.Connection{c, c})
	for got, err := range f.Connections(t.Context()) {
		if got != c || err != nil {
			t.Errorf("connection = %+v, %v; want %+v", got, err, c)
		}
		break
	}
	if has, err := f.HasScheduler(t.Context(), "sh"); has || err != nil {
		t.Errorf("HasScheduler(sh) = %v, %v; want false", has, err)
	}
	f.Flush()
	if _, err := f.Service(t.Context(), s.Key); !errors.Is(err, ipvsnl.ErrNoService) {
		t.Errorf("error = %v, want %v", err, ipvsnl.ErrNoService)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Services(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: error = %v, want %v", err, os.ErrClosed)
	}
}

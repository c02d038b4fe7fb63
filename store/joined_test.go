package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/store"
	"vipd/store/storetest"
	"vipd/test/wait"
)

// TestJoinedIsASource runs the test suite for sources with a Joined whose node has no services of
// its own, so all services are from its fleet.
func TestJoinedIsASource(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Place { return fleetPlace{newMemory()} })
}

type fleetPlace struct{ fleet *memory }

func (p fleetPlace) Source() store.Source {
	return &store.Joined{Local: newMemory(), Fleet: p.fleet}
}
func (p fleetPlace) Write(name balancer.Name, fields map[string]any) {
	p.fleet.Define(name, fields, nil)
}
func (p fleetPlace) Delete(name balancer.Name) { p.fleet.Delete(name) }

func (fleetPlace) Paused() bool { return false }

// TestJoined makes random changes to a local source and a fleet's source. After each change, the
// snapshot of Joined must equal the result of model.
func TestJoined(t *testing.T) {
	for seed := range uint64(wait.Soak(40, 200)) {
		r := rand.New(rand.NewPCG(seed, 7))
		local, fleet := newMemory(), newMemory()
		last := follow(t, &store.Joined{Local: local, Fleet: fleet})
		for range 30 {
			step(r, local, fleet)
			want := model(local.Snapshot(), fleet.Snapshot())
			wait.For(t, 10*time.Second, fmt.Sprintf("seed %d: both to be joined", seed), func() bool {
				return describe(last()) == want
			})
		}
	}
}

// follow watches a source until the test ends. The returned function returns the last published
// snapshot.
func follow(t *testing.T, s store.Source) func() store.Snapshot {
	var last = make(chan store.Snapshot, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, func(s store.Snapshot) {
			select {
			case <-last:
			default:
			}
			last <- s
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Watch = %v, want nil", err)
		}
	})
	var held store.Snapshot
	return func() store.Snapshot {
		select {
		case held = <-last:
		default:
		}
		return held
	}
}

func step(r *rand.Rand, local, fleet *memory) {
	name := balancer.Name(fmt.Sprintf("s%d", r.IntN(4)))
	addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(3))})
	id, target := balancer.EndpointID{Service: name, ID: addr.String()}, balancer.Target{Service: name, Addr: addr}
	switch r.IntN(8) {
	case 0, 1:
		local.Set(&balancer.Service{Name: name, Origin: balancer.Origin{File: "vipd.toml", Line: r.IntN(9)}})
	case 2:
		local.Delete(name)
	case 3:
		fleet.Set(&balancer.Service{Name: name, Origin: balancer.Origin{Key: "/vipd/services/" + string(name), Created: r.Int64N(9)}})
	case 4:
		fleet.Delete(name)
	case 5:
		fleet.SetEndpoint(id, &balancer.Endpoint{Address: addr, Weight: r.IntN(3)})
	case 6:
		fleet.DeleteEndpoint(id)
	case 7:
		if weight := r.IntN(3); weight > 0 {
			fleet.SetOverride(target, &balancer.Override{Weight: &weight})
		} else {
			fleet.DeleteOverride(target)
		}
	}
}

// model joins two snapshots in the simplest way, and describes the result.
func model(local, fleet store.Snapshot) string {
	out := fleet
	for name, s := range local.Services.All() {
		if f := fleet.Services.At(name); f != nil {
			out.Problems = append(out.Problems, balancer.Problem{Service: name, Origin: f.Origin})
		}
		out.Services = out.Services.Set(name, s)
	}
	drop := func(name balancer.Name) bool { return local.Services.Has(name) }
	out.Endpoints = without(out.Endpoints, func(id balancer.EndpointID) bool { return drop(id.Service) })
	out.Overrides = without(out.Overrides, func(t balancer.Target) bool { return drop(t.Service) })
	return describe(out)
}

func without[K snap.Ordered[K], V comparable](m snap.Map[K, V], drop func(K) bool) snap.Map[K, V] {
	for key := range m.All() {
		if drop(key) {
			m = m.Delete(key)
		}
	}
	return m
}

// describe lists the content of a snapshot, except the texts of problems.
func describe(s store.Snapshot) string {
	var b strings.Builder
	for name, service := range s.Services.All() {
		fmt.Fprintln(&b, "service", name, service.Origin)
	}
	for id, e := range s.Endpoints.All() {
		fmt.Fprintln(&b, "endpoint", id, e.Address, e.Weight)
	}
	for t, o := range s.Overrides.All() {
		fmt.Fprintln(&b, "override", t, *o.Weight)
	}
	problems := slices.Clone(s.Problems)
	slices.SortFunc(problems, func(a, b balancer.Problem) int { return a.Service.Compare(b.Service) })
	for _, p := range problems {
		fmt.Fprintln(&b, "problem", p.Service, p.Origin)
	}
	return b.String()
}

// TestJoinedProblems joins two sources that define the same service. The fleet's source also has an
// error. A problem must name both definitions, and the error must be reported.
func TestJoinedProblems(t *testing.T) {
	local, fleet := newMemory(), newMemory()
	local.Set(&balancer.Service{Name: "web", Origin: balancer.Origin{File: "/etc/vipd/vipd.toml", Line: 3}})
	fleet.Set(&balancer.Service{Name: "web", Origin: balancer.Origin{Key: "/vipd/services/web"}})
	last := follow(t, &store.Joined{Local: local, Fleet: away{fleet, errors.New("etcd is away")}})
	wait.For(t, 10*time.Second, "both to be joined", func() bool { return last().Services.Len() == 1 })
	s := last()
	if want := fleet.Snapshot().Revision; s.Revision != want {
		t.Errorf("revision = %d, want the fleet's %d", s.Revision, want)
	}
	if s.Connected || s.Err == nil || !strings.Contains(s.Err.Error(), "etcd is away") {
		t.Errorf("connected = %v, error = %v; want false and the fleet source's error", s.Connected, s.Err)
	}
	if len(s.Problems) != 1 || !strings.Contains(s.Problems[0].String(), "/vipd/services/web") || !strings.Contains(s.Problems[0].Text, "/etc/vipd/vipd.toml:3") {
		t.Errorf("problems = %v, want one that names both definitions", s.Problems)
	}
}

// TestJoinedRetained joins a local source that retains a service because an error may hide its
// definition. The joined snapshot must also list this service as retained and vanished.
func TestJoinedRetained(t *testing.T) {
	local, fleet := newMemory(), newMemory()
	local.Set(&balancer.Service{Name: "web", Origin: balancer.Origin{File: "/etc/vipd/vipd.toml", Line: 3}})
	fleet.Set(&balancer.Service{Name: "dns", Origin: balancer.Origin{Key: "/vipd/services/dns"}})
	last := follow(t, &store.Joined{Local: retaining{local}, Fleet: fleet})
	wait.For(t, 10*time.Second, "both to be joined", func() bool { return last().Services.Len() == 2 })
	if s := last(); !slices.Equal(s.Retained, []balancer.Name{"web"}) || !slices.Equal(s.Vanished, []balancer.Name{"web"}) {
		t.Errorf("Retained = %v, Vanished = %v, want web in each", s.Retained, s.Vanished)
	}
}

// retaining is a source that reports all its services as vanished and retained.
type retaining struct{ store.Source }

func (r retaining) Watch(ctx context.Context, publish func(store.Snapshot)) error {
	return r.Source.Watch(ctx, func(s store.Snapshot) {
		s.Retained = slices.Collect(s.Services.Keys())
		s.Vanished = s.Retained
		publish(s)
	})
}

// away is a source that is never connected, because of the error err.
type away struct {
	store.Source
	err error
}

func (a away) Watch(ctx context.Context, publish func(store.Snapshot)) error {
	return a.Source.Watch(ctx, func(s store.Snapshot) {
		s.Connected, s.Err = false, a.err
		publish(s)
	})
}

// TestJoinedEnds joins a source whose Watch returns an error. The Watch of Joined must return this
// error, without a snapshot.
func TestJoinedEnds(t *testing.T) {
	want := errors.New("it can't go on")
	j := &store.Joined{Local: newMemory(), Fleet: ending{want}}
	if err := j.Watch(t.Context(), func(store.Snapshot) { t.Error("a snapshot was published although the fleet was never read") }); !errors.Is(err, want) {
		t.Errorf("Watch = %v, want %v", err, want)
	}
}

type ending struct{ err error }

func (e ending) Watch(context.Context, func(store.Snapshot)) error { return e.err }

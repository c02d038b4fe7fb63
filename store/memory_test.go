package store_test

import (
	"cmp"
	"context"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
	"vipd/store"
	"vipd/store/storetest"
)

// memory is a source that a test fills with services, endpoints and overrides. Its methods are safe
// for concurrent use, before and while Watch runs. The test must not change a value that it has
// passed to a method.
type memory struct {
	mu       sync.Mutex
	state    store.Snapshot
	problems map[balancer.Name][]balancer.Problem
	watchers map[wake.Signal]bool
}

var _ store.Source = (*memory)(nil)

// newMemory returns a source without services, endpoints and overrides.
func newMemory() *memory {
	return &memory{
		state:    store.Snapshot{Revision: 1, Connected: true},
		problems: map[balancer.Name][]balancer.Problem{}, watchers: map[wake.Signal]bool{},
	}
}

// Watch publishes the current state, and the state after each change, until ctx ends. Changes that
// happen during a call to publish are published together. Several goroutines may call Watch at the
// same time.
func (s *memory) Watch(ctx context.Context, publish func(store.Snapshot)) error {
	changed := wake.New()
	s.mu.Lock()
	s.watchers[changed] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, changed)
		s.mu.Unlock()
	}()
	for published := (store.Snapshot{}); ; {
		// A value may have changed and changed back in the meantime. It is then equal, but has
		// another pointer.
		if state := s.Snapshot().Keeping(published); published.Revision == 0 || !state.Same(published) {
			publish(state)
			published = state
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// Snapshot returns the current state.
func (s *memory) Snapshot() store.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *memory) Set(service *balancer.Service) {
	s.change(func(next *store.Snapshot) {
		delete(s.problems, service.Name)
		next.Services = put(next.Services, service.Name, service)
	})
}

// Define sets a service from the fields of its definition. If the definition has an error, the
// service does not change. The definition's problems are published and returned.
func (s *memory) Define(name balancer.Name, fields, defaults map[string]any) []balancer.Problem {
	origin := balancer.Origin{Key: "memory/" + string(name)}
	where := func(string) balancer.Origin { return origin }
	service, problems := balancer.DecodeService(name, fields, defaults, where, balancer.SeverityError)
	s.change(func(next *store.Snapshot) {
		s.problems[name] = problems
		if service != nil {
			next.Services = put(next.Services, name, service)
		}
	})
	return problems
}

func (s *memory) Delete(name balancer.Name) {
	s.change(func(next *store.Snapshot) {
		delete(s.problems, name)
		next.Services = next.Services.Delete(name)
	})
}

func (s *memory) SetEndpoint(id balancer.EndpointID, endpoint *balancer.Endpoint) {
	s.change(func(next *store.Snapshot) { next.Endpoints = put(next.Endpoints, id, endpoint) })
}

func (s *memory) DeleteEndpoint(id balancer.EndpointID) {
	s.change(func(next *store.Snapshot) { next.Endpoints = next.Endpoints.Delete(id) })
}

func (s *memory) SetOverride(target balancer.Target, override *balancer.Override) {
	s.change(func(next *store.Snapshot) { next.Overrides = put(next.Overrides, target, override) })
}

func (s *memory) DeleteOverride(target balancer.Target) {
	s.change(func(next *store.Snapshot) { next.Overrides = next.Overrides.Delete(target) })
}

// put sets the value of a key, unless the key already has an equal value in m.
func put[K snap.Ordered[K], V any](m snap.Map[K, *V], key K, value *V) snap.Map[K, *V] {
	if old, ok := m.Get(key); ok && reflect.DeepEqual(old, value) {
		return m
	}
	return m.Set(key, value)
}

// change calls edit with the state, and wakes the watchers if this has changed the state.
func (s *memory) change(edit func(*store.Snapshot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.state
	edit(&next)
	next.Problems = nil
	for _, problems := range s.problems {
		next.Problems = append(next.Problems, problems...)
	}
	slices.SortStableFunc(next.Problems, func(a, b balancer.Problem) int { return cmp.Compare(a.Service, b.Service) })
	if next.Same(s.state) {
		return
	}
	next.Revision++
	s.state = next
	for changed := range s.watchers {
		changed.Send()
	}
}

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Place { return memoryPlace{newMemory()} })
}

type memoryPlace struct{ source *memory }

func (p memoryPlace) Source() store.Source { return p.source }

func (p memoryPlace) Write(name balancer.Name, fields map[string]any) {
	p.source.Define(name, fields, nil)
}

func (p memoryPlace) Delete(name balancer.Name) { p.source.Delete(name) }

func (memoryPlace) Paused() bool { return false }

func TestMemoryKeepsEqualValues(t *testing.T) {
	s := newMemory()
	id := balancer.EndpointID{Service: "web", ID: "a"}
	target := balancer.Target{Service: "web", Addr: netip.MustParseAddr("192.168.1.1")}
	endpoint, override := &balancer.Endpoint{Weight: 1}, &balancer.Override{By: "me"}
	s.SetEndpoint(id, endpoint)
	s.SetOverride(target, override)
	before := s.Snapshot()
	if before.Endpoints.At(id) != endpoint || before.Overrides.At(target) != override {
		t.Fatalf("endpoint = %v, override = %v, want the pointers that the test has set", before.Endpoints.At(id), before.Overrides.At(target))
	}
	s.SetEndpoint(id, &balancer.Endpoint{Weight: 1})
	s.SetOverride(target, &balancer.Override{By: "me"})
	if after := s.Snapshot(); after.Revision != before.Revision || !after.Same(before) || after.Endpoints.At(id) != endpoint {
		t.Errorf("after setting equal values: state = %+v, want %+v", after, before)
	}
	s.DeleteEndpoint(id)
	s.DeleteOverride(target)
	if after := s.Snapshot(); after.Endpoints.Len() != 0 || after.Overrides.Len() != 0 || after.Revision != before.Revision+2 {
		t.Errorf("after both deletions: state = %+v, want no endpoint, no override and 2 more revisions", after)
	}
}

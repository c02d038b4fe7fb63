package storetest

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"sync"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/balancer/wake"
	"vipd/store"
)

// Memory is a source that a test fills itself with services, endpoints and overrides. Its methods may be called by several
// goroutines at once, before and while Watch runs. What it is given must not be changed afterwards.
type Memory struct {
	mu       sync.Mutex
	state    store.Snapshot
	problems map[balancer.Name][]balancer.Problem
	watchers map[wake.Signal]bool
}

var _ store.Source = (*Memory)(nil)

// NewMemory returns an empty source.
func NewMemory() *Memory {
	return &Memory{
		state:    store.Snapshot{Revision: 1, Connected: true},
		problems: map[balancer.Name][]balancer.Problem{}, watchers: map[wake.Signal]bool{},
	}
}

// Watch publishes the state, now and after changes, until ctx ends. Changes that are made while publish runs are
// published together. Several may watch.
func (s *Memory) Watch(ctx context.Context, publish func(store.Snapshot)) error {
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
		// Values may have changed and come back in between, with other pointers.
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

// Snapshot returns the state as it is now.
func (s *Memory) Snapshot() store.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Set adds a service, or replaces the one of its name.
func (s *Memory) Set(service *balancer.Service) {
	s.change(func(next *store.Snapshot) {
		delete(s.problems, service.Name)
		next.Services = set(next.Services, service.Name, service)
	})
}

// Define is Set for a service as users write it, as balancer.DecodeService reads it. A definition with an error leaves
// the service as it was, and its problems are published and returned.
func (s *Memory) Define(name balancer.Name, fields, defaults map[string]any) []balancer.Problem {
	origin := balancer.Origin{Key: "memory/" + string(name)}
	where := func(string) balancer.Origin { return origin }
	service, problems := balancer.DecodeService(name, fields, defaults, where, balancer.SeverityError)
	s.change(func(next *store.Snapshot) {
		s.problems[name] = problems
		if service != nil {
			next.Services = set(next.Services, name, service)
		}
	})
	return problems
}

// Delete removes a service, if it is there.
func (s *Memory) Delete(name balancer.Name) {
	s.change(func(next *store.Snapshot) {
		delete(s.problems, name)
		next.Services = next.Services.Delete(name)
	})
}

// SetEndpoint adds an endpoint that is published apart from its service, or replaces the one of its ID.
func (s *Memory) SetEndpoint(id balancer.EndpointID, endpoint *balancer.Endpoint) {
	s.change(func(next *store.Snapshot) { next.Endpoints = set(next.Endpoints, id, endpoint) })
}

// DeleteEndpoint removes an endpoint that was published apart from its service, if it is there.
func (s *Memory) DeleteEndpoint(id balancer.EndpointID) {
	s.change(func(next *store.Snapshot) { next.Endpoints = next.Endpoints.Delete(id) })
}

// SetOverride says something of endpoints by hand, in place of what was said before.
func (s *Memory) SetOverride(target balancer.Target, override *balancer.Override) {
	s.change(func(next *store.Snapshot) { next.Overrides = set(next.Overrides, target, override) })
}

// DeleteOverride takes back what was said of endpoints by hand.
func (s *Memory) DeleteOverride(target balancer.Target) {
	s.change(func(next *store.Snapshot) { next.Overrides = next.Overrides.Delete(target) })
}

// set sets a value, unless an equal one is there: that keeps its pointer.
func set[K snap.Ordered[K], V any](m snap.Map[K, *V], key K, value *V) snap.Map[K, *V] {
	if old, ok := m.Get(key); ok && reflect.DeepEqual(old, value) {
		return m
	}
	return m.Set(key, value)
}

// change makes one change, and wakes those who watch if it makes a difference.
func (s *Memory) change(edit func(*store.Snapshot)) {
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

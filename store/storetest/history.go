package storetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"vipd/balancer"
	"vipd/store"
	"vipd/test/wait"
)

// testEnd cancels ctx in the first call to publish, perhaps while another definition is being
// written. Watch must return nil.
func testEnd(t *testing.T, p Place) {
	p.Write("web", definition(1))
	source := p.Source()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- source.Watch(ctx, func(store.Snapshot) { cancel() }) // perhaps while the second definition is being written
	}()
	p.Write("dns", definition(2))
	wait.For(t, within, "Watch to return", func() bool { return len(done) == 1 })
	if err := <-done; err != nil {
		t.Errorf("Watch after the end of ctx = %v, want nil", err)
	}
}

// model is the model of a service: its last definition, and the definitions that a source may have.
type model struct {
	// now contains the fields of the last definition, or is nil if there is no definition. bad is
	// set if the definition has an error.
	now map[string]any
	bad bool
	// seen contains the valid definitions that a source may have read since it was last up to date.
	// A nil definition means that the service is missing.
	seen []map[string]any
}

// testHistories writes and deletes random definitions. A source may miss a definition that is
// immediately overwritten, but it must reach the final state.
func testHistories(t *testing.T, f Factory) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := history{Rand: rand.New(rand.NewPCG(seed, 42)), t: t, place: f(t), services: map[balancer.Name]*model{}}
			for range h.IntN(4) {
				h.step()
			}
			r := watch(t, h.place.Source())
			for range 12 {
				for range h.IntN(8) {
					h.step()
				}
				h.waitForModel(r)
			}
		})
	}
}

type history struct {
	*rand.Rand
	t        *testing.T
	place    Place
	services map[balancer.Name]*model
}

func (h *history) step() {
	name := name(h.IntN(6))
	m := h.services[name]
	if m == nil {
		m = &model{seen: []map[string]any{nil}}
		h.services[name] = m
	}
	n := h.IntN(5)
	switch h.IntN(4) {
	case 0:
		if m.now == nil {
			return
		}
		h.place.Delete(name)
		m.now, m.bad = nil, false
	case 1:
		m.now, _ = wrong(n)
		m.bad = true
		h.place.Write(name, m.now)
		return // a definition with an error is not added to seen
	default:
		m.now, m.bad = definition(n), false
		h.place.Write(name, m.now)
	}
	m.seen = append(m.seen, m.now)
}

// waitForModel waits until the last snapshot agrees with all services' models.
func (h *history) waitForModel(r *record) {
	h.t.Helper()
	last := r.wait("what was written", func(s store.Snapshot) bool {
		bad := map[balancer.Name]bool{}
		for _, p := range s.Problems {
			bad[p.Service] = true
		}
		for name := range s.Services.Keys() {
			if h.services[name] == nil {
				return false
			}
		}
		for name, m := range h.services {
			may := m.possible(h.place.Paused())
			if len(bad) > 0 && slices.Contains(s.Vanished, name) { // an error elsewhere may hide the definition
				may = m.seen
			}
			if bad[name] != m.bad || !slices.ContainsFunc(may, func(fields map[string]any) bool {
				return h.matches(s.Services.At(name), name, fields)
			}) {
				return false
			}
		}
		return true
	})
	for _, name := range slices.Sorted(maps.Keys(h.services)) {
		m := h.services[name]
		m.seen = slices.DeleteFunc(m.seen, func(fields map[string]any) bool { return !h.matches(last.Services.At(name), name, fields) })
		if slices.Contains(last.Vanished, name) {
			m.seen = append(m.seen, nil) // the service may be removed once the error is fixed
		}
	}
}

// possible returns the definitions that the source may have of the service. If paused is true, the
// source may have read partial data. The service may then be missing while its definition has an
// error.
func (m *model) possible(paused bool) []map[string]any {
	if m.bad && paused {
		return append(slices.Clip(m.seen), nil)
	}
	if m.bad {
		return m.seen
	}
	return []map[string]any{m.now}
}

func (h *history) matches(got *balancer.Service, name balancer.Name, fields map[string]any) bool {
	if fields == nil {
		return got == nil
	}
	return got != nil && equalServices(got, service(h.t, name, fields))
}

package balancer

import (
	"slices"
	"time"

	"vipd/balancer/snap"
)

// rampSteps is the number of equal steps in a ramp. The first step is immediate.
const rampSteps = 10

// Ramp is the slow start of a backend that has joined or recovered: its weight increases in steps
// until it is the full weight.
type Ramp struct {
	// Since is the start of the ramp, in UTC without a monotonic reading. Duration is the time from
	// Since until the full weight applies.
	Since    time.Time
	Duration time.Duration
	// Step is the current share of the weight, in tenths.
	Step int
}

func (r Ramp) advance(now time.Time) (Ramp, bool) {
	elapsed := now.Sub(r.Since)
	if elapsed >= r.Duration { // checked first, because the product below could overflow if the clock is wrong
		return r, true
	}
	r.Step = max(r.Step, 1+int(rampSteps*max(elapsed, 0)/r.Duration))
	return r, r.Step >= rampSteps
}

// Percent returns the current share of the weight, in percent.
func (r Ramp) Percent() int { return 100 * r.Step / rampSteps }

// next returns when the next step is due.
func (r Ramp) next() time.Time {
	return r.Since.Add((r.Duration*time.Duration(r.Step) + rampSteps - 1) / rampSteps)
}

// startRamps starts a ramp for each backend that gets new connections in next but did not in old.
// If no other backend continues to get new connections, it starts no ramps, because they would not
// change any backend's share. It deletes the ramps of backends that get no new connections.
func (m Memory) startRamps(old, next *Frontend, now time.Time) Memory {
	if next.SlowStart <= 0 {
		m.Ramps = dropRamps(m.Ramps, next.Key)
		return m
	}
	active := func(b *Backend) bool { return b != nil && b.State == Active }
	served := func(b Backend) bool { return old != nil && active(old.Backend(b.Addr)) }
	goesOn := slices.ContainsFunc(next.Backends, func(b Backend) bool { return b.State == Active && served(b) })
	for k := range onFrontend(m.Ramps, next.Key) {
		if !active(next.Backend(k.Backend)) {
			m.Ramps = m.Ramps.Delete(k)
		}
	}
	for _, b := range next.Backends {
		k := BackendKey{next.Key, b.Addr}
		if b.State == Active && goesOn && !served(b) && !m.Ramps.Has(k) {
			m.Ramps = m.Ramps.Set(k, Ramp{Since: now.UTC().Round(0), Duration: next.SlowStart, Step: 1})
		}
	}
	return m
}

func (m Memory) advanceRamps(now time.Time) Memory {
	for k, r := range m.Ramps.All() {
		switch current, over := r.advance(now); {
		case over:
			m.Ramps = m.Ramps.Delete(k)
		case current != r:
			m.Ramps = m.Ramps.Set(k, current)
		}
	}
	return m
}

func dropRamps(ramps snap.Map[BackendKey, Ramp], key Key) snap.Map[BackendKey, Ramp] {
	for k := range onFrontend(ramps, key) {
		ramps = ramps.Delete(k)
	}
	return ramps
}

// applyRamps returns a copy of f with ramped weights, or f if no backend is ramping up. Weights are
// whole numbers, so it first multiplies all weights by ten, or by less if they would exceed the
// maximum weight.
func applyRamps(f *Frontend, in *Inputs) *Frontend {
	steps := map[int]int{} // by backend index
	heaviest := 1
	for i, b := range f.Backends {
		heaviest = max(heaviest, b.Weight)
		if r, ok := in.Ramps.Get(BackendKey{f.Key, b.Addr}); ok && b.State == Active {
			steps[i] = r.Step
		}
	}
	if len(steps) == 0 {
		return f
	}
	times := max(1, min(rampSteps, MaxWeight/heaviest))
	g := *f
	g.Backends = slices.Clone(f.Backends)
	for i := range g.Backends {
		b := &g.Backends[i]
		b.Weight *= times
		if step, ramping := steps[i]; ramping {
			b.Weight = max(1, b.Weight*step/rampSteps)
		}
	}
	return &g
}

package balancer

import (
	"slices"
	"time"

	"vipd/balancer/snap"
)

// rampSteps is in how many equal steps a ramp reaches the whole weight; the first is taken at once.
const rampSteps = 10

// Ramp is a backend that joined or recovered, on its way to its whole weight.
type Ramp struct {
	// Since is when it began, in UTC and without a monotonic reading, and Over how long it takes.
	Since time.Time
	Over  time.Duration
	// Step is how far it has come: so many tenths of the weight.
	Step int
}

// at returns the ramp as it is at now, and whether it is over.
func (r Ramp) at(now time.Time) (Ramp, bool) {
	gone := now.Sub(r.Since)
	if gone >= r.Over { // however long: ten times a clock that was never set is more than a Duration holds
		return r, true
	}
	r.Step = max(r.Step, 1+int(rampSteps*max(gone, 0)/r.Over))
	return r, r.Step >= rampSteps
}

// Percent is how much of its weight the backend has.
func (r Ramp) Percent() int { return 100 * r.Step / rampSteps }

// next is when the next step is due.
func (r Ramp) next() time.Time {
	return r.Since.Add((r.Over*time.Duration(r.Step) + rampSteps - 1) / rampSteps)
}

// ramp begins a ramp for each backend that gets new connections in next and did not in old, as long as another one goes on
// to: backends that begin together share as they would at the end. It drops the ramps of those that get none any more.
func (m Memory) ramp(old, next *Frontend, now time.Time) Memory {
	if next.SlowStart <= 0 {
		m.Ramps = dropRamps(m.Ramps, next.Key)
		return m
	}
	active := func(b *Backend) bool { return b != nil && b.State == Active }
	served := func(b Backend) bool { return old != nil && active(old.Backend(b.Addr)) }
	goesOn := slices.ContainsFunc(next.Backends, func(b Backend) bool { return b.State == Active && served(b) })
	for k := range ofFrontend(m.Ramps, next.Key) {
		if !active(next.Backend(k.Backend)) {
			m.Ramps = m.Ramps.Delete(k)
		}
	}
	for _, b := range next.Backends {
		k := DrainKey{next.Key, b.Addr}
		if b.State == Active && goesOn && !served(b) && !m.Ramps.Has(k) {
			m.Ramps = m.Ramps.Set(k, Ramp{Since: now.UTC().Round(0), Over: next.SlowStart, Step: 1})
		}
	}
	return m
}

// climb brings every ramp to where it is at now.
func (m Memory) climb(now time.Time) Memory {
	for k, r := range m.Ramps.All() {
		switch is, over := r.at(now); {
		case over:
			m.Ramps = m.Ramps.Delete(k)
		case is != r:
			m.Ramps = m.Ramps.Set(k, is)
		}
	}
	return m
}

func dropRamps(ramps snap.Map[DrainKey, Ramp], key Key) snap.Map[DrainKey, Ramp] {
	for k := range ofFrontend(ramps, key) {
		ramps = ramps.Delete(k)
	}
	return ramps
}

// withRamps returns f with the weights of the backends that are still ramping up, in a new frontend unless there are
// none. So that a tenth of weight 1 is a whole number, the others have ten times theirs meanwhile, or as many times as
// the greatest weight allows.
func withRamps(f *Frontend, in *Inputs) *Frontend {
	steps := map[int]int{} // of the backend at that index
	heaviest := 1
	for i, b := range f.Backends {
		heaviest = max(heaviest, b.Weight)
		if r, ok := in.Ramps.Get(DrainKey{f.Key, b.Addr}); ok && b.State == Active {
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

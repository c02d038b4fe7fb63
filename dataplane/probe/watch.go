package probe

import (
	"fmt"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
)

// watch holds the entries of a target's checks.
type watch struct {
	checks []*entry // at least one, in the order of the definition and without duplicates
	need   balancer.HealthNeed
}

// state returns the combined state of all checks. If instead is not nil, it is used in place of e's
// state.
func (w *watch) state(e *entry, instead *health.State) health.Combined {
	states := make([]health.State, len(w.checks))
	for i, c := range w.checks {
		states[i] = c.state
		if c == e && instead != nil {
			states[i] = *instead
		}
	}
	return health.Combine(states, w.need)
}

// status returns the state as users see it. If the target has several checks, the texts name the
// check.
func (w *watch) status() Status {
	combined := w.state(nil, nil)
	shown := w.checks[combined.Shown]
	out := Status{At: shown.key.at, Health: shown.probe.health, State: combined.State, Checking: shown.checking}
	if len(w.checks) == 1 {
		return out
	}
	out.State.Cause = w.named(combined.Decides, out.State.Cause)
	out.State.Last.Text = w.named(combined.Shown, out.State.Last.Text)
	for _, c := range w.checks {
		out.Checks = append(out.Checks, Status{At: c.key.at, Health: c.probe.health, State: c.state, Checking: c.checking})
	}
	return out
}

// named adds the number and type of check i to a text. An empty text stays empty.
func (w *watch) named(i int, text string) string {
	if text == "" {
		return ""
	}
	return fmt.Sprintf("check %d of %d (%s): %s", i+1, len(w.checks), w.checks[i].probe.health.Type, text)
}

// combineLocked records whether t's verdict has changed after a change to the state of e, one of
// t's several checks. before is e's previous state.
func (r *Runner) combineLocked(t balancer.Target, w *watch, e *entry, before health.State) {
	former, status := w.state(e, &before), w.status()
	if former.Verdict == status.State.Verdict {
		return
	}
	r.setVerdictLocked(t, status.State.Verdict)
	r.changes = append(r.changes, newTransition([]balancer.Target{t}, former.State, status.State))
	r.reportSoonLocked()
}

func (r *Runner) setVerdictLocked(t balancer.Target, v balancer.Verdict) {
	if v == balancer.HealthUnknown {
		r.verdicts = r.verdicts.Delete(t)
	} else {
		r.verdicts = r.verdicts.Set(t, v)
	}
}

func newTransition(targets []balancer.Target, before, now health.State) Transition {
	c := Transition{Targets: targets, Before: before.Verdict, State: now}
	if !before.Since.IsZero() {
		c.For = now.Since.Sub(before.Since)
	}
	return c
}

// reportSoonLocked makes the loop report the recorded changes, together with other changes at about
// the same time.
func (r *Runner) reportSoonLocked() {
	now := time.Now()
	if r.reportAt.IsZero() {
		r.reportBy = now.Add(maxGather * r.o.Gather)
	}
	r.reportAt = now.Add(r.o.Gather)
	if r.reportBy.Before(r.reportAt) {
		r.reportAt = r.reportBy
	}
	if r.reportAt.Before(r.sleeps) {
		r.sleeps = r.reportAt
		r.wake.Send()
	}
}

// moveLocked gives a target the entries of its subject's checks. If the checks or the setting need
// change, the verdict may change immediately.
func (r *Runner) moveLocked(b *batch, m move) {
	old := r.targets[m.target]
	if !m.stays {
		delete(r.targets, m.target)
		b.leave(m.target, old, nil)
		r.verdicts = r.verdicts.Delete(m.target)
		return
	}
	w := &watch{need: m.subject.Health.Need}
	for s := range m.subject.All() {
		key := entryKey{s.At, b.definition(s)}
		e := r.entries[key]
		if e == nil {
			e = r.addLocked(b, key, m.target, s, old)
		}
		if slices.Contains(w.checks, e) {
			continue // the check equals an earlier one
		}
		w.checks = append(w.checks, e)
		if old == nil || !slices.Contains(old.checks, e) {
			e.targets = append(e.targets, m.target)
		}
	}
	if old != nil && old.need == w.need && slices.Equal(old.checks, w.checks) {
		return
	}
	b.leave(m.target, old, w.checks)
	r.targets[m.target] = w
	now := w.status().State
	r.setVerdictLocked(m.target, now.Verdict)
	if old == nil {
		return
	}
	before := old.state(nil, nil).State
	if before.Verdict != now.Verdict && before.Verdict != balancer.HealthUnknown && now.Verdict != balancer.HealthUnknown {
		now.Since = b.now // the remaining checks may have had this verdict for longer
		r.changes = append(r.changes, newTransition([]balancer.Target{m.target}, before, now))
		r.reportSoonLocked()
	}
}

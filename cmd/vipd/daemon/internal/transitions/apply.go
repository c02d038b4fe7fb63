package transitions

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/wording"
	"vipd/dataplane"
)

// appliedState records the changes that the engine has applied, and failures to apply.
type appliedState struct {
	o       Options
	done    snap.Map[balancer.Key, *balancer.Frontend] // frontends that are recorded as applied
	open    openProblems                               // recorded problems of the host
	failing time.Time                                  // start of the current failure, or zero if everything is applied
	errors  map[string]bool                            // recorded reasons
}

// applyPause is the minimum time between two events about applied changes, so a stream of changes
// causes only one event per second.
const applyPause = time.Second

// hostPause is the interval at which the host's problems are checked while the engine is idle.
const hostPause = 5 * time.Second

// Follow records applied changes and failures of the engine, until ctx is done.
func (r *Tracker) Follow(ctx context.Context) error {
	c := &appliedState{o: r.o}
	problems := time.NewTicker(hostPause)
	defer problems.Stop()
	for {
		changed := c.o.Engine.Changed()
		if c.record(time.Now()) && !wake.Sleep(ctx, applyPause) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-problems.C:
		}
	}
}

// record records changes since the last call, and reports whether anything was applied.
func (c *appliedState) record(now time.Time) (applied bool) {
	s := c.o.Engine.Status()
	c.open = c.open.next(c.o.Events, now, c.o.HostProblems(), nil)
	if s.Moving {
		return false // during a switch, the next dataplane has no frontends yet and reports its own failures
	}
	c.recordFailures(s, now)
	services, n := map[balancer.Name]bool{}, 0
	for _, change := range snap.Diff(c.done, s.Done) {
		switch { // a frontend without a service represents a failure
		case change.HasNew && change.New.Service != "":
			services[change.New.Service] = true
			n++
		case !change.HasNew && change.Old.Service != "":
			services[change.Old.Service] = true
			n++
		}
	}
	c.done = s.Done
	if n == 0 {
		return false
	}
	e := events.Event{
		Kind: events.Apply, Level: slog.LevelDebug, Text: "applied, " + wording.Count(n, "frontend"),
		Took: s.LastDuration, Revision: c.o.Reached(s.Applied.Store),
	}
	names := slices.Sorted(maps.Keys(services))
	if len(names) == 1 {
		e.Service = names[0]
	} else {
		e.Text = fmt.Sprintf("%s applied, %s", several(names), wording.Count(n, "frontend"))
	}
	c.o.Events.Record(e)
	return true
}

// recordFailures records the start of a failure, each new reason, and the end of the failure when
// everything is applied.
func (c *appliedState) recordFailures(s *dataplane.Status, now time.Time) {
	switch {
	case s.LastError != "" && !c.errors[s.LastError] && len(c.errors) < maxReasons:
		if c.failing.IsZero() {
			c.failing, c.errors = now, map[string]bool{}
		}
		c.errors[s.LastError] = true
		e := events.Event{Kind: events.Problem, Level: slog.LevelError, Text: "not everything could be applied; vipd keeps retrying", Cause: s.LastError}
		if n := len(s.Failing); n > 0 {
			e.Text = wording.Count(n, "frontend") + " can't be applied; vipd keeps retrying"
		}
		c.o.Events.Record(e)
	case s.LastError == "" && len(s.Failing) == 0 && !c.failing.IsZero():
		c.o.Events.Record(events.Event{Kind: events.Problem, Text: "everything is applied again", Lasted: now.Sub(c.failing)})
		c.failing, c.errors = time.Time{}, nil
	}
}

// maxReasons is the maximum number of reasons that are recorded for one failure.
const maxReasons = 20

// Repaired records that vipd repaired changes that other programs had made.
func Repaired(history *events.History, n int, what string) {
	e := events.Event{Kind: events.Drift, Level: slog.LevelWarn, Text: "repaired an object that another program had changed", Cause: what}
	if n > 1 {
		e.Text = fmt.Sprintf("repaired %d objects that another program had changed", n)
	}
	history.Record(e)
}

// several lists service names in a sentence. If there are many, it lists only the first.
func several(names []balancer.Name) string {
	const maxNamed = 3
	var all []string
	for _, n := range names {
		all = append(all, string(n))
	}
	if len(all) > maxNamed {
		return wording.Some(all, maxNamed)
	}
	return wording.List(all, "and")
}

package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/journal"
)

// carriedOut records what the engine has carried out, and what it can't.
type carriedOut struct {
	*Daemon
	done    snap.Map[balancer.Key, *balancer.Frontend] // what was recorded
	told    told                                       // of the host
	failing time.Time                                  // since when something can't be carried out; zero: nothing
}

// applyPause is the least time between two applies: those of a stream of changes are told as one a second.
const applyPause = time.Second

// follow records until ctx ends.
func (c *carriedOut) follow(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		changed := c.engine.Changed()
		if c.look(time.Now()) {
			pause.Reset(applyPause)
		} else {
			pause.Reset(0)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// look records what is new, and reports whether anything was carried out.
func (c *carriedOut) look(now time.Time) (applied bool) {
	s := c.engine.Status()
	c.told = c.told.next(c.journal, now, c.host.Problems())
	switch {
	case len(s.Failing) > 0 && c.failing.IsZero():
		c.failing = now
		c.journal.Record(journal.Event{
			Kind: journal.Problem, Level: slog.LevelWarn, Text: howMany(len(s.Failing), "frontend") + " can't be carried out; it is tried again and again", Cause: s.LastError,
		})
	case len(s.Failing) == 0 && !c.failing.IsZero():
		c.journal.Record(journal.Event{Kind: journal.Problem, Text: "everything is carried out again", Lasted: now.Sub(c.failing)})
		c.failing = time.Time{}
	}
	if s.Moving {
		return false // the dataplane that takes over begins with nothing
	}
	services, n := map[balancer.Name]bool{}, 0
	for _, change := range snap.Diff(c.done, s.Done) {
		switch { // a frontend without a service marks what failed
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
	e := journal.Event{
		Kind: journal.Apply, Level: slog.LevelDebug, Text: "is carried out, in " + howMany(n, "frontend"),
		Took: s.LastDuration, Revision: c.newView().applied(),
	}
	names := slices.Sorted(maps.Keys(services))
	if len(names) == 1 {
		e.Service = names[0]
	} else {
		e.Text = fmt.Sprintf("%s are carried out, in %s", several(names), howMany(n, "frontend"))
	}
	c.journal.Record(e)
	return true
}

// howMany writes "1 service", "3 services".
func howMany(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// several names services for a sentence; of many, the first.
func several(names []balancer.Name) string {
	const most = 3
	var words []string
	for _, n := range names[:min(len(names), most)] {
		words = append(words, string(n))
	}
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(words, ", "), more)
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

package transitions

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/events"
)

// openProblems maps recorded problems that still exist to when they started.
type openProblems map[string]openProblem

type openProblem struct {
	balancer.Problem
	since time.Time
}

// next records new problems and solved problems, and returns the current problems. The function
// served reports whether a service's port has an endpoint in use.
func (t openProblems) next(j *events.History, now time.Time, problems []balancer.Problem, served func(balancer.Name, string) bool) openProblems {
	holds := openProblems{}
	for _, p := range problems {
		id := identity(&p)
		if _, twice := holds[id]; twice {
			continue
		}
		was, known := t[id]
		if !known {
			was = openProblem{p, now}
			j.Record(problemBegins(p))
		}
		holds[id] = was
	}
	for _, id := range slices.Sorted(maps.Keys(t)) {
		if _, still := holds[id]; !still {
			j.Record(t[id].over(now, served))
		}
	}
	return holds
}

// identity returns a key for a problem. It omits numbers that may change while the problem lasts:
// counts of endpoints in a panic or outage, of unanswered connections, and of endpoints that can't
// be checked.
func identity(p *balancer.Problem) string {
	q := *p
	switch p.Kind {
	case balancer.InPanic, balancer.Idle:
		q.Text = ""
	case balancer.Unanswered, balancer.Unchecked:
		q.Text, _, _ = strings.Cut(p.Text, " ")
	}
	return q.String()
}

func problemBegins(p balancer.Problem) events.Event {
	switch p.Kind {
	case balancer.InPanic:
		return events.Event{Kind: events.Panic, Level: slog.LevelError, Service: p.Service, Text: "is in panic", Cause: p.PortText()}
	case balancer.Outage:
		return events.Event{Kind: events.Health, Level: slog.LevelError, Service: p.Service, Text: "has no endpoint left at port " + p.Port, Cause: p.Text}
	}
	e := events.Event{Kind: events.Problem, Level: slog.LevelWarn, Service: p.Service, Text: "has a problem"}
	if p.Service == "" {
		e.Text = "there is a problem"
	}
	p.Service = ""
	e.Cause = p.String()
	return e
}

func (t openProblem) over(now time.Time, served func(balancer.Name, string) bool) events.Event {
	e := problemBegins(t.Problem)
	e.Level, e.Lasted = slog.LevelInfo, now.Sub(t.since)
	switch {
	case e.Kind == events.Panic:
		e.Text, e.Cause = "is no longer in panic", ""
	case t.Kind == balancer.Outage:
		e.Text = "has an endpoint again at port " + t.Port
		e.Cause = ""
		e.Was = "none"
		if !served(t.Service, t.Port) {
			e.Text = "has no endpoint at port " + t.Port + ": the endpoints that failed their checks were removed or drained"
		}
	default:
		e.Text = "problem resolved"
	}
	return e
}

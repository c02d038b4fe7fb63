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

// told is what was recorded as wrong and still is, with when it began.
type told map[string]toldProblem

type toldProblem struct {
	balancer.Problem
	since time.Time
}

// next records the problems that are not in t yet, and those in t that are over. It returns those that hold. Served
// reports whether a port of a service has an endpoint in use.
func (t told) next(j *events.History, now time.Time, problems []balancer.Problem, served func(balancer.Name, string) bool) told {
	holds := told{}
	for _, p := range problems {
		is := identity(&p)
		if _, twice := holds[is]; twice {
			continue
		}
		was, known := t[is]
		if !known {
			was = toldProblem{p, now}
			j.Record(problemBegins(p))
		}
		holds[is] = was
	}
	for _, is := range slices.Sorted(maps.Keys(t)) {
		if _, still := holds[is]; !still {
			j.Record(t[is].over(now, served))
		}
	}
	return holds
}

// identity tells problems apart. In a panic the number of healthy endpoints may change, and where none takes
// connections that of those that drain. Of an endpoint that does not answer the numbers change.
func identity(p *balancer.Problem) string {
	q := *p
	switch p.Kind {
	case balancer.InPanic, balancer.Idle:
		q.Text = ""
	case balancer.Unanswered:
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

func (t toldProblem) over(now time.Time, served func(balancer.Name, string) bool) events.Event {
	e := problemBegins(t.Problem)
	e.Level, e.Lasted = slog.LevelInfo, now.Sub(t.since)
	switch {
	case e.Kind == events.Panic:
		e.Text, e.Cause = "is out of panic", ""
	case t.Kind == balancer.Outage:
		e.Text, e.Cause, e.Was = "has an endpoint again at port "+t.Port, "", "none"
		if !served(t.Service, t.Port) {
			e.Text = "has none at port " + t.Port + " that fails its checks any more, and none that serves: they are gone, or taken out by hand"
		}
	default:
		e.Text = "problem resolved"
	}
	return e
}

package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/lookup"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/wording"
)

// These are the default numbers of events to show.
const (
	eventsShown       = 100
	eventsBeforeThose = 10 // with -f
)

func eventsVerb() *cli.Verb {
	return &cli.Verb{
		Name: "events", Brief: "show the events of this node, in order",
		About: `Lists the daemon's events, the latest last: reloads, applied changes with
their duration, health of endpoints, drains, mode, drift (changes by other
programs that vipd has repaired), problems, panics (so few endpoints are
healthy that all are used), and lost and restored connections to etcd. Times
are local; the date is omitted if it is today. If a state has ended, its
duration is in brackets. -o json has all details.

-f follows new events until Ctrl-C, also across restarts of vipd, which it
reports on stderr. With -o json, each event is a line of JSON.

vipd keeps the latest 10,000 events in memory, and at least 1,000 of each
kind. The log also contains them, but applied changes only with --log-level
debug.`,
		Example: "vipctl events -f --service web",
		Values:  map[string]cli.Completer{"service": serviceNames, "kind": cli.OneOf(events.Kind("").Values()...)},
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "follow new events until Ctrl-C"},
			&cli.IntFlag{Name: "lines", Aliases: []string{"n"}, Value: -1, DefaultText: "100; 10 with -f, all with --since",
				Usage: "show the latest `N` events; 0: all kept events, or with -f only new events"},
			&cli.StringFlag{Name: "since", Usage: "show only events since `TIME`: 10m (ago), 23:15 or 2026-11-21T23:15"},
			&cli.StringFlag{Name: "service", Usage: "show only events of the service `NAME`"},
			&cli.StringFlag{Name: "kind", Usage: "show only events of this `KIND`, or of several kinds, such as health,panic: " + wording.List(events.Kind("").Values(), "or")},
		},
		Formats: []string{cli.FormTable, cli.FormJSON},
		Run:     runEvents,
	}
}

// eventList is a filtered list of events, with its output format.
type eventList struct {
	*cli.Call
	query api.EventsQuery
	// from is the start of the list's time range.
	from time.Time
	// span describes the time range in words.
	span string
	// timeWidth is the width of the time column.
	timeWidth int
}

func runEvents(c *cli.Call) error {
	l := &eventList{Call: c, query: api.EventsQuery{Service: plainService(c.Flags.String("service")), Kind: c.Flags.String("kind")}}
	if err := l.checkKinds(); err != nil {
		return err
	}
	lines, err := l.window()
	if err != nil {
		return err
	}
	before, any, err := l.past(lines)
	if err != nil {
		return err
	}
	if !any && l.query.Service != "" {
		if err := l.known(); err != nil {
			return err
		}
	}
	follow := c.Flags.Bool("follow")
	if !follow && c.Format == cli.FormJSON {
		return c.PrintJSON(lists.NonNil(before))
	}
	if len(before) == 0 && !follow {
		c.Say("there are no matching events %s", l.span)
		return nil
	}
	if err := l.showEvents(before, true); err != nil || !follow {
		return err
	}
	return l.follow()
}

// checkKinds returns an error for an unknown kind.
func (l *eventList) checkKinds() error {
	if l.query.Kind == "" {
		return nil
	}
	kinds := events.Kind("").Values()
	for _, k := range strings.Split(l.query.Kind, ",") {
		if !slices.Contains(kinds, k) {
			return cli.WrongUse("there are no events of kind %q%s; the kinds are %s", k, lookup.Meant(k, kinds), wording.List(kinds, "or"))
		}
	}
	return nil
}

// window reads the range of events from the flags. lines is the number of latest events to show. If
// it is negative, all events are shown.
func (l *eventList) window() (lines int, err error) {
	lines = l.Flags.Int("lines")
	follow, set := l.Flags.Bool("follow"), l.Flags.IsSet("lines")
	if set && lines < 0 {
		return 0, cli.WrongUse("-n can't be below zero")
	}
	l.span = "since vipd started"
	if since := l.Flags.String("since"); since != "" {
		if l.from, l.span, err = sinceTime(since, l.Now()); err != nil {
			return 0, err
		}
	}
	switch {
	case set && lines == 0 && !follow, !set && l.Flags.String("since") != "":
		return -1, nil
	case set:
		return lines, nil
	case follow:
		return eventsBeforeThose, nil
	}
	return eventsShown, nil
}

// known returns an error if the service does not exist and has no events.
func (l *eventList) known() error {
	any := false
	err := l.Daemon.Events(l, api.EventsQuery{Service: l.query.Service}, func(p api.EventPage) error {
		any = any || len(p.Events) > 0
		return nil
	})
	if err != nil || any {
		return err
	}
	return isService(l.Call, l.query.Service)
}

// past returns the latest events, or all events if lines is negative. any reports whether there are
// events, even if lines is 0. The next query starts after these events.
func (l *eventList) past(lines int) (events []api.Event, any bool, err error) {
	client, err := l.Client()
	if err != nil {
		return nil, false, err
	}
	err = client.Events(l, l.query, func(p api.EventPage) error {
		events = append(events, slices.DeleteFunc(p.Events, func(e api.Event) bool { return e.At.Before(l.from) })...)
		l.query.Since = p.Next
		return nil
	})
	any = len(events) > 0
	if lines >= 0 {
		events = events[max(0, len(events)-lines):]
	}
	return events, any, err
}

// follow shows new events, even after restarts of the daemon. It returns nil when ctx is done.
func (l *eventList) follow() error {
	l.query.Follow = true
	return follow(l.Call, true, func(received func()) error {
		return l.Daemon.Events(l, l.query, func(p api.EventPage) error {
			received()
			if p.Missed > 0 {
				l.Note("%s", l.missed(p.Missed))
			}
			l.query.Since = p.Next
			return l.showEvents(p.Events, false)
		})
	})
}

func (l *eventList) missed(n uint64) string {
	if l.query.Service == "" && l.query.Kind == "" {
		return wording.Count(n, "event") + " were lost before they could be shown"
	}
	return wording.Count(n, "event") + ", of any kind and service, were lost before they were read"
}

// showEvents prints events. If first is true, it prints the column titles first.
func (l *eventList) showEvents(events []api.Event, first bool) error {
	var b strings.Builder
	if l.Format == cli.FormJSON {
		for i := range events {
			text, err := l.Encode(&events[i], "")
			if err != nil {
				return err
			}
			b.WriteString(text)
		}
	} else {
		if first {
			for i := range events {
				l.timeWidth = max(l.timeWidth, len(l.when(events[i].At)))
			}
			l.timeWidth = max(l.timeWidth, len(time.TimeOnly))
			fmt.Fprintf(&b, "%-*s  %-8s  %s\n", l.timeWidth, "TIME", "KIND", "EVENT")
		}
		for i := range events {
			e := &events[i]
			fmt.Fprintf(&b, "%*s  %-8s  %s\n", l.timeWidth, l.when(e.At), e.Kind, l.Paint(table.Line(cli.OneLine(sentence(e))), eventStyle(e)))
		}
	}
	if b.Len() == 0 {
		return nil
	}
	if err := l.Print(b.String()); err != nil {
		return &showError{err}
	}
	return nil
}

// when formats a timestamp as a time of day, preceded by the date if it is not today.
func (l *eventList) when(at time.Time) string {
	at, now := at.Local(), l.Now().Local()
	if at.YearDay() == now.YearDay() && at.Year() == now.Year() {
		return at.Format(time.TimeOnly)
	}
	return at.Format("Jan _2 15:04:05")
}

// sentence describes an event: its text, cause and duration.
func sentence(e *api.Event) string {
	text := strings.TrimSpace(e.Subject() + " " + e.Text)
	if e.Cause != "" {
		text += ": " + e.Cause
	}
	var more []string
	switch {
	case e.Lasted > 0 && e.Was != "":
		more = append(more, e.Was+" for "+spell(e.Lasted))
	case e.Lasted > 0:
		more = append(more, "after "+spell(e.Lasted))
	}
	if e.Took > 0 {
		more = append(more, "took "+formatShort(e.Took))
	}
	if e.Revision > 0 {
		more = append(more, fmt.Sprintf("revision %d", e.Revision))
	}
	if len(more) > 0 {
		text += " (" + strings.Join(more, ", ") + ")"
	}
	return text
}

// spell formats a duration, with tenths of a second if it is short.
func spell(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return roughly(d)
}

func eventStyle(e *api.Event) table.Style {
	switch {
	case e.Level >= slog.LevelError:
		return table.Bad
	case e.Level >= slog.LevelWarn && e.Kind == events.Health:
		return table.Bad
	case e.Level >= slog.LevelWarn:
		return table.Notice
	case e.Kind == events.Health && strings.HasPrefix(e.Text, "is "+string(balancer.HealthUp)):
		return table.Good
	case e.Level < slog.LevelInfo:
		return table.Faint
	}
	return table.Plain
}

// sinceTime parses a time in the past: a duration such as 10m, a time of day, or a day and a time.
// Times are local, and a time of day is the latest that is not in the future. words describes the
// time as part of a sentence, such as "in the last 10m" or "since 23:15".
func sinceTime(text string, now time.Time) (from time.Time, words string, err error) {
	if d, err := time.ParseDuration(text); err == nil {
		if d < 0 {
			return from, "", cli.WrongUse("--since can't be below zero")
		}
		return now.Add(-d), "in the last " + text, nil
	}
	now = now.Local()
	for _, layout := range []string{"15:04", "15:04:05"} {
		at, err := time.ParseInLocation(layout, text, time.Local)
		if err != nil {
			continue
		}
		from = time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), at.Second(), 0, time.Local)
		if from.After(now) {
			from = time.Date(now.Year(), now.Month(), now.Day()-1, at.Hour(), at.Minute(), at.Second(), 0, time.Local)
		}
		return from, "since " + text, nil
	}
	for _, layout := range []string{"2006-01-02", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02 15:04:05", time.RFC3339} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at, "since " + text, nil
		}
	}
	return from, "", cli.WrongUse("--since %q is not a time, such as 10m, 23:15 or 2026-11-21T23:15", text)
}

package daemon

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/journal"
)

// reloadEvent tells what came of a reload.
func reloadEvent(by string, s *state, problems []balancer.Problem, err error) journal.Event {
	e := journal.Event{Kind: journal.Reload, Cause: by, Revision: s.snapshot.Revision}
	switch {
	case err != nil:
		e.Level, e.Text, e.Cause = slog.LevelError, "a reload failed, and all stays as it was", err.Error()
	case len(problems) > 0:
		e.Level, e.Text = slog.LevelWarn, fmt.Sprintf("all was read again: %s, and %s", howMany(s.snapshot.Services.Len(), "service"), howMany(len(problems), "problem"))
	default:
		e.Text = fmt.Sprintf("all was read again: %s, and no problems", howMany(s.snapshot.Services.Len(), "service"))
	}
	return e
}

// told is what was recorded as wrong and still is, with when it began.
type told map[string]toldProblem

type toldProblem struct {
	balancer.Problem
	since time.Time
}

// next records the problems that are not in t yet, and those in t that are over. It returns those that hold. Served
// reports whether a port of a service has an endpoint in use.
func (t told) next(j *journal.Journal, now time.Time, problems []balancer.Problem, served func(balancer.Name, string) bool) told {
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

// panics reports whether p says that a port of a service is in panic, rather than that the field is wrong; out, whether it
// says that the port has no endpoint left.
func panics(p *balancer.Problem) bool {
	return p.Field == balancer.PanicField && p.Severity == balancer.SeverityWarning
}

func out(p *balancer.Problem) bool {
	return p.Field == balancer.OutageField && p.Severity == balancer.SeverityWarning
}

// identity tells problems apart. In a panic the number of healthy endpoints may change.
func identity(p *balancer.Problem) string {
	if panics(p) {
		q := *p
		q.Text = portOf(p)
		return q.String()
	}
	return p.String()
}

// portOf is the port of which p says that it is short of endpoints.
func portOf(p *balancer.Problem) string {
	port, _, _ := strings.Cut(p.Text, ": ")
	return port
}

func problemBegins(p balancer.Problem) journal.Event {
	switch {
	case panics(&p):
		return journal.Event{Kind: journal.Panic, Level: slog.LevelError, Service: p.Service, Text: "is in panic", Cause: p.Text}
	case out(&p):
		_, how, _ := strings.Cut(p.Text, ": ")
		how = strings.TrimPrefix(how, "no endpoint is left, ")
		return journal.Event{Kind: journal.Health, Level: slog.LevelError, Service: p.Service, Text: "has no endpoint left at " + portOf(&p), Cause: how}
	}
	e := journal.Event{Kind: journal.Problem, Level: slog.LevelWarn, Service: p.Service, Text: "has a problem"}
	if p.Service == "" {
		e.Text = "there is a problem"
	}
	p.Service = ""
	e.Cause = p.String()
	return e
}

func (t toldProblem) over(now time.Time, served func(balancer.Name, string) bool) journal.Event {
	e := problemBegins(t.Problem)
	e.Level, e.Lasted = slog.LevelInfo, now.Sub(t.since)
	switch {
	case e.Kind == journal.Panic:
		e.Text, e.Cause = "is out of panic", ""
	case out(&t.Problem):
		e.Text, e.Cause, e.Was = "has an endpoint again at "+portOf(&t.Problem), "", "none"
		if !served(t.Service, portOf(&t.Problem)) {
			e.Text = "has none at " + portOf(&t.Problem) + " that fails its checks any more, and none that serves: they are gone, or taken out by hand"
		}
	case e.Service != "":
		e.Text = "is rid of a problem"
	default:
		e.Text = "a problem is over"
	}
	return e
}

// served reports whether a port of a service, as portOf has it, has an endpoint in use.
func (s *state) served(name balancer.Name, port string) bool {
	service, there := s.snapshot.Services.Get(name)
	if !there {
		return false
	}
	for _, vip := range service.Addresses() {
		for i := range service.Ports {
			p := &service.Ports[i]
			f := s.desired.Frontends.At(balancer.Key{Addr: vip, Port: p.Port, Proto: p.Protocol})
			if f == nil || f.Service != name || service.PortWords(p, vip) != port {
				continue
			}
			if slices.ContainsFunc(f.Backends, func(b balancer.Backend) bool { return b.State == balancer.Active }) {
				return true
			}
		}
	}
	return false
}

// tell records what s changes: problems, drains, and whether files can be read.
func (m *model) tell(s *state, before balancer.Desired, now time.Time) {
	last := m.state()
	switch {
	case m.fleet == nil:
		m.tellFiles(last, s, now)
	case !last.complete:
		m.fleet.tellStart(s, now)
	}
	if !last.complete {
		m.tellStillDown(s, now)
	}
	written := slices.Concat(s.problems, s.snapshot.Problems)
	all := slices.Concat(written, s.lacking)
	for _, of := range s.desired.Problems.All() {
		all = append(all, *of...)
	}
	for i := range written {
		if _, known := m.told[identity(&written[i])]; !known && written[i].Severity == balancer.SeverityError {
			m.metrics.reloadFailed()
			break
		}
	}
	m.told = m.told.next(m.journal, now, all, s.served)
	m.drains.next(m.journal, s, before, now)
}

// tellFiles records that files were read again, or can't be.
func (m *model) tellFiles(last, s *state, now time.Time) {
	was, is := &last.snapshot, &s.snapshot
	switch {
	case (!last.complete || was.Connected) && !is.Connected:
		e := journal.Event{Kind: journal.Store, Level: slog.LevelWarn, Text: "the services' files can't be read; what they held last stays in use"}
		if is.Err != nil {
			e.Cause = is.Err.Error()
		}
		m.unread = now
		m.journal.Record(e)
	case last.complete && !was.Connected && is.Connected:
		m.journal.Record(journal.Event{Kind: journal.Store, Text: "the services' files can be read again", Lasted: now.Sub(m.unread)})
	case last.complete && was.Revision != is.Revision && m.reloads.Load() == 0:
		m.journal.Record(reloadEvent("a file has changed", s, slices.Concat(s.problems, is.Problems), nil))
	}
}

// connection records that etcd is followed, or lost.
func (f *fleet) connection(revision int64, err error) {
	e := journal.Event{Kind: journal.Store, Text: "etcd is followed", Revision: revision}
	f.mu.Lock()
	switch now := time.Now(); {
	case err != nil:
		e.Level, e.Text, e.Cause = slog.LevelWarn, "etcd is lost; what it held last stays in use", err.Error()
		f.lost = now
	case !f.lost.IsZero():
		e.Text, e.Was, e.Lasted = "etcd is followed again", "away", now.Sub(f.lost)
		f.lost = time.Time{}
	}
	f.followed = f.followed || err == nil
	f.mu.Unlock()
	f.journal.Record(e)
}

// tellStart records that the first state is not etcd's, where that is so.
func (f *fleet) tellStart(s *state, now time.Time) {
	f.mu.Lock()
	away := !f.followed
	if away {
		f.lost = now
	}
	f.mu.Unlock()
	if !away {
		return
	}
	e := journal.Event{Kind: journal.Store, Level: slog.LevelWarn, Text: "etcd is not reached since the start; what is known from before is served"}
	if s.snapshot.Err != nil {
		e.Cause = s.snapshot.Err.Error()
	}
	f.journal.Record(e)
}

// report takes in whether the fleet sees this node.
func (f *fleet) report(err error) {
	f.mu.Lock()
	was, now := f.trouble, time.Now()
	f.trouble = err
	e := journal.Event{Kind: journal.Store, At: now, Text: "the fleet sees this node as " + f.config.Node}
	tell := !f.seen || was != nil
	if !f.unseen.IsZero() {
		e.Was, e.Lasted = "unseen", now.Sub(f.unseen)
	}
	if err != nil {
		tell = was == nil
		e = journal.Event{Kind: journal.Store, At: now, Level: slog.LevelWarn, Text: "the fleet does not see this node", Cause: err.Error()}
		if tell {
			f.unseen = now
		}
	} else {
		f.seen, f.unseen = true, time.Time{}
	}
	f.mu.Unlock()
	if tell {
		f.journal.Record(e)
	}
}

// repaired records that what others had changed was mended.
func (d *Daemon) repaired(n int, what string) {
	e := journal.Event{Kind: journal.Drift, Level: slog.LevelWarn, Text: "something of vipd's was changed by somebody else, and is mended", Cause: what}
	if n > 1 {
		e.Text = fmt.Sprintf("%d things of vipd's were changed by somebody else, and are mended", n)
	}
	d.journal.Record(e)
}

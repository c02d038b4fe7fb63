package transitions

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/cmd/internal/wording"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/dataplane"
	"vipd/store"
)

// Tracker records compiled and applied changes.
type Tracker struct {
	o       Options
	reloads atomic.Int32 // reloads in progress; each itself records that files were read

	// The fields below are used only by Compiled.
	open   openProblems // recorded problems that still exist
	drains drainsOpen
	unread time.Time // when the services' files became unreadable, or zero if they can be read
	// withdrawn maps withdrawn VIPs to when they were withdrawn.
	withdrawn map[netip.Addr]time.Time
}

// Options configures a Tracker.
type Options struct {
	Events *events.History
	// Started is when vipd started.
	Started time.Time
	// Files reports whether all services come from files. Otherwise the fleet's source records
	// whether etcd is readable.
	Files bool
	Began func(s *model.State, now time.Time)
	// DownSince returns when a target went down, and the cause.
	DownSince func(balancer.Target) (since time.Time, cause string)
	// Refused is called when definitions have new errors, and vipd keeps the last valid state.
	Refused func()
	// Drains and Panics are called with the service of each drain and each panic that starts.
	Drains, Panics func(balancer.Name)
	// Engine applies compiled states. Reached returns the newest revision of the store that the
	// snapshot at revision represents. HostProblems returns the problems of the host.
	Engine       *dataplane.Engine
	Reached      func(revision int64) int64
	HostProblems func() []balancer.Problem
}

// New returns a Tracker that has recorded nothing.
func New(o Options) *Tracker { return &Tracker{o: o} }

// Reloads notes that a reload has started, who requested it, and the current state. The caller must
// pass the result to done, which records it.
func (r *Tracker) Reloads(last *model.State, by string) (done func(s *model.State, problems []balancer.Problem, err error)) {
	r.reloads.Add(1)
	return func(s *model.State, problems []balancer.Problem, err error) {
		r.recordReload(by, last, s, problems, err)
		r.reloads.Add(-1)
	}
}

// recordReload records the result of a reload. The log must name each changed service, but an event
// must stay short. So many names continue in further events.
func (r *Tracker) recordReload(by string, last, s *model.State, problems []balancer.Problem, err error) {
	e, rest := reload(by, last, s, problems, err)
	r.o.Events.Record(e)
	for _, names := range rest {
		r.o.Events.Record(events.Event{Kind: events.Reload, Text: "reloaded, continued: " + names, Cause: e.Cause, Revision: e.Revision})
	}
}

// reload returns the event about a reload, and the names of changed services that it omits.
func reload(by string, last, s *model.State, problems []balancer.Problem, err error) (e events.Event, rest []string) {
	e = events.Event{Kind: events.Reload, Cause: by, Revision: s.Snapshot.Revision}
	switch {
	case err != nil:
		e.Level = slog.LevelError
		e.Text = "a reload failed, and nothing was changed"
		e.Cause = err.Error()
	default:
		found := "no problems"
		if len(problems) > 0 {
			e.Level, found = slog.LevelWarn, wording.Count(len(problems), "problem")
		}
		changes, more := inWords(ChangesOfFiles(last.Snapshot.Services, &s.Snapshot))
		rest = more
		e.Text = fmt.Sprintf("reloaded: %s (%s), %s", wording.Count(s.Snapshot.Services.Len(), "service"), changes, found)
	}
	return e, rest
}

// Awaiting records that the store has never been readable, so none of its services are served. It
// must be called by the goroutine that calls Compiled.
func (r *Tracker) Awaiting(s *model.State, now time.Time) {
	if !r.o.Files {
		r.o.Began(s, now)
	} else if s.Snapshot.Err != nil {
		r.recordUnread("the services' files can't be read; none of their services is served yet", s.Snapshot.Err, now)
	}
}

// Compiled records the differences between s and the previous state: problems, drains, and whether
// files can be read. It must not be called concurrently.
func (r *Tracker) Compiled(last, s *model.State, now time.Time) {
	r.recordFiles(last, s, now)
	if !r.o.Files && !last.Complete {
		r.o.Began(s, now)
	}
	if !last.Complete {
		r.recordStillDown(s, now)
	}
	written := s.Reported()
	all := slices.Concat(written, s.Lacking)
	for _, problems := range s.Desired.Problems.All() {
		all = append(all, *problems...)
	}
	for i := range written {
		if _, known := r.open[identity(&written[i])]; !known && written[i].Severity == balancer.SeverityError {
			r.o.Refused()
			break
		}
	}
	recorded := r.open.next(r.o.Events, now, all, func(name balancer.Name, port string) bool { return served(s, name, port) })
	for id, p := range recorded {
		if _, known := r.open[id]; !known && p.Kind == balancer.InPanic {
			r.o.Panics(p.Service)
		}
	}
	r.open = recorded
	if last.Complete {
		r.recordNames(last, s, now)
		r.recordOverrides(last.Snapshot.Overrides, s.Snapshot.Overrides, false, now)
	}
	r.recordOverrides(last.Local, s.Local, true, now)
	for _, service := range r.drains.next(r.o.Events, s, last.Desired, now) {
		r.o.Drains(service)
	}
	r.recordWithdrawn(last, s, now)
}

// recordFiles records that files were read again, or that they can't be read.
func (r *Tracker) recordFiles(last, s *model.State, now time.Time) {
	was, files := r.filesIn(&last.Snapshot), r.filesIn(&s.Snapshot)
	switch {
	case files == nil:
	case !files.Connected:
		r.recordUnread("the services' files can't be read; serving their last state", files.Err, now)
	case !r.unread.IsZero():
		r.o.Events.Record(events.Event{Kind: events.Store, Text: "the services' files can be read again", Lasted: now.Sub(r.unread)})
		r.unread = time.Time{}
	case last.Complete && was != nil && was.Revision != files.Revision && r.reloads.Load() == 0:
		cause := "a file has changed"
		if !slices.Equal(last.Snapshot.Pending, s.Snapshot.Pending) {
			cause = "a pending change has ended"
		}
		r.recordReload(cause, last, s, s.Reported(), nil)
	}
}

// filesIn returns the state of the node's files in a snapshot, or nil if the snapshot has none.
func (r *Tracker) filesIn(s *store.Snapshot) *store.LocalState {
	if r.o.Files {
		return &store.LocalState{Revision: s.Revision, Connected: s.Connected, Err: s.Err}
	}
	return s.Local
}

// recordUnread records the reason why files can't be read, once per outage.
func (r *Tracker) recordUnread(text string, why error, now time.Time) {
	if !r.unread.IsZero() {
		return
	}
	e := events.Event{Kind: events.Store, Level: slog.LevelWarn, Text: text}
	if why != nil {
		e.Cause = why.Error()
	}
	r.unread = now
	r.o.Events.Record(e)
}

// served reports whether a service's port has an endpoint in use. The port has the form of
// Problem.Port.
func served(s *model.State, name balancer.Name, port string) bool {
	service, there := s.Snapshot.Services.Get(name)
	if !there {
		return false
	}
	for _, vip := range service.Addresses() {
		for i := range service.Ports {
			p := &service.Ports[i]
			f := s.Desired.Frontends.At(balancer.Key{Addr: vip, Port: p.Port, Proto: p.Protocol})
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

// maxStillDown is the maximum number of endpoints that each get an event when vipd starts. All
// other endpoints share an event.
const maxStillDown = 20

// recordStillDown records the endpoints that are down when vipd starts. A previous process recorded
// their failures, so this process's history has no events for them.
func (r *Tracker) recordStillDown(s *model.State, now time.Time) {
	var down []events.Event
	for t, verdict := range s.Inputs.Health.All() {
		if verdict != balancer.HealthDown {
			continue
		}
		since, cause := r.o.DownSince(t)
		if since.IsZero() || since.After(r.o.Started) {
			continue // this process has recorded the failure
		}
		down = append(down, events.Event{
			At: now, Kind: events.Health, Level: slog.LevelWarn, Service: t.Service, Endpoint: t.Address(), Text: "is still down", Cause: cause,
			Was: string(balancer.HealthDown), Lasted: now.Sub(since),
		})
	}
	if n := len(down); n > maxStillDown {
		down = []events.Event{{
			At: now, Kind: events.Health, Level: slog.LevelWarn,
			Text: fmt.Sprintf("%d endpoints are still down, as they were before vipd started; vipctl get endpoints --down lists them", n),
		}}
	}
	for _, e := range down {
		r.o.Events.Record(e)
	}
}

// recordWithdrawn records the start and end of withdrawals of VIPs.
func (r *Tracker) recordWithdrawn(last, s *model.State, now time.Time) {
	for vip, c := range snap.Diff(last.Desired.VIPStates, s.Desired.VIPStates) {
		switch {
		case c.New == balancer.Withdrawn:
			if r.withdrawn == nil {
				r.withdrawn = map[netip.Addr]time.Time{}
			}
			r.withdrawn[vip] = now
			cause := "no endpoint of " + servicesOn(vip, s.Desired) + " is usable"
			if s.Env.Standby {
				cause = "this host is on standby"
			}
			r.o.Events.Record(events.Event{
				Kind: events.VIP, Level: slog.LevelWarn, Text: fmt.Sprintf("withdrew %s: this host does not hold it", vip), Cause: cause,
			})
		case c.Old == balancer.Withdrawn && c.New == balancer.Serving:
			e := events.Event{Kind: events.VIP, Text: fmt.Sprintf("holds %s again: an endpoint of %s is usable", vip, servicesOn(vip, s.Desired)), Was: "withdrawn"}
			if since, known := r.withdrawn[vip]; known {
				e.Lasted = now.Sub(since)
			}
			r.o.Events.Record(e)
			delete(r.withdrawn, vip)
		case c.Old == balancer.Withdrawn:
			delete(r.withdrawn, vip)
		}
	}
}

// servicesOn lists the names of the services on a VIP.
func servicesOn(vip netip.Addr, desired balancer.Desired) string {
	var names []string
	seen := map[balancer.Name]bool{}
	for _, f := range balancer.FrontendsOn(desired.Frontends, vip) {
		if !f.NodePort && !seen[f.Service] {
			seen[f.Service] = true
			names = append(names, string(f.Service))
		}
	}
	return strings.Join(names, ", ")
}

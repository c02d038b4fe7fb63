package outlier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/dataplane"
)

// Detector ejects an endpoint when connections to it fail. Its methods are safe for concurrent use.
type Detector struct {
	o    Options
	wake wake.Signal // sent to Run when another dataplane may have to be watched
	some atomic.Bool // set while an endpoint is ejected, because only then do the results of checks matter

	mu        sync.Mutex // guards the fields below; never held while a call may block
	ejections *health.Ejections
	services  snap.Map[balancer.Name, *balancer.Service]
	rooms     *balancer.EjectionBudget
	checked   int                 // number of services that have checks
	carrier   dataplane.Dataplane // the dataplane that applies frontends
}

// Options configures a Detector.
type Options struct {
	// Rules determine when failed connects eject an endpoint. The default is
	// health.DefaultEjectionRules.
	Rules health.EjectionRules
	// Events records ejections.
	Events *events.History
	// Hint makes the health check of a target run immediately, if it has one. It must not block.
	Hint func(balancer.Target)
	// Kick makes the model call Ejected again. It must not block.
	Kick func()
	// Unanswered receives each connection that an endpoint did not answer. If the kernel made the
	// connection, client is set. Otherwise, err is the error of the dial. It must not block.
	Unanswered func(t balancer.Target, client netip.Addr, err error)
	// Ejects receives the service of each endpoint that is ejected. It must not block.
	Ejects func(balancer.Name)
}

// New returns a Detector that has no results yet.
func New(o Options) *Detector {
	if o.Rules == (health.EjectionRules{}) {
		o.Rules = health.DefaultEjectionRules()
	}
	return &Detector{
		o: o, wake: wake.New(), ejections: health.NewEjections(o.Rules),
		rooms: balancer.NewEjectionBudget(&balancer.Env{}, &balancer.Inputs{}),
	}
}

// Listen subscribes to the results of the dataplane's dials, if it dials. It must be called before
// the dataplane starts.
func (p *Detector) Listen(dp dataplane.Dataplane) {
	if d, dials := dataplane.As[dataplane.ReportsDials](dp); dials {
		d.ReportDials(p.dialed)
	}
}

// dialed handles the result of a connect to t. Goroutines of connections call it.
func (p *Detector) dialed(t balancer.Target, err error) {
	if err != nil {
		p.o.Hint(t)
		p.o.Unanswered(t, netip.Addr{}, err)
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	var x health.EjectionChange
	var changed bool
	if err == nil {
		x, changed = p.ejections.Answered(t, now)
	} else if p.rooms.Has(t) {
		x, changed = p.ejections.Failed(t, causeOf(err), now, p.roomLocked)
	}
	if changed {
		p.changedLocked(x)
		p.o.Kick()
	}
}

// Process handles the result of a check. The result counts only if the check probed the endpoint's
// own port. After rise successful checks, an ejected endpoint is used again.
func (p *Detector) Process(t balancer.Target, at netip.AddrPort, rise int, res health.Result) {
	if !p.some.Load() || at != netip.AddrPortFrom(t.Addr, t.Port) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if x, ended := p.ejections.Checked(t, res, rise, time.Now()); ended {
		p.changedLocked(x)
		p.o.Kick()
	}
}

// Ejected receives new inputs, and returns the ejected endpoints among them.
func (p *Detector) Ejected(in *balancer.Inputs, env *balancer.Env, carrier dataplane.Dataplane) snap.Map[balancer.Target, balancer.Ejection] {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, change := range snap.Diff(p.services, in.Services) {
		if change.HadOld && change.Old.Health != nil {
			p.checked--
		}
		if change.HasNew && change.New.Health != nil {
			p.checked++
		}
	}
	p.services = in.Services
	p.rooms = balancer.NewEjectionBudget(env, in)
	p.carrier = carrier
	for _, x := range p.ejections.Update(time.Now(), p.rooms.Has, p.roomLocked) {
		p.changedLocked(x)
	}
	p.wake.Send()
	return p.ejections.Ejected()
}

// roomLocked returns how many more endpoints may be ejected in the group that shares connections
// with t, according to the last inputs.
func (p *Detector) roomLocked(t balancer.Target) int {
	return p.rooms.Remaining(t, p.ejections.Ejected())
}

// changedLocked counts and records the start of an ejection, or records that the ejection ended.
func (p *Detector) changedLocked(x health.EjectionChange) {
	p.some.Store(p.ejections.Ejected().Len() > 0)
	if x.End == "" {
		p.o.Ejects(x.Target.Service)
	}
	p.o.Events.Record(ejectionEvent(x))
}

func ejectionEvent(x health.EjectionChange) events.Event {
	e := events.Event{Kind: events.Health, Service: x.Target.Service, Endpoint: x.Target.Address()}
	if x.End == "" {
		e.At, e.Level = x.Since, slog.LevelWarn
		e.Text, e.Cause = fmt.Sprintf("is ejected for %s", x.Until.Sub(x.Since)), x.Cause
		return e
	}
	e.At = time.Now()
	e.Text = "is no longer ejected"
	e.Cause = x.End
	e.Was = "ejected"
	e.Lasted = x.For
	return e
}

// Next returns the time when the next ejection ends, or zero if no endpoint is ejected.
func (p *Detector) Next() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ejections.Next()
}

type looking struct {
	in       dataplane.WatchesUnanswered // the dataplane to watch, or nil
	refusals bool                        // also watch refused connections
}

// Run watches the kernel's connections until ctx is done.
func (p *Detector) Run(ctx context.Context) error {
	var now looking
	var running sync.WaitGroup
	stop := func() {}
	for {
		select {
		case <-ctx.Done():
			running.Wait()
			return nil
		case <-p.wake:
		}
		wanted := p.wanted()
		if wanted == now {
			continue
		}
		stop()
		running.Wait()
		if now, stop = wanted, func() {}; now.in != nil {
			part, end := context.WithCancel(ctx)
			running.Go(func() { p.keepLooking(part, wanted) })
			stop = end
		}
	}
}

// wanted returns how to watch the kernel's connections. Refused connections are only watched if
// services have health checks.
func (p *Detector) wanted() looking {
	p.mu.Lock()
	defer p.mu.Unlock()
	in, _ := dataplane.As[dataplane.WatchesUnanswered](p.carrier)
	return looking{in, p.checked > 0}
}

// suspect handles the kernel's report of a connection that an endpoint refused or did not answer.
func (p *Detector) suspect(s dataplane.FailedConnect) {
	if s.Counted {
		p.o.Unanswered(s.Target, s.Client, nil)
		return
	}
	p.o.Hint(s.Target)
}

// The pause between two attempts to watch doubles each time, within these limits.
const (
	lookPause    = time.Second
	longestPause = time.Minute
)

// keepLooking watches until ctx is done, and retries after failures. Consecutive failures are
// logged once. A failure after a long success is logged again.
func (p *Detector) keepLooking(ctx context.Context, how looking) {
	pause, logged := lookPause, false
	for {
		began := time.Now()
		err := how.in.WatchUnanswered(ctx, how.refusals, p.suspect)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longestPause {
			pause, logged = lookPause, false
		}
		if err != nil && !logged {
			logged = true
			p.o.Events.Record(events.Event{
				Kind: events.Problem, Level: slog.LevelWarn, Cause: err.Error(),
				Text: "unanswered connections can't be detected; until a retry succeeds, only health checks find endpoints that are down",
			})
		}
		if !wake.Sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, longestPause)
	}
}

func causeOf(err error) string {
	var errno syscall.Errno
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

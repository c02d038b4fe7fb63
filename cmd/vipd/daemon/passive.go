package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/snap"
	"vipd/cmd/internal/journal"
	"vipd/dataplane"
)

// passive learns from what comes of clients' connections:
//
//	userspace: each dial       -> ejections -> the model compiles without the endpoint
//	                           -> where the service has a check, that is done at once
//	kernel modes: no answer    -> where the service has a check, that is done at once
//
// Only userspace mode ejects: it knows what came of each connect, and tries another endpoint before the client notices.
type passive struct {
	*Daemon
	wake chan struct{} // holds one token for run: there is something to be recorded, or to be looked for elsewhere
	some atomic.Bool   // something is ejected: results of checks matter

	mu        sync.Mutex // guards the rest; nothing is called with it held that waits
	ejections *health.Ejections
	env       balancer.Env
	in        balancer.Inputs
	checked   int                 // services that have checks
	carrier   dataplane.Dataplane // what carries out
	events    []journal.Event     // to be recorded
}

func newPassive(d *Daemon) *passive {
	rules := d.Ejection
	if rules == (health.EjectionRules{}) {
		rules = health.DefaultEjectionRules()
	}
	return &passive{Daemon: d, wake: make(chan struct{}, 1), ejections: health.NewEjections(rules)}
}

// listen has a dataplane that has not begun yet tell what comes of its dials, if it makes any.
func (p *passive) listen(dp dataplane.Dataplane) {
	if dialer, ok := dp.(dataplane.Dialer); ok {
		dialer.TellDials(p.dialed)
	}
}

// dialed takes in what came of a connect to t. It is called by connections.
func (p *passive) dialed(t balancer.Target, err error) {
	if err != nil {
		p.checks.runner.Hint(t)
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	var x health.Ejected
	var changed bool
	if err == nil {
		x, changed = p.ejections.Answered(t, now)
	} else if isEndpoint(&p.in, t) {
		x, changed = p.ejections.Failed(t, causeOf(err), now, p.roomLocked)
	}
	if changed {
		p.changedLocked(x)
		p.model.kick()
	}
}

// heard takes in the result of a check, which counts for an ejection if it looked at the endpoint's own port.
func (p *passive) heard(t balancer.Target, at netip.AddrPort, res health.Result) {
	if !p.some.Load() || at != netip.AddrPortFrom(t.Addr, t.Port) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.in.Services.At(t.Service)
	if s == nil || s.Health == nil {
		return
	}
	if x, ended := p.ejections.Checked(t, res, s.Health.Rise, time.Now()); ended {
		p.changedLocked(x)
		p.model.kick()
	}
}

// ejected takes in what is compiled next, and returns what is ejected of it.
func (p *passive) ejected(in *balancer.Inputs, env *balancer.Env, carrier dataplane.Dataplane) snap.Map[balancer.Target, balancer.Ejection] {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, change := range snap.Diff(p.in.Services, in.Services) {
		if change.HadOld && change.Old.Health != nil {
			p.checked--
		}
		if change.HasNew && change.New.Health != nil {
			p.checked++
		}
	}
	p.in, p.env, p.carrier = *in, *env, carrier
	is := func(t balancer.Target) bool { return isEndpoint(in, t) }
	for _, x := range p.ejections.Follow(time.Now(), is, p.roomLocked) {
		p.changedLocked(x)
	}
	p.kick()
	return p.ejections.Now()
}

// roomLocked is balancer.EjectionRoom for what was last compiled, with what is ejected by now.
func (p *passive) roomLocked(t balancer.Target) int {
	in := p.in
	in.Ejected = p.ejections.Now()
	return balancer.EjectionRoom(&p.env, &in, t)
}

// changedLocked has it be recorded that an ejection began or ended.
func (p *passive) changedLocked(x health.Ejected) {
	p.some.Store(p.ejections.Now().Len() > 0)
	p.events = append(p.events, ejectionEvent(x))
	p.kick()
}

func ejectionEvent(x health.Ejected) journal.Event {
	e := journal.Event{Kind: journal.Health, Service: x.Target.Service, Endpoint: x.Target.Address()}
	if x.End == "" {
		e.At, e.Level = x.Since, slog.LevelWarn
		e.Text, e.Cause = fmt.Sprintf("is ejected for %s", x.Until.Sub(x.Since)), x.Cause
		return e
	}
	e.At = time.Now()
	e.Text, e.Cause, e.Was, e.Lasted = "is no longer ejected", x.End, "ejected", x.For
	return e
}

// next returns when the next ejection ends; zero: nothing is ejected.
func (p *passive) next() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ejections.Next()
}

func (p *passive) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run records what happens, and has the kernel's connections looked at while that is of use, until ctx ends.
func (p *passive) run(ctx context.Context) error {
	var looking dataplane.Dataplane // its kernel's connections are looked at
	stop := func() {}
	for {
		select {
		case <-ctx.Done():
			stop()
			p.record()
			return nil
		case <-p.wake:
		}
		if wanted := p.record(); wanted != looking {
			stop()
			looking, stop = wanted, p.look(ctx, wanted)
		}
	}
}

// record records what has happened, and returns the dataplane whose kernel's connections are to be looked at; nil: none.
func (p *passive) record() dataplane.Dataplane {
	p.mu.Lock()
	events, look, checked := p.events, p.carrier, p.checked > 0
	p.events = nil
	p.mu.Unlock()
	for _, e := range events {
		p.journal.Record(e)
	}
	if _, can := look.(dataplane.Suspecter); !can || !checked {
		return nil
	}
	return look
}

// look begins to look for connections without an answer; what it returns ends that, and waits for it.
func (p *passive) look(ctx context.Context, dp dataplane.Dataplane) (stop func()) {
	suspecter, can := dp.(dataplane.Suspecter)
	if !can {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // what is returned waits for it
		defer close(done)
		if err := suspecter.Suspect(ctx, func(t balancer.Target) { p.checks.runner.Hint(t) }); err != nil {
			p.Log.Warn("connections without an answer are not looked for, only health checks find out who is down", "component", "health", "err", err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// isEndpoint reports whether a service has an endpoint at t, which has a port.
func isEndpoint(in *balancer.Inputs, t balancer.Target) bool {
	s, ok := in.Services.Get(t.Service)
	return ok && slices.ContainsFunc(balancer.EndpointsOf(s, in), func(e *balancer.Endpoint) bool {
		return e.Address == t.Addr && slices.ContainsFunc(s.Ports, func(q balancer.Port) bool { return e.TargetPort(&q) == t.Port })
	})
}

// causeOf says why a connect failed, in words.
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

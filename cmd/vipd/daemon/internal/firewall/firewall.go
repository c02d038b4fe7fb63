package firewall

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/doctor"
)

// Options are what a Watch needs.
type Options struct {
	// Host returns what is examined, with the frontends of now.
	Host func() doctor.Host
	// Interval is the time between two looks. Default a minute.
	Interval time.Duration
}

// Watch looks at the firewalls of the host.
type Watch struct {
	o       Options
	found   atomic.Pointer[[]balancer.Problem]
	changed chan struct{} // holds one token: Problems returns something else than before
}

// New returns a Watch that has found nothing yet.
func New(o Options) *Watch {
	o.Interval = cmp.Or(o.Interval, time.Minute)
	w := &Watch{o: o, changed: make(chan struct{}, 1)}
	w.found.Store(&[]balancer.Problem{})
	return w
}

// Problems returns what the last look has found. It must not be changed.
func (w *Watch) Problems() []balancer.Problem { return *w.found.Load() }

// Changed is sent to when a look has found something else than the one before. It has one reader.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Run looks until ctx ends, for the first time after one interval: before that, vipd's rules may not be there.
func (w *Watch) Run(ctx context.Context) error {
	next := time.NewTicker(w.o.Interval)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			w.look(ctx)
		}
	}
}

// lookTime bounds how long one look may take: the programs that it runs wait for locks of others.
const lookTime = 30 * time.Second

// look examines the host once. A look that was cut short counts for nothing.
func (w *Watch) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	h := w.o.Host()
	found := []balancer.Problem{}
	if len(h.Frontends) > 0 {
		for _, f := range doctor.Drops(ctx, h) {
			found = append(found, problem(f))
		}
	}
	if ctx.Err() != nil || slices.Equal(found, w.Problems()) {
		return
	}
	w.found.Store(&found)
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func problem(f doctor.Finding) balancer.Problem {
	p := balancer.Problem{Severity: balancer.SeverityWarning, Text: f.What}
	if f.Level == doctor.Problem {
		p.Severity = balancer.SeverityError
	}
	if f.Why != "" {
		p.Text += "; " + f.Why
	}
	if f.Mend != "" {
		p.Text += ": " + f.Mend
	}
	return p
}

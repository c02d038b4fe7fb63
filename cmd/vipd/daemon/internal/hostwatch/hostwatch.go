package hostwatch

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/doctor"
)

// Watch looks at the firewalls of the host, at its programs that listen where services are, and at vipd's files.
type Watch struct {
	interval time.Duration
	found    atomic.Pointer[[]balancer.Problem]
}

// New returns a Watch that has found nothing yet. Interval is the time between two looks; 0 means a minute.
func New(interval time.Duration) *Watch {
	w := &Watch{interval: cmp.Or(interval, time.Minute)}
	w.found.Store(&[]balancer.Problem{})
	return w
}

// Problems returns what the last look has found. It must not be changed.
func (w *Watch) Problems() []balancer.Problem { return *w.found.Load() }

// Run looks at what host returns, with the frontends of now, and asks files what is wrong with those, until ctx ends, for the first
// time after one interval: before that, vipd's rules may not be there.
func (w *Watch) Run(ctx context.Context, host func() doctor.Host, files func() []balancer.Problem) error {
	next := time.NewTicker(w.interval)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			w.look(ctx, host(), files())
		}
	}
}

// lookTime bounds how long one look may take: the programs that it runs wait for locks of others.
const lookTime = 30 * time.Second

// look examines the host once, and adds what it finds to found. A look that was cut short counts for nothing.
func (w *Watch) look(ctx context.Context, h doctor.Host, found []balancer.Problem) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	if len(h.Frontends) > 0 {
		for _, f := range doctor.Watched(ctx, h) {
			found = append(found, f.Problem())
		}
	}
	if ctx.Err() == nil {
		w.found.Store(&found)
	}
}

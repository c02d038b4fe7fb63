package hostwatch

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/doctor"
)

// Watch checks the host's firewalls, programs that listen on services' ports, and vipd's files.
type Watch struct {
	interval time.Duration
	found    atomic.Pointer[[]balancer.Problem]
}

// New returns a Watch without findings. interval is the pause between two checks. If it is 0, the
// pause is a minute.
func New(interval time.Duration) *Watch {
	w := &Watch{interval: cmp.Or(interval, time.Minute)}
	w.found.Store(&[]balancer.Problem{})
	return w
}

// Problems returns the findings of the last check. The caller must not change the result.
func (w *Watch) Problems() []balancer.Problem { return *w.found.Load() }

// Run regularly examines the host that the function host describes, until ctx is done. It adds the
// problems that the function files returns. It first waits for an interval, because vipd's own
// rules may not exist before that.
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

// lookTime is the timeout of a check. A check runs programs, which may wait for locks that other
// programs hold.
const lookTime = 30 * time.Second

// look examines the host once, adds its findings to found, and stores the result. It discards the
// results of a check that timed out.
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

package ipvs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/lvs"
)

// drains sees destinations that take no new connections to their end: they are deleted when their last connection has
// ended, or its time. A goroutine of its own looks after them while there are any.
type drains struct {
	wake chan struct{} // holds one token: there may be something to do

	mu      sync.Mutex
	stop    context.CancelFunc
	started bool
	running sync.WaitGroup
	watch   func(ctx context.Context)
}

// Drains are looked at every drainEvery, and looking takes at most a drainShare'th of the time.
const (
	drainEvery = time.Second
	drainShare = 20
)

// fewDrains is up to how many virtual servers are asked for one by one; for more, the table is read, and only those are
// asked for that it shows to be done.
const fewDrains = 64

func (r *drains) begin(watch func(ctx context.Context)) {
	r.wake, r.watch = make(chan struct{}, 1), watch
}

// look has the goroutine look at once, which is begun if it is needed.
func (r *drains) look(needed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop == nil && needed && !r.started {
		ctx, cancel := context.WithCancel(context.Background())
		r.stop, r.started = cancel, true
		r.running.Go(func() { r.watch(ctx) })
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// close ends the goroutine; it does not begin again.
func (r *drains) close() {
	r.mu.Lock()
	if r.started = true; r.stop != nil {
		r.stop()
	}
	r.mu.Unlock()
	r.running.Wait()
}

// watchDrains looks after drains until ctx ends.
func (d *Dataplane) watchDrains(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.drains.wake:
		case <-timer.C:
		}
		began := time.Now()
		next, err := d.sweep(ctx)
		if err != nil && ctx.Err() == nil {
			d.log.Warn("ending connections to endpoints that are gone; trying again", "err", err)
		}
		if next.IsZero() {
			continue
		}
		// Not before the next drain's end, but often enough to see last connections end.
		pause := max(drainEvery, drainShare*time.Since(began))
		timer.Reset(max(min(pause, time.Until(next)), 0))
	}
}

// sweep removes what has served out its time, and returns by when it has to be asked for again; zero: there is nothing.
func (d *Dataplane) sweep(ctx context.Context) (next time.Time, err error) {
	d.mu.Lock()
	keys := slices.Collect(maps.Keys(d.quiet))
	d.mu.Unlock()
	if len(keys) > fewDrains {
		if keys, err = d.sift(ctx, keys); err != nil {
			return time.Now().Add(drainEvery), err
		}
	}
	for part := range slices.Chunk(keys, fewDrains) {
		err = errors.Join(err, d.settle(ctx, part))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.quiet) == 0 {
		return next, err
	}
	now := time.Now()
	next = now.Add(time.Hour) // whoever calls looks more often
	for k := range d.quiet {
		if s := d.servers[k]; s != nil {
			if t := s.next(now); !t.IsZero() && t.Before(next) {
				next = t
			}
		}
	}
	return next, err
}

// sift returns the keys of which the kernel's table shows that something may be done.
func (d *Dataplane) sift(ctx context.Context, keys []balancer.Key) ([]balancer.Key, error) {
	table, err := d.conn.Table(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(keys, func(k balancer.Key) bool {
		s, entry := d.servers[k], table[k]
		return s == nil || !slices.ContainsFunc(entry.Destinations, func(t lvs.TableDestination) bool {
			return t.Weight == 0 && (t.Active+t.Inactive == 0 || s.expired(t.Addr, now))
		})
	}), nil
}

// settle removes what has served out its time of a few virtual servers.
func (d *Dataplane) settle(ctx context.Context, keys []balancer.Key) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := round{d: d, ctx: ctx, errs: map[*server]error{}}
	var work []*server
	for _, k := range keys {
		if s := d.servers[k]; s != nil && s.there && !s.unsure && s.told {
			work = append(work, s)
		}
	}
	ends := r.endings(work, nil)
	r.send(work, func(s *server) []lvs.Op { return ends[s] })
	var failed error
	for _, s := range work {
		failed = errors.Join(failed, r.errs[s])
	}
	// What was not as it was known to be is found by the next look at everything.
	return errors.Join(failed, d.ledger.save())
}

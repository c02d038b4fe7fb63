package ipvs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// Drains are looked at every drainEvery, and looking takes at most a drainShare'th of the time.
const (
	drainEvery = time.Second
	drainShare = 20
)

// fewDrains is up to how many virtual servers are asked for one by one; for more, the table is read, and only those are
// asked for that it shows to be done.
const fewDrains = 64

// endDrains deletes destinations that take no new connections once their last connection has ended, or their time is over. It
// returns when it has to be called again; zero means there are none. Called earlier, as after each change, it looks at nothing.
func (d *Dataplane) endDrains(ctx context.Context) (next time.Time) {
	began := time.Now()
	if next := d.drainsDue(began); began.Before(next) {
		return next
	}
	if err := d.settleAll(ctx); err != nil && ctx.Err() == nil {
		d.log.Warn("ending connections to endpoints that are gone; trying again", "err", err)
	}
	now := time.Now()
	d.mu.Lock()
	d.due = now.Add(max(drainEvery, drainShare*now.Sub(began)))
	none := len(d.quiet) == 0
	d.mu.Unlock()
	if none {
		return time.Time{}
	}
	return d.drainsDue(now)
}

// drainsDue brings forward when drains are due to when the first time after now is over, and returns it.
func (d *Dataplane) drainsDue(now time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k := range d.quiet {
		if s := d.servers[k]; s != nil {
			if t := s.next(now); !t.IsZero() && t.Before(d.due) {
				d.due = t
			}
		}
	}
	return d.due
}

func (d *Dataplane) settleAll(ctx context.Context) error {
	d.mu.Lock()
	keys := slices.Collect(maps.Keys(d.quiet))
	d.mu.Unlock()
	var failed error
	if len(keys) > fewDrains {
		if keys, failed = d.sift(ctx, keys); failed != nil {
			return failed
		}
	}
	for part := range slices.Chunk(keys, fewDrains) {
		failed = errors.Join(failed, d.settle(ctx, part))
	}
	return failed
}

// sift returns the keys of which the kernel's table shows that something may be done, and those that it leaves out.
func (d *Dataplane) sift(ctx context.Context, keys []balancer.Key) ([]balancer.Key, error) {
	table, err := d.conn.Table(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(keys, func(k balancer.Key) bool {
		s := d.servers[k]
		entry, told := table[k]
		return s == nil || told && !slices.ContainsFunc(entry.Destinations, func(t ipvsnl.TableDestination) bool {
			return t.Weight == 0 && (t.Active+t.Inactive == 0 || s.expired(t.Addr, now))
		})
	}), nil
}

// settle removes what has served out its time of a few virtual servers.
func (d *Dataplane) settle(ctx context.Context, keys []balancer.Key) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := newRound(ctx, d)
	var work []*server
	for _, k := range keys {
		s := d.servers[k]
		if s == nil || !s.told {
			continue
		}
		if s.unsure {
			if err := d.refreshLocked(ctx, s); err != nil {
				r.errs[s] = err
			}
		}
		work = append(work, s)
	}
	ends := r.endings(work, nil)
	r.send(work, func(s *server) []ipvsnl.Op { return ends[s] })
	var failed error
	for _, s := range work {
		failed = errors.Join(failed, r.errs[s])
	}
	return errors.Join(failed, d.ledger.save())
}

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

// Drains are checked every drainEvery, and the checks use at most 1/drainShare of the time.
const (
	drainEvery = time.Second
	drainShare = 20
)

// fewDrains is the maximum number of virtual servers that are read one by one. If there are more,
// vipd reads the whole table, and then individually reads the virtual servers without connections
// in the table.
const fewDrains = 64

// endDrains deletes draining destinations whose last connection has ended, or whose drain timeout
// has passed. It returns the time at which it must be called again, or zero if nothing drains.
// Calls before that time, for example after a change, do nothing.
func (d *Dataplane) endDrains(ctx context.Context) (next time.Time) {
	began := time.Now()
	if next := d.drainsDue(began); began.Before(next) {
		return next
	}
	if err := d.removeAllEnded(ctx); err != nil && ctx.Err() == nil {
		d.log.Warn("connections to removed endpoints can't be ended; trying again", "err", err)
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

// drainsDue returns the time of the next check, which is brought forward if a drain's deadline is
// earlier.
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

func (d *Dataplane) removeAllEnded(ctx context.Context) error {
	d.mu.Lock()
	keys := slices.Collect(maps.Keys(d.quiet))
	d.mu.Unlock()
	var failed error
	if len(keys) > fewDrains {
		if keys, failed = d.endedKeys(ctx, keys); failed != nil {
			return failed
		}
	}
	for part := range slices.Chunk(keys, fewDrains) {
		failed = errors.Join(failed, d.removeEnded(ctx, part))
	}
	return failed
}

// endedKeys returns the keys that have a removable destination according to the kernel's table, and
// the keys that are missing from the table.
func (d *Dataplane) endedKeys(ctx context.Context, keys []balancer.Key) ([]balancer.Key, error) {
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

func (d *Dataplane) removeEnded(ctx context.Context, keys []balancer.Key) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := newRound(ctx, d)
	var work []*server
	for _, k := range keys {
		s := d.servers[k]
		if s == nil || !s.known {
			continue
		}
		if s.unsure {
			if err := d.refreshLocked(ctx, s); err != nil {
				r.errs[s] = err
			}
		}
		work = append(work, s)
	}
	ends := r.removals(work, nil)
	r.send(work, func(s *server) []ipvsnl.Op { return ends[s] })
	var failed error
	for _, s := range work {
		failed = errors.Join(failed, r.errs[s])
	}
	return errors.Join(failed, d.ledger.save())
}

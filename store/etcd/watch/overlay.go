package watch

import (
	"maps"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/store"
	"vipd/store/etcd/schema"
)

// overlay is the pending change that is or last was in effect on this node.
type overlay struct {
	pending *schema.Pending
	// form is how snapshots list the change. It is nil if the change has ended.
	form *store.Pending
	// changed holds the change's services that were written after it started.
	changed map[balancer.Name]bool
}

// isSame reports whether p is the same change, even if one of the two has ended.
func (o *overlay) isSame(p *schema.Pending) bool {
	return o.pending != nil && p != nil && o.pending.By == p.By && o.pending.Since.Equal(p.Since)
}

// overlaid returns the services of s, with the pending change applied if it is for this node. A
// service that was written after the start of the change keeps the written text. After a
// confirmation, the pending text of each service stays in use until its written text arrives,
// because the keys are followed separately.
func (w *watchRun) overlaid(s *state, now time.Time) (snap.Map[balancer.Name, *balancer.Service], []*store.Pending) {
	services := s.Services
	p := s.pending
	t := &w.trial
	live := p != nil && p.Live(now) && p.Covers(w.options.Node, w.options.Zone())
	w.notePending(p, live, now)
	if live || t.isSame(p) && p.Confirmed && now.Before(p.Until) {
		for _, name := range slices.Sorted(maps.Keys(p.Services)) {
			next, stored := p.Services[name], int64(0)
			if r := s.records.At(rawKey(s.keys.Service(name))); r != nil {
				stored = r.now.modified
			}
			if stored > next.Base {
				t.changed[name] = true
			}
			if removed := stored == 0 && next.Base > 0; !removed && !t.changed[name] {
				services = services.Set(name, s.allocated(scoped(next.Service, p)))
			}
		}
	}
	if t.form == nil {
		return services, nil
	}
	return services, []*store.Pending{t.form}
}

// scoped returns the pending service in the form that p's nodes use. If p is only for some nodes,
// each node runs the checks itself: other nodes have another definition, and a vote does not name
// the definition that it applies to.
func scoped(s *balancer.Service, p *schema.Pending) *balancer.Service {
	if len(p.On) == 0 || s.Health == nil {
		return s
	}
	alone := func(h *balancer.Health) *balancer.Health {
		own := *h
		own.From = balancer.HealthFromNode
		return &own
	}
	own := *s
	own.Health, own.MoreHealth = alone(s.Health), nil
	for _, h := range s.MoreHealth {
		own.MoreHealth = append(own.MoreHealth, alone(h))
	}
	return &own
}

// notePending reports the start and the end of the pending change on this node.
func (w *watchRun) notePending(p *schema.Pending, live bool, now time.Time) {
	t := &w.trial
	if t.form != nil && live && t.isSame(p) {
		return
	}
	if ended := t.form; ended != nil {
		how, by := store.Aborted, ""
		if t.isSame(p) {
			by = p.Ended
		}
		switch {
		case t.isSame(p) && p.Confirmed:
			how = store.Confirmed
		case by == "" && !now.Before(t.pending.Until):
			how = store.Expired
		}
		t.form = nil
		w.options.Pended(ended, how, by)
	}
	if live {
		form := &store.Pending{Place: w.keys.Pending(), By: p.By, Since: p.Since, Until: p.Until, On: p.On}
		*t = overlay{p, form, map[balancer.Name]bool{}}
		w.options.Pended(form, store.Started, p.By)
	}
}

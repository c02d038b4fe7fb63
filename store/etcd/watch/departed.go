package watch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/store/etcd/client"
)

const (
	// together is the maximum time between endpoints that count as vanished together. Leases that
	// are no longer renewed expire one by one, in the order of their last renewal.
	together = 30 * time.Second
	// comeback is how long kept endpoints stay in use after the first endpoint of their service has
	// been registered again.
	comeback = 30 * time.Second
)

// departure is an endpoint that vanished with its lease.
type departure struct {
	*record
	// at is when the endpoint vanished.
	at time.Time
	// kept reports whether the endpoint stays in use. After another endpoint has been registered
	// again, this endpoint stays in use only until the time until.
	kept  bool
	until time.Time
}

// absence summarizes the vanished endpoints of a service. They are checked again only if the
// absence changes.
type absence struct {
	// kept is how many vanished endpoints stay in use.
	kept int
	// own is set if the service does not need kept endpoints, because it has endpoints in its
	// definition or was removed. empty is set if no other endpoint is registered.
	own, empty bool
	// due is when the endpoints must be checked again, or zero if no check is necessary.
	due time.Time
}

// depart records an endpoint that was removed, if it may have vanished with its lease.
func (s *state) depart(key rawKey, r *record, now time.Time) {
	if e, _ := r.decoded.(*balancer.Endpoint); e != nil && r.now.lease != 0 && !e.Draining && e.Weight > 0 {
		s.departed = s.departed.Set(key, &departure{record: r, at: now})
		a := s.absences.At(r.Of)
		if a.own || a.empty {
			a.due = now
		} else if a.due.IsZero() {
			a.due = now.Add(together)
		}
		s.absences = s.absences.Set(r.Of, a)
	}
}

// restoreDeparted adds an endpoint that was already kept before a restart.
func (s *state) restoreDeparted(r *record, now time.Time) {
	key, a := rawKey(r.key), s.absences.At(r.Of)
	s.departed = s.departed.Set(key, &departure{record: r, at: now, kept: true})
	s.unsure = s.unsure.Set(key, true)
	a.kept, a.due = a.kept+1, now
	s.absences = s.absences.Set(r.Of, a)
}

// If the last endpoints of a service have vanished together, keepDeparted keeps them in use as long
// as no other endpoint is registered. It also reports them as a problem.
func (s *state) keepDeparted(name balancer.Name, now time.Time) {
	folder := s.keys.EndpointsOf(name)
	a, ok := s.absences.Get(name)
	if ok {
		service := s.Services.At(name)
		own, empty := service == nil || len(service.Endpoints) > 0, s.counts.At(rawKey(folder)) == 0
		if own != a.own || empty != a.empty || !a.due.IsZero() && !now.Before(a.due) {
			a = s.decideDeparted(name, absence{own: own, empty: empty}, now)
		}
	}
	text := fmt.Sprintf("the leases of its last endpoints have ended: %d endpoints stay in use until an endpoint is registered again", a.kept)
	if a.kept == 1 {
		text = "the lease of its last endpoint has ended: it stays in use until an endpoint is registered again"
	}
	s.setProblems(rawKey(folder+"\x00kept"), notice(a.kept > 0, balancer.SeverityWarning, name, folder, text))
}

// decideDeparted decides whether each vanished endpoint of a service is kept.
func (s *state) decideDeparted(name balancer.Name, a absence, now time.Time) absence {
	left := 0
	for key, d := range below(s.departed, s.keys.EndpointsOf(name)) {
		next := *d
		switch {
		case a.own:
			next.kept, next.at = false, time.Time{}
		case a.empty:
			next.kept, next.until = d.kept || now.Sub(d.at) <= together, time.Time{}
		case d.kept && d.until.IsZero():
			next.until = now.Add(comeback)
		case d.kept:
			next.kept = now.Before(d.until)
		}
		switch {
		case next.kept:
			a.kept++
			a.due = next.until
			s.addValue(d.record, now)
			if !d.kept {
				s.unsure = s.unsure.Set(key, true)
			}
			if next != *d {
				s.departed = s.departed.Set(key, &next)
			}
		case d.kept || now.Sub(next.at) > together:
			s.forget(key)
			continue
		}
		left++
	}
	if left == 0 {
		s.absences = s.absences.Delete(name)
		return absence{}
	}
	if left > a.kept && a.due.IsZero() {
		a.due = now.Add(together)
	}
	s.absences = s.absences.Set(name, a)
	return a
}

// forget removes a vanished endpoint from the state.
func (s *state) forget(key rawKey) {
	if d := s.returned(key); d != nil {
		s.removeValue(d.record)
	}
}

// returned removes an endpoint from the vanished endpoints and returns its departure. It returns
// nil if the endpoint had not vanished.
func (s *state) returned(key rawKey) *departure {
	d := s.departed.At(key)
	if d == nil {
		return nil
	}
	s.departed, s.unsure = s.departed.Delete(key), s.unsure.Delete(key)
	if d.kept {
		a := s.absences.At(d.Of)
		a.kept--
		s.absences = s.absences.Set(d.Of, a)
	}
	return d
}

// maxAsked is the maximum number of leases in a request. The limit exists so that a deleted
// endpoint does not wait for all other leases.
const maxAsked = 500

// ask returns the leases of up to maxAsked kept endpoints whose state is unknown. It removes these
// endpoints from unsure until their leases are answered.
func (s *state) ask() (leases []leaseNews) {
	for key := range s.unsure.Keys() {
		if len(leases) == maxAsked {
			break
		}
		leases = append(leases, leaseNews{key: key, lease: s.departed.At(key).now.lease})
		s.unsure = s.unsure.Delete(key)
	}
	return leases
}

// answer processes the state of a lease. If the lease is still live, the endpoint was deleted on
// purpose and is not kept.
func (s *state) answer(news leaseNews) {
	d, ok := s.departed.Get(news.key)
	if !ok || d.now.lease != news.lease {
		return
	}
	switch news.LeaseAnswer {
	case client.LeaseLives:
		s.forget(news.key)
	case client.LeaseUnknown:
		if d.kept {
			s.unsure = s.unsure.Set(news.key, true)
		}
	}
}

// leaseNews is the state of a key's lease.
type leaseNews struct {
	key   rawKey
	lease int64
	client.LeaseAnswer
}

// leases requests the state of kept endpoints' leases from etcd.
type leases struct {
	link    *client.Link
	asking  sync.WaitGroup
	answers chan []leaseNews
	// busy reports whether an answer is pending. paused reports whether etcd could not answer, in
	// which case the next tick repeats the request.
	busy, paused bool
}

// ask requests the state of the leases of some endpoints, unless another request is pending.
func (l *leases) ask(ctx context.Context, s *state) {
	if l.busy || l.paused {
		return
	}
	leases := s.ask()
	if leases == nil {
		return
	}
	l.busy = true
	l.asking.Go(func() {
		ids := make([]int64, len(leases))
		for i := range leases {
			ids[i] = leases[i].lease
		}
		for i, answer := range l.link.AskLeases(ctx, ids) {
			leases[i].LeaseAnswer = answer
		}
		l.answers <- leases // the channel has room, because only one request is pending at a time
	})
}

// answered processes the answer to a request for the state of leases.
func (w *watchRun) answered(leases []leaseNews) {
	w.leases.busy = false
	services := map[balancer.Name]bool{}
	for _, news := range leases {
		w.state.answer(news)
		if w.reading != nil {
			w.reading.answer(news)
		}
		if news.LeaseAnswer == client.LeaseUnknown {
			w.leases.paused = true
		} else {
			services[serviceOf(w.keys, news.key)] = true
		}
	}
	w.settle(services)
}

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
	// together is the maximum time between endpoints that vanish together: leases that are no
	// longer renewed end in the order of their last renewal.
	together = 30 * time.Second
	// comeback is the time for which kept endpoints stay in use after the first endpoint of their
	// service is registered again.
	comeback = 30 * time.Second
)

// departure is an endpoint that vanished with its lease.
type departure struct {
	*record
	// at is the time when it vanished.
	at time.Time
	// kept reports whether it stays in use, until the given time once others are registered again.
	kept  bool
	until time.Time
}

// absence sums up the vanished endpoints of a service. They are checked again only if it changes.
type absence struct {
	// kept is the number of kept endpoints.
	kept int
	// own reports whether the service needs none of them, because it has its own endpoints or was
	// removed. empty reports whether no other endpoint is registered.
	own, empty bool
	// due is the time of their next check; zero means never.
	due time.Time
}

// depart remembers an endpoint that was removed, if it may have vanished with its lease.
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

// restoreDeparted adds an endpoint that was kept before a restart.
func (s *state) restoreDeparted(r *record, now time.Time) {
	key, a := rawKey(r.key), s.absences.At(r.Of)
	s.departed = s.departed.Set(key, &departure{record: r, at: now, kept: true})
	s.unsure = s.unsure.Set(key, true)
	a.kept, a.due = a.kept+1, now
	s.absences = s.absences.Set(r.Of, a)
}

// keepDeparted keeps the endpoints of a service that vanished together in use while no other is
// registered.
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
	text := fmt.Sprintf("the leases of its last endpoints have ended: %d stay in use until one is registered again", a.kept)
	if a.kept == 1 {
		text = "the lease of its last endpoint has ended: it stays in use until one is registered again"
	}
	s.setProblems(rawKey(folder+"\x00kept"), notice(a.kept > 0, balancer.SeverityWarning, name, folder, text))
}

// decideDeparted decides for each vanished endpoint of a service whether it is kept.
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
			s.use(d.record, now)
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

// forget removes an endpoint that vanished.
func (s *state) forget(key rawKey) {
	if d := s.returned(key); d != nil {
		s.disuse(d.record)
	}
}

// returned removes an endpoint from those that vanished, and returns its departure; nil means that
// it had not vanished.
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

// maxAsked is the maximum number of leases of one request: a deleted endpoint must not wait for all
// others.
const maxAsked = 500

// ask returns the leases of some kept endpoints, and notes that they are being asked about.
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

// answer processes the state of a lease. An endpoint that was deleted while its lease lived is not
// kept.
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

// leaseNews is the answer to a question about the lease of a key.
type leaseNews struct {
	key   rawKey
	lease int64
	client.LeaseAnswer
}

// leases asks etcd about the leases of endpoints that are kept.
type leases struct {
	link    *client.Link
	asking  sync.WaitGroup
	answers chan []leaseNews
	// busy reports whether an answer is outstanding, and paused whether etcd could not answer: then
	// the next tick asks again.
	busy, paused bool
}

// ask asks about some endpoints of a state, unless others are being asked about.
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
		l.answers <- leases // it has room: only one question is asked at a time
	})
}

// answered processes the answers of etcd about leases.
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

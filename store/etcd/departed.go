package etcd

import (
	"fmt"
	"time"

	"vipd/balancer"
)

const (
	// together is how far apart endpoints may vanish that vanish together: leases that are no longer renewed end in the
	// order in which they were renewed last.
	together = 30 * time.Second
	// comeback is how long those that are kept stay once the first of a service has come back.
	comeback = 30 * time.Second
)

// departure is what is known of an endpoint that vanished with its lease.
type departure struct {
	*record
	// at is when that was seen.
	at time.Time
	// kept: it stays in use nevertheless, until the time that is set once others are back.
	kept  bool
	until time.Time
	// asked: etcd was asked whether the lease has really ended.
	asked bool
}

// depart remembers an endpoint that was removed, if it may have vanished with its lease rather than on purpose.
func (s *state) depart(key rawKey, r *record, now time.Time) {
	if e, _ := r.says.(*balancer.Endpoint); e != nil && r.now.lease != 0 && !e.Draining && e.Weight > 0 {
		s.departed = s.departed.Set(key, &departure{record: r, at: now})
	}
}

// keepDeparted keeps endpoints of a service in use that vanished together, where nothing else is left, or ends that.
func (s *state) keepDeparted(name balancer.Name, now time.Time) {
	folder := s.keys.endpointsOf(name)
	service := s.services.At(name)
	left, kept := s.counts.At(rawKey(folder)), 0
	for key, d := range below(s.departed, folder) {
		next := *d
		switch {
		case service == nil || len(service.Endpoints) > 0:
			next.kept, next.at = false, time.Time{}
		case left == 0:
			next.kept, next.until = d.kept || now.Sub(d.at) <= together, time.Time{}
		case d.kept && d.until.IsZero():
			next.until = now.Add(comeback)
		case d.kept:
			next.kept = now.Before(d.until)
		}
		switch {
		case next.kept:
			kept++
			s.use(d.record, now)
			if next != *d {
				s.departed = s.departed.Set(key, &next)
			}
		case d.kept || now.Sub(next.at) > together:
			s.forget(key)
		}
	}
	text := fmt.Sprintf("the leases of its last endpoints have ended: %d stay in use until one is registered again", kept)
	if kept == 1 {
		text = "the lease of its last endpoint has ended: it stays in use until one is registered again"
	}
	s.trouble(rawKey(folder+"\x00kept"), notice(kept > 0, balancer.SeverityWarning, name, folder, text))
}

// forget gives up an endpoint that vanished.
func (s *state) forget(key rawKey) {
	if d, ok := s.departed.Get(key); ok {
		s.departed = s.departed.Delete(key)
		s.disuse(d.record)
	}
}

// unasked returns the leases of the kept endpoints of which it is not known whether they have really ended, and
// notes that they are asked for.
func (s *state) unasked() map[rawKey]int64 {
	var leases map[rawKey]int64
	for key, d := range s.departed.All() {
		if !d.kept || d.asked {
			continue
		}
		if leases == nil {
			leases = map[rawKey]int64{}
		}
		leases[key] = d.now.lease
		next := *d
		next.asked = true
		s.departed = s.departed.Set(key, &next)
	}
	return leases
}

// answer takes in what etcd says of a lease. Endpoints that were deleted while their lease lived are gone on purpose.
func (s *state) answer(news leaseNews) {
	d, ok := s.departed.Get(news.key)
	if !ok || d.now.lease != news.lease {
		return
	}
	switch news.leaseAnswer {
	case leaseLives:
		s.forget(news.key)
	case leaseUnknown:
		next := *d
		next.asked = false
		s.departed = s.departed.Set(news.key, &next)
	}
}

// leaseAnswer is what is known of a lease.
type leaseAnswer int

const (
	leaseUnknown leaseAnswer = iota
	leaseLives
	leaseEnded
)

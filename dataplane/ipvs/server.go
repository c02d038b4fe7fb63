package ipvs

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// server is the state of a frontend and its virtual server.
type server struct {
	key balancer.Key
	// front is the wanted frontend, or nil if none is wanted. It is also nil for a virtual server
	// that an earlier process left, until known is set.
	front *balancer.Frontend
	// last is the last wanted frontend, which has the names of the service and port. It is nil
	// until a frontend is wanted.
	last *balancer.Frontend
	// known reports whether this process knows which frontend is wanted. If not, an earlier process
	// left the virtual server.
	known bool
	// old holds destinations for which front has no backend, with the deadlines of their
	// connections. These destinations belong to an earlier frontend, or to endpoints that were
	// removed while vipd was not running. UDP destinations are not in old, because their flows move
	// immediately.
	old map[netip.AddrPort]time.Time

	// exists reports whether the virtual server exists and is vipd's. virtual and destinations are
	// its state; destinations is sorted by address.
	exists       bool
	virtual      ipvsnl.Service
	destinations []ipvsnl.Destination
	// unsure reports whether the outcome of a change is unknown, so the virtual server must be read
	// before the next change.
	unsure bool
	// unanswered is the virtual server whose creation the kernel did not answer, or nil. An
	// existing virtual server may then be another program's.
	unanswered *ipvsnl.Service
	// quiet reports whether some destination has weight 0, and will be removed when its connections
	// have closed.
	quiet    bool
	failover bool
}

// bounded reports whether some destination has thresholds, or should have them.
func (s *server) bounded() bool {
	return slices.ContainsFunc(s.destinations, func(d ipvsnl.Destination) bool { return d.Upper != 0 || d.Lower != 0 }) ||
		s.front != nil && slices.ContainsFunc(s.front.Backends, func(b balancer.Backend) bool { return b.MaxConnections > 0 })
}

// steps are the messages that change a virtual server, in the order of sending. Creation precedes
// removal, and a new virtual server must be known to be vipd's before destinations are added.
type steps struct {
	create []ipvsnl.Op
	change []ipvsnl.Op
	remove []ipvsnl.Op
}

func (p steps) none() bool { return len(p.create)+len(p.change)+len(p.remove) == 0 }

func (s *server) plan(now time.Time) (p steps) {
	virtual, want := s.target(now)
	at := ipvsnl.Service{Key: s.key}
	switch {
	case len(want) == 0 && s.exists:
		p.remove = append(p.remove, ipvsnl.Op{Verb: ipvsnl.DeleteService, Service: at})
		return p
	case len(want) == 0:
		return p
	case !s.exists:
		p.create = append(p.create, ipvsnl.Op{Verb: ipvsnl.AddService, Service: virtual})
	case s.virtual != virtual:
		p.change = append(p.change, ipvsnl.Op{Verb: ipvsnl.EditService, Service: virtual})
	}
	s.difference(&p, at, want)
	return p
}

// difference adds to p the messages that turn the existing destinations into the wanted
// destinations.
func (s *server) difference(p *steps, at ipvsnl.Service, want []ipvsnl.Destination) {
	have := s.destinations
	var edits []ipvsnl.Op
	for len(have) > 0 || len(want) > 0 {
		order := 0
		switch {
		case len(have) == 0:
			order = 1
		case len(want) == 0:
			order = -1
		default:
			order = have[0].Addr.Compare(want[0].Addr)
		}
		switch {
		case order < 0:
			p.remove = append(p.remove, ipvsnl.Op{Verb: ipvsnl.DeleteDestination, Service: at, Destination: have[0]})
			have = have[1:]
		case order > 0:
			p.change = append(p.change, ipvsnl.Op{Verb: ipvsnl.AddDestination, Service: at, Destination: want[0]})
			want = want[1:]
		default:
			if have[0] != want[0] {
				edits = append(edits, ipvsnl.Op{Verb: ipvsnl.EditDestination, Service: at, Destination: want[0]})
			}
			have, want = have[1:], want[1:]
		}
	}
	// Weights are reduced last, so some destination always gets new connections.
	slices.SortStableFunc(edits, func(a, b ipvsnl.Op) int { return rank(a.Destination) - rank(b.Destination) })
	p.change = append(p.change, edits...)
}

// rank returns 1 for a destination of weight 0, which gets no new connections, and 0 for all
// others.
func rank(d ipvsnl.Destination) int {
	if d.Weight == 0 {
		return 1
	}
	return 0
}

func (s *server) noteDone(op ipvsnl.Op) {
	i, there := s.find(op.Destination.Addr)
	switch op.Verb {
	case ipvsnl.AddService:
		s.exists = true
		s.virtual = op.Service
		s.destinations = nil
	case ipvsnl.EditService:
		s.virtual = op.Service
	case ipvsnl.DeleteService:
		s.noteGone()
	case ipvsnl.AddDestination:
		s.destinations = slices.Insert(s.destinations, i, op.Destination)
	case ipvsnl.EditDestination:
		if there {
			s.destinations[i] = op.Destination
		}
	case ipvsnl.DeleteDestination:
		if there {
			s.destinations = slices.Delete(s.destinations, i, i+1)
		}
	}
	s.quiet = s.hasQuiet()
}

func (s *server) noteGone() {
	s.exists = false
	s.virtual = ipvsnl.Service{}
	s.destinations = nil
	s.quiet = false
	s.unsure = false
	s.unanswered = nil
}

func (s *server) hasQuiet() bool {
	return slices.ContainsFunc(s.destinations, func(d ipvsnl.Destination) bool { return d.Weight == 0 })
}

func (s *server) find(at netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(s.destinations, at, func(d ipvsnl.Destination, at netip.AddrPort) int { return d.Addr.Compare(at) })
}

// isOther reports whether an existing virtual server belongs to another program. It is called if
// the kernel has not confirmed that it created vipd's virtual server, which would have the
// requested settings and no destinations.
func (s *server) isOther(virtual ipvsnl.Service, destinations []ipvsnl.Destination) bool {
	return s.unanswered != nil && (virtual != *s.unanswered || len(destinations) > 0)
}

func (s *server) noteRead(virtual ipvsnl.Service, destinations []ipvsnl.Destination) {
	slices.SortFunc(destinations, func(a, b ipvsnl.Destination) int { return a.Addr.Compare(b.Addr) })
	s.exists = true
	s.unsure = false
	s.unanswered = nil
	s.virtual, s.destinations = virtual, destinations
	s.quiet = s.hasQuiet()
}

// matches reports whether an entry in the kernel's table equals the virtual server's known state.
func (s *server) matches(e ipvsnl.TableService) bool {
	for _, t := range e.Destinations {
		i, known := s.find(t.Addr)
		if !known || s.destinations[i].Weight != t.Weight || s.destinations[i].Forward != t.Forward {
			return false
		}
	}
	return len(e.Destinations) == len(s.destinations) && e.Scheduler == s.virtual.Scheduler
}

// ended returns the deletions of destinations with weight 0 whose last connection has closed, or
// whose deadline has passed. If no other destination is left, it returns only the deletion of the
// virtual server. When the last drain ends, it also restores the frontend's scheduler.
func (s *server) ended(states []ipvsnl.DestinationState, now time.Time) []ipvsnl.Op {
	at := ipvsnl.Service{Key: s.key}
	var ops []ipvsnl.Op
	quiet := 0
	for _, d := range s.destinations {
		quiet += rank(d)
	}
	for _, state := range states {
		i, ok := s.find(state.Addr)
		if !ok || s.destinations[i].Weight != 0 || state.Weight != 0 || s.wants(state.Addr) {
			continue
		}
		if state.Active+state.Inactive == 0 || s.expired(state.Addr, now) {
			ops = append(ops, ipvsnl.Op{Verb: ipvsnl.DeleteDestination, Service: at, Destination: s.destinations[i]})
		}
	}
	if s.exists && len(ops) == len(s.destinations) && !s.serves() {
		return []ipvsnl.Op{{Verb: ipvsnl.DeleteService, Service: at}}
	}
	if len(ops) > 0 && len(ops) == quiet && s.front != nil && s.virtual.Scheduler == failover {
		ops = append(ops, ipvsnl.Op{Verb: ipvsnl.EditService, Service: render(s.front)})
	}
	return ops
}

func (s *server) serves() bool { return s.front != nil && s.front.Serves() }

// wants reports whether the backend at an address should get new connections.
func (s *server) wants(at netip.AddrPort) bool {
	b := s.backend(at)
	return b != nil && b.State == balancer.Active
}

func (s *server) backend(at netip.AddrPort) *balancer.Backend { return backendOf(s.front, at) }

func backendOf(f *balancer.Frontend, at netip.AddrPort) *balancer.Backend {
	if f == nil {
		return nil
	}
	return f.Backend(at)
}

// expired reports whether the deadline of a destination's connections has passed.
func (s *server) expired(at netip.AddrPort, now time.Time) bool {
	if b := s.backend(at); b != nil {
		return b.Expired(now)
	}
	return !s.lingers(at, now)
}

// want sets the wanted frontend; nil means that none is wanted. If the frontend is removed, or was
// changed while vipd was not running, connections to destinations without a backend get a
// deadline of at most now plus drain.
func (s *server) want(f *balancer.Frontend, drain time.Duration, now time.Time) {
	leaves := f == nil && s.front != nil // the frontend is removed
	found := !s.known                    // an earlier process left the virtual server, and backends may have been removed since
	before := s.front
	s.front, s.known = f, true
	s.last = cmp.Or(f, s.last)
	if s.key.Proto != balancer.UDP {
		for _, d := range s.destinations {
			if s.backend(d.Addr) != nil || !leaves && !found {
				continue
			}
			until := now.Add(drain)
			if old, ok := s.old[d.Addr]; ok && old.Before(until) {
				continue
			}
			if b := backendOf(before, d.Addr); b != nil && !b.Until.IsZero() && b.Until.Before(until) {
				until = b.Until
			}
			if s.old == nil {
				s.old = map[netip.AddrPort]time.Time{}
			}
			s.old[d.Addr] = until
		}
	}
	maps.DeleteFunc(s.old, func(at netip.AddrPort, until time.Time) bool { return s.backend(at) != nil || !until.After(now) })
}

// latest returns the last deadline of an unwanted frontend's connections. It is zero if the
// frontend is wanted or has no destinations.
func (s *server) latest() (latest time.Time) {
	if s.front != nil {
		return latest
	}
	for _, until := range s.old {
		if until.After(latest) {
			latest = until
		}
	}
	return latest
}

// next returns the first deadline after now of some destination's connections, or zero if there is
// none.
func (s *server) next(now time.Time) (next time.Time) {
	end := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, until := range s.old {
		end(until)
	}
	if s.front != nil {
		for i := range s.front.Backends {
			end(s.front.Backends[i].Until)
		}
	}
	return next
}

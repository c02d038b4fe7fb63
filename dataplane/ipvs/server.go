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

// server is what is known of one frontend and its virtual server.
type server struct {
	key balancer.Key
	// front is what is wanted; nil means nothing any more, or, of what an earlier process has left, that it is not known yet.
	front *balancer.Frontend
	// last is the last that was wanted, for names; nil means not known.
	last *balancer.Frontend
	// told: what is wanted is known. Otherwise an earlier process has left this.
	told bool
	// old says until when connections live to destinations that no backend of front stands for: those of a frontend that
	// was here before, and of endpoints that went while vipd was down. UDP has none: its flows move at once.
	old map[netip.AddrPort]time.Time

	// there says that the virtual server exists and is ours; what follows is what it is like, sorted by address.
	there        bool
	virtual      ipvsnl.Service
	destinations []ipvsnl.Destination
	// unsure: the kernel did not say what came of a change. It has to be read before the next.
	unsure bool
	// asked is the virtual server whose making the kernel did not answer; nil means none. What is there may be another's.
	asked *ipvsnl.Service
	// quiet: some destination has weight 0, and is to be removed when its connections have ended.
	quiet bool
	// failover: the kernel has the scheduler fo.
	failover bool
}

// bounded reports whether some destination has thresholds, or is to have.
func (s *server) bounded() bool {
	return slices.ContainsFunc(s.destinations, func(d ipvsnl.Destination) bool { return d.Upper != 0 || d.Lower != 0 }) ||
		s.front != nil && slices.ContainsFunc(s.front.Backends, func(b balancer.Backend) bool { return b.MaxConnections > 0 })
}

// steps are the messages that make a virtual server what it is to be, in the order in which they are sent: what is made
// has to be there before others go, and what destinations of a new virtual server are added to has to be known as ours.
type steps struct {
	create []ipvsnl.Op
	change []ipvsnl.Op
	remove []ipvsnl.Op
}

func (p steps) none() bool { return len(p.create)+len(p.change)+len(p.remove) == 0 }

// plan returns what is to be done for what is wanted. Destinations that are only kept for their connections are not
// removed here.
func (s *server) plan(now time.Time) (p steps) {
	virtual, want := s.target(now)
	at := ipvsnl.Service{Key: s.key}
	switch {
	case len(want) == 0 && s.there:
		p.remove = append(p.remove, ipvsnl.Op{Verb: ipvsnl.DeleteService, Service: at})
		return p
	case len(want) == 0:
		return p
	case !s.there:
		p.create = append(p.create, ipvsnl.Op{Verb: ipvsnl.AddService, Service: virtual})
	case s.virtual != virtual:
		p.change = append(p.change, ipvsnl.Op{Verb: ipvsnl.EditService, Service: virtual})
	}
	s.difference(&p, at, want)
	return p
}

// difference adds what makes the destinations those that are wanted.
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
	// Weights that are taken away come last, so that some destination always takes new connections.
	slices.SortStableFunc(edits, func(a, b ipvsnl.Op) int { return rank(a.Destination) - rank(b.Destination) })
	p.change = append(p.change, edits...)
}

// rank is 1 for a destination that takes no new connections.
func rank(d ipvsnl.Destination) int {
	if d.Weight == 0 {
		return 1
	}
	return 0
}

// did takes in that the kernel has done op.
func (s *server) did(op ipvsnl.Op) {
	i, there := s.find(op.Destination.Addr)
	switch op.Verb {
	case ipvsnl.AddService:
		s.there, s.virtual, s.destinations = true, op.Service, nil
	case ipvsnl.EditService:
		s.virtual = op.Service
	case ipvsnl.DeleteService:
		s.gone()
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

// gone takes in that the virtual server is not there any more.
func (s *server) gone() {
	s.there, s.virtual, s.destinations, s.quiet, s.unsure, s.asked = false, ipvsnl.Service{}, nil, false, false, nil
}

func (s *server) hasQuiet() bool {
	return slices.ContainsFunc(s.destinations, func(d ipvsnl.Destination) bool { return d.Weight == 0 })
}

func (s *server) find(at netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(s.destinations, at, func(d ipvsnl.Destination, at netip.AddrPort) int { return d.Addr.Compare(at) })
}

// isOther reports whether a virtual server that is there, after the kernel did not say whether it made ours, is another's:
// ours would be as it was asked for, and have nothing yet.
func (s *server) isOther(virtual ipvsnl.Service, destinations []ipvsnl.Destination) bool {
	return s.asked != nil && (virtual != *s.asked || len(destinations) > 0)
}

// saw takes in what the kernel says of the virtual server.
func (s *server) saw(virtual ipvsnl.Service, destinations []ipvsnl.Destination) {
	slices.SortFunc(destinations, func(a, b ipvsnl.Destination) int { return a.Addr.Compare(b.Addr) })
	s.there, s.unsure, s.asked = true, false, nil
	s.virtual, s.destinations = virtual, destinations
	s.quiet = s.hasQuiet()
}

// resembles reports whether the kernel's table shows what is known of the virtual server.
func (s *server) resembles(e ipvsnl.TableService) bool {
	for _, t := range e.Destinations {
		i, known := s.find(t.Addr)
		if !known || s.destinations[i].Weight != t.Weight || s.destinations[i].Forward != t.Forward {
			return false
		}
	}
	return len(e.Destinations) == len(s.destinations) && e.Scheduler == s.virtual.Scheduler
}

// ended returns what is to be removed because it has served out its time at now: destinations with weight 0 whose last
// connection has ended, or has no time left, and, where no other is left, the virtual server itself.
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
	if s.there && len(ops) == len(s.destinations) && !s.serves() {
		return []ipvsnl.Op{{Verb: ipvsnl.DeleteService, Service: at}}
	}
	if len(ops) > 0 && len(ops) == quiet && s.front != nil && s.virtual.Scheduler == failover {
		ops = append(ops, ipvsnl.Op{Verb: ipvsnl.EditService, Service: render(s.front)})
	}
	return ops
}

// serves reports whether any backend gets new connections.
func (s *server) serves() bool { return s.front != nil && s.front.Serves() }

// wants reports whether new connections are to go to the backend at an address.
func (s *server) wants(at netip.AddrPort) bool {
	b := s.backend(at)
	return b != nil && b.State == balancer.Active
}

// backend returns the backend of what is wanted that is at an address.
func (s *server) backend(at netip.AddrPort) *balancer.Backend { return backendOf(s.front, at) }

func backendOf(f *balancer.Frontend, at netip.AddrPort) *balancer.Backend {
	if f == nil {
		return nil
	}
	return f.Backend(at)
}

// expired reports whether connections to a destination have no time left.
func (s *server) expired(at netip.AddrPort, now time.Time) bool {
	if b := s.backend(at); b != nil {
		return b.Expired(now)
	}
	return !s.lingers(at, now)
}

// want takes in what is wanted: f, or nothing. drain is how long connections to what f leaves out may live, where they
// are not f's own.
func (s *server) want(f *balancer.Frontend, drain time.Duration, now time.Time) {
	leaves := f == nil && s.front != nil // all destinations go
	found := !s.told                     // some may have gone while vipd was down
	before := s.front
	s.front, s.told = f, true
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

// latest returns when the last connections end of a frontend that is not wanted any more; zero means it is, or there are none.
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

// next returns when the time of some connections ends after now; zero means that is not known.
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

package balancer

import (
	"math"
	"net/netip"
	"time"

	"vipd/balancer/snap"
)

// Ejection is an endpoint that gets no new connections for a while because connects to it failed. Its times are in UTC and
// without a monotonic reading, so that ejections are compared with ==.
type Ejection struct {
	// Since is when it began, and Until when it ends at the latest.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Count is how often the endpoint was ejected lately, this time included.
	Count int `json:"count"`
	// Cause says why, in words.
	Cause string `json:"cause"`
}

// eject sets the ejected candidates aside, if others are left: an endpoint that may not answer is better than none.
func eject(candidates []candidate) {
	if has(candidates, func(c *candidate) bool { return !c.ejected }) {
		setAside(candidates, Ejected, func(c *candidate) bool { return c.ejected })
	}
}

// EjectionRooms tells how many more endpoints may be ejected. What it says of a service costs one look at its endpoints;
// from then on a question costs no more than what was ejected or is back since. It is for one compile's inputs, and used by
// one goroutine at a time.
type EjectionRooms struct {
	env      Env
	in       Inputs // its Ejected is what the shares count
	services map[Name]seats
}

// seats are where a service's endpoints take connections, with the shares that each has a part in: none if it could not
// serve.
type seats map[netip.AddrPort][]seat

// seat is the part of an endpoint in the connections of one port.
type seat struct {
	*share
	down bool // its checks fail: it is out, ejected or not
}

// share is all of one port and family: so many endpoints could serve, and so many of them are out.
type share struct{ able, out int }

// NewEjectionRooms returns the rooms among what is compiled from env and in.
func NewEjectionRooms(env *Env, in *Inputs) *EjectionRooms {
	return &EjectionRooms{env: *env, in: *in, services: map[Name]seats{}}
}

// Has reports whether a service has an endpoint at t, which has a port.
func (r *EjectionRooms) Has(t Target) bool {
	_, has := r.seats(t.Service)[netip.AddrPortFrom(t.Addr, t.Port)]
	return has
}

// Room returns how many more endpoints may be ejected, beside those that are, of those that t, which has a port, shares its
// connections with: half of them may be out, be it that they are ejected or that their checks fail. Only those count that
// could serve here: of the same family, not draining, not of weight 0, and on this node where locality demands it.
// Negative: too many are ejected, because others have failed or are gone since. Of an endpoint that serves several ports,
// it is the least of them; where nothing is at t, or nothing there could serve, there is no room.
func (r *EjectionRooms) Room(t Target, ejected snap.Map[Target, Ejection]) int {
	for t, c := range snap.Diff(r.in.Ejected, ejected) {
		if c.HadOld == c.HasNew {
			continue
		}
		for _, s := range r.services[t.Service][netip.AddrPortFrom(t.Addr, t.Port)] {
			s.eject(c.HasNew)
		}
	}
	r.in.Ejected = ejected
	room := math.MaxInt
	for _, s := range r.seats(t.Service)[netip.AddrPortFrom(t.Addr, t.Port)] {
		room = min(room, s.able/2-s.out)
	}
	if room == math.MaxInt {
		return 0
	}
	return room
}

// eject counts that the endpoint is ejected, or is not any more.
func (s seat) eject(is bool) {
	switch {
	case s.down:
	case is:
		s.out++
	default:
		s.out--
	}
}

// seats returns those of a service. Nil: there is no such service.
func (r *EjectionRooms) seats(name Name) seats {
	all, known := r.services[name]
	service, ok := r.in.Services.Get(name)
	if known || !ok {
		return all
	}
	all = seats{}
	c := newServiceInputs(&r.env, service, &r.in)
	for i := range service.Ports {
		for _, family := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			all.add(r.env.Node, service.Locality, c.candidates(&service.Ports[i], family))
		}
	}
	r.services[name] = all
	return all
}

// add adds those of one port and family.
func (all seats) add(node string, locality Locality, candidates []candidate) {
	of := &share{}
	for i := range candidates {
		k := &candidates[i]
		parts := all[k.Addr]
		if here := locality != NodeOnly || k.node == node; here && (k.eligible() || k.State == Down) {
			s := seat{of, k.State == Down}
			of.able++
			if s.down || k.ejected {
				of.out++
			}
			parts = append(parts, s)
		}
		all[k.Addr] = parts // without a part, it is there still
	}
}

package balancer

import (
	"math"
	"net/netip"
	"time"

	"vipd/balancer/snap"
)

// Ejection describes an endpoint that gets no new connections for a while because connection
// attempts failed. Its times are in UTC without a monotonic reading, so ejections can be compared
// with ==.
type Ejection struct {
	// Since is when the ejection started, and Until is when it ends at the latest.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Count is the number of recent ejections of the endpoint, including this one.
	Count int `json:"count"`
	// Cause is the reason, for messages.
	Cause string `json:"cause"`
}

// markEjected marks the ejected candidates if other candidates are usable. If none are, the ejected
// candidates remain in use, because they may still answer.
func markEjected(candidates []candidate) {
	if anyEligible(candidates, func(c *candidate) bool { return !c.ejected }) {
		setAside(candidates, Ejected, func(c *candidate) bool { return c.ejected })
	}
}

// EjectionBudget limits how many endpoints may be ejected, so enough remain to serve. The first
// call for a service visits its endpoints, and later calls only visit changed ejections. A budget
// is valid for one set of inputs, and only one goroutine at a time may use it.
type EjectionBudget struct {
	env      Env
	in       Inputs // shares already count the ejections in it
	services map[Name]endpointShares
}

// endpointShares maps each endpoint's address to its shares of connections, one per port. An
// endpoint that can't serve has no share.
type endpointShares map[netip.AddrPort][]endpointShare

type endpointShare struct {
	*portShare
	down bool // its checks fail, so an ejection changes nothing
}

// portShare counts the endpoints of one port and address family. The field usable counts the
// endpoints that could serve, and out counts how many of these are ejected or down.
type portShare struct{ usable, out int }

// NewEjectionBudget returns the ejection budget for the services in in on the node that env
// describes.
func NewEjectionBudget(env *Env, in *Inputs) *EjectionBudget {
	return &EjectionBudget{env: *env, in: *in, services: map[Name]endpointShares{}}
}

// Has reports whether a service has an endpoint at t, whose port must be set.
func (r *EjectionBudget) Has(t Target) bool {
	_, ok := r.shares(t.Service)[netip.AddrPortFrom(t.Addr, t.Port)]
	return ok
}

// Remaining returns how many more of the endpoints that share connections with t may be ejected.
// The port of t must be set. Up to half of these endpoints may be ejected or down. Only endpoints
// of the same family that could serve on this node count: they are not draining, their weight is
// not 0, and they are on this node if locality requires that.
//
// The result is negative if too many endpoints are ejected, because others have failed or were
// removed. If t serves several ports, the result is the minimum over these ports. If t could not
// serve, the result is 0.
func (r *EjectionBudget) Remaining(t Target, ejected snap.Map[Target, Ejection]) int {
	for t, c := range snap.Diff(r.in.Ejected, ejected) {
		if c.HadOld == c.HasNew {
			continue
		}
		for _, s := range r.services[t.Service][netip.AddrPortFrom(t.Addr, t.Port)] {
			s.setEjected(c.HasNew)
		}
	}
	r.in.Ejected = ejected
	room := math.MaxInt
	for _, s := range r.shares(t.Service)[netip.AddrPortFrom(t.Addr, t.Port)] {
		room = min(room, s.usable/2-s.out)
	}
	if room == math.MaxInt {
		return 0
	}
	return room
}

// setEjected counts the endpoint as ejected, or as no longer ejected. An endpoint that is down is
// already counted.
func (s endpointShare) setEjected(ejected bool) {
	switch {
	case s.down:
	case ejected:
		s.out++
	default:
		s.out--
	}
}

func (r *EjectionBudget) shares(name Name) endpointShares {
	all, cached := r.services[name]
	service, ok := r.in.Services.Get(name)
	if cached || !ok {
		return all
	}
	all = endpointShares{}
	c := newServiceInputs(&r.env, service, &r.in)
	for i := range service.Ports {
		for _, family := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			all.add(r.env.Node, service.Locality, c.candidates(&service.Ports[i], family))
		}
	}
	r.services[name] = all
	return all
}

func (all endpointShares) add(node string, locality Locality, candidates []candidate) {
	port := &portShare{}
	for i := range candidates {
		k := &candidates[i]
		parts := all[k.Addr]
		if here := locality != NodeOnly || k.node == node; here && (k.eligible() || k.State == Down) {
			s := endpointShare{port, k.State == Down}
			port.usable++
			if s.down || k.ejected {
				port.out++
			}
			parts = append(parts, s)
		}
		all[k.Addr] = parts // an entry without shares still proves that the endpoint exists
	}
}

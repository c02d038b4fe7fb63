package balancer

import (
	"slices"
	"time"
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

// EjectionRoom returns how many more endpoints may be ejected of those that t, which has a port, shares its connections
// with: half of them may be out, be it that they are ejected or that their checks fail. Only those count that could serve
// here: of the same family, not draining, not of weight 0, and on this node where locality demands it. Negative: too many
// are ejected, because others have failed or are gone since. Of an endpoint that serves several ports, it is the least of
// them; where nothing is at t, or nothing there could serve, there is no room.
func EjectionRoom(env *Env, in *Inputs, t Target) int {
	s, ok := in.Services.Get(t.Service)
	if !ok {
		return 0
	}
	c := newServiceInputs(s, in)
	room, found := 0, false
	for i := range s.Ports {
		candidates := c.candidates(&s.Ports[i], t.Addr)
		if s.Locality == NodeOnly {
			candidates = slices.DeleteFunc(candidates, func(k candidate) bool { return k.node != env.Node })
		}
		here := slices.ContainsFunc(candidates, func(k candidate) bool {
			return k.Addr.Addr() == t.Addr && k.Addr.Port() == t.Port && (k.eligible() || k.State == Down)
		})
		if !here {
			continue
		}
		if r := roomOf(candidates); !found || r < room {
			room, found = r, true
		}
	}
	return room
}

// roomOf is the room among the candidates of one frontend.
func roomOf(candidates []candidate) int {
	able, out := 0, 0
	for i := range candidates {
		switch k := &candidates[i]; {
		case k.State == Down || k.eligible() && k.ejected:
			able, out = able+1, out+1
		case k.eligible():
			able++
		}
	}
	return able/2 - out
}

package balancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer/snap"
)

// claimants holds the services that claim each key.
type claimants struct {
	byKey map[Key][]*Service // unsorted
	// ranges holds the claimed port ranges on each address, unsorted.
	ranges map[netip.Addr][]Key
}

func newClaimants() claimants {
	return claimants{map[Key][]*Service{}, map[netip.Addr][]Key{}}
}

func (c *claimants) add(key Key, s *Service) {
	if key.Port.IsRange() && len(c.byKey[key]) == 0 {
		c.ranges[key.Addr] = append(c.ranges[key.Addr], key)
	}
	c.byKey[key] = append(c.byKey[key], s)
}

func (c *claimants) remove(key Key, s *Service) {
	c.byKey[key] = slices.DeleteFunc(c.byKey[key], func(t *Service) bool { return t == s })
	if len(c.byKey[key]) > 0 {
		return
	}
	delete(c.byKey, key)
	if !key.Port.IsRange() {
		return
	}
	c.ranges[key.Addr] = slices.DeleteFunc(c.ranges[key.Addr], func(k Key) bool { return k == key })
	if len(c.ranges[key.Addr]) == 0 {
		delete(c.ranges, key.Addr)
	}
}

// winner returns the service that gets key, and whether other services lose it. A range also loses
// to a better claim to an overlapping range. The winner then need not claim key itself.
func (c *claimants) winner(key Key, in *Inputs) (best *Service, contested bool) {
	best, contested = winner(key, c.byKey[key], in), len(c.byKey[key]) > 1
	if !key.Port.IsRange() {
		return best, contested
	}
	holds := in.Holders.At(key) == best.Name
	for _, other := range c.ranges[key.Addr] {
		if other == key || other.Proto != key.Proto || !other.Port.conflicts(key.Port) {
			continue
		}
		contested = true
		s := winner(other, c.byKey[other], in)
		switch held := in.Holders.At(other) == s.Name; {
		case held && !holds, held == holds && compareClaims(s, best) < 0:
			best, holds = s, held
		}
	}
	return best, contested
}

// winner returns the service that gets key: the previous holder if it still claims key, or
// otherwise the first service in compareClaims's order.
func winner(key Key, claimants []*Service, in *Inputs) *Service {
	if holder, ok := in.Holders.Get(key); ok {
		i := slices.IndexFunc(claimants, func(s *Service) bool { return s.Name == holder })
		if i >= 0 {
			return claimants[i]
		}
	}
	return slices.MinFunc(claimants, compareClaims)
}

// withOpen returns f with its field Open set. The map frontends must contain all narrower frontends
// on the address.
func (f *Frontend) withOpen(frontends snap.Map[Key, *Frontend]) *Frontend {
	if !f.Key.Port.IsRange() {
		return f
	}
	open := f.Key.Port.except(f.narrower(frontends))
	if slices.Equal(open, f.Open) {
		return f
	}
	g := *f
	g.Open = open
	return &g
}

// narrower returns the ports of the narrower frontends inside f, sorted by the first port. AllPorts
// is the only range that can contain ranges.
func (f *Frontend) narrower(frontends snap.Map[Key, *Frontend]) (all []PortRange) {
	ports := f.Key.Port
	add := func(from, to PortRange) {
		for k := range frontends.While(Key{Addr: f.Addr, Port: from}, func(k Key) bool { return k.Addr == f.Addr && k.Port <= to }) {
			if k.Proto == f.Proto && k.Port != ports {
				all = append(all, k.Port)
			}
		}
	}
	add(PortRange(ports.First()), PortRange(ports.Last()))
	if ports == AllPorts {
		add(1<<16, 1<<32-1)
		slices.SortFunc(all, func(p, q PortRange) int { return cmp.Compare(p.First(), q.First()) })
	}
	return all
}

// except returns the parts of p outside the holes. The holes must be inside p, and sorted by the
// first port.
func (p PortRange) except(holes []PortRange) (left []PortRange) {
	next := int(p.First())
	for _, hole := range holes {
		if next < int(hole.First()) {
			left = append(left, NewPortRange(uint16(next), hole.First()-1))
		}
		next = max(next, int(hole.Last())+1)
	}
	if next <= int(p.Last()) {
		left = append(left, NewPortRange(uint16(next), p.Last()))
	}
	return left
}

// Without removes the ports of hole from the sorted ranges in all.
func Without(all []PortRange, hole PortRange) (left []PortRange) {
	for _, p := range all {
		if !p.Overlaps(hole) {
			left = append(left, p)
			continue
		}
		if p.First() < hole.First() {
			left = append(left, NewPortRange(p.First(), hole.First()-1))
		}
		if p.Last() > hole.Last() {
			left = append(left, NewPortRange(hole.Last()+1, p.Last()))
		}
	}
	return left
}

// lostClaims returns a problem for each frontend that the service claims but another service has
// won. The frontends of one node port share a problem if the same service has won them. A program
// that only reads files does not know which services hold keys, so it may name a different loser
// than the daemon.
func (u *compiledService) lostClaims(winnerOf func(Key) *Service) (problems []Problem) {
	type nodePort struct {
		field string
		to    Name
	}
	first, more := map[nodePort]int{}, map[nodePort]int{}
	for _, f := range u.claims {
		to := winnerOf(f.Key)
		if to == u.service {
			continue
		}
		p := u.lostClaim(f, to)
		at := nodePort{p.Field, to.Name}
		if _, known := first[at]; known && f.NodePort {
			more[at]++
			continue
		}
		first[at] = len(problems)
		problems = append(problems, p)
	}
	for at, n := range more {
		p := &problems[first[at]]
		p.Text = strings.Replace(p.Text, " is held by", fmt.Sprintf(" and %d more of this node's addresses are held by", n), 1)
	}
	return problems
}

func (u *compiledService) lostClaim(f *Frontend, to *Service) Problem {
	i := slices.IndexFunc(u.service.Ports, func(p Port) bool { return p.Name == f.Port })
	field := fmt.Sprintf("ports[%d].port", i)
	if f.NodePort {
		field = fmt.Sprintf("ports[%d].node_port", i)
	}
	at := Problem{Origin: to.Origin}.place()
	if at != "" {
		at = " (" + at + ")"
	}
	return Problem{
		Severity: SeverityError, Origin: u.service.Origin.At(field), Service: u.service.Name, Field: field, Kind: Held,
		Text: f.Key.String() + " is held by service " + string(to.Name) + at + ": choose another address or port",
	}
}

package balancer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// maxRivals is the maximum number of services that are named for one claim of a service. Naming all of n services with the same
// address and port would make n*n/2 problems.
const maxRivals = 8

// Contest is a claim of a changed service that another service has as well.
type Contest struct {
	Service *Service
	// Key is the claim. It has no address for a node port, and no port for an address that a pool has given to Rival.
	Key   Key
	Field string
	Rival *Service
	// More is the number of services with the claim that are not named. Only the last contest of a claim has it.
	More int
	// New reports whether the change causes the contest.
	New bool
}

// Problem returns an error if the change causes the contest, and a warning if it existed before.
func (c Contest) Problem() Problem {
	p := Problem{Severity: SeverityError, Origin: c.Service.Origin.At(c.Field), Service: c.Service.Name, Field: c.Field, Kind: Held}
	claim, rival, at := c.Key.String(), c.Rival.Name, c.Rival.Origin.Text()
	if !c.Key.Addr.IsValid() {
		claim = fmt.Sprintf("node port %d/%s", c.Key.Port, c.Key.Proto)
	}
	more := ""
	if c.More > 0 {
		more = fmt.Sprintf(" and %d more", c.More)
	}
	switch {
	case c.Key.Port == 0:
		p.Text = fmt.Sprintf("%s was given to service %s by a pool: choose another address", c.Key.Addr, rival)
	case c.New:
		p.Text = fmt.Sprintf("%s is claimed by service %s (%s)%s: choose another address or port", claim, rival, at, more)
	default:
		p.Severity = SeverityWarning
		p.Text = fmt.Sprintf("%s is claimed by service %s as well (%s)%s, as it was before", claim, rival, at, more)
	}
	return p
}

// claimants are the names of the services that have a claim after some changes: those that had it before, and those that a
// change gives it.
type claimants struct{ old, added []Name }

// Contests returns the claims that several services would have after some changes, by service and key. Changed has the changed
// services as they will be; nil means that a service is removed. Each contest is reported once, for the service whose change
// causes it.
func Contests(before, changed map[Name]*Service) (all []Contest) {
	after := map[Name]*Service{}
	maps.Copy(after, before)
	maps.Copy(after, changed)
	of := map[Key]claimants{}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		claims := after[name].Claims()
		had := claims
		if _, is := changed[name]; is {
			had = before[name].Claims()
		}
		for key := range claims {
			c := of[key]
			if _, is := had[key]; is {
				c.old = append(c.old, name)
			} else {
				c.added = append(c.added, name)
			}
			of[key] = c
		}
	}
	given := map[netip.Addr]*Service{}
	for _, s := range before {
		for _, a := range s.Allocated {
			given[a] = s
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		s := changed[name]
		if s == nil {
			continue
		}
		all = append(all, givenAway(before[name], s, given)...)
		wants := s.Claims()
		for _, key := range slices.SortedFunc(maps.Keys(wants), Key.Compare) {
			rivals, more, isNew := of[key].besides(name)
			for _, rival := range rivals {
				all = append(all, Contest{Service: s, Key: key, Field: wants[key], Rival: after[rival], New: isNew})
			}
			if more > 0 {
				all[len(all)-1].More = more
			}
		}
	}
	return all
}

// givenAway returns the addresses that a change writes into the text of a service although pools have given them to others.
func givenAway(before, s *Service, given map[netip.Addr]*Service) (all []Contest) {
	for n, vip := range s.VIPs {
		holder := given[vip]
		if holder == nil || holder.Name == s.Name || before != nil && slices.Contains(before.VIPs, vip) {
			continue
		}
		all = append(all, Contest{Service: s, Key: Key{Addr: vip}, Field: fmt.Sprintf("vips[%d]", n), Rival: holder, New: true})
	}
	return all
}

// besides returns the services that are named as rivals of a service for a claim, the number of the others, and whether the
// service's change causes its claim. If so, its rivals are the services that had the claim and those before it that are
// added; otherwise only the former.
func (c claimants) besides(name Name) (rivals []Name, more int, isNew bool) {
	n, isNew := slices.BinarySearch(c.added, name)
	total := len(c.old) + n
	if !isNew {
		n, total = 0, len(c.old)-1
	}
	rivals = slices.Concat(c.old[:min(len(c.old), maxRivals+1)], c.added[:min(n, maxRivals)])
	rivals = slices.DeleteFunc(rivals, func(rival Name) bool { return rival == name })
	rivals = rivals[:min(len(rivals), maxRivals)]
	return rivals, total - len(rivals), isNew
}

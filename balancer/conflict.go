package balancer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// maxRivals is the maximum number of rivals (services with the same claim) that are reported for
// each claim. Otherwise n services with the same address and port would report n*n/2 problems.
const maxRivals = 8

// ClaimConflict is a conflict between a changed service and another service that claims the same
// key.
type ClaimConflict struct {
	Service *Service
	// Key is the contested claim. It has no address for a node port, and no port for an address
	// that a pool gave to Rival.
	Key   Key
	Field string
	Rival *Service
	// More is the number of rivals beyond maxRivals. It is set only in the last conflict about Key.
	More int
	// New reports whether the change causes the conflict.
	New bool
}

// Problem describes the conflict. It is an error if the change causes the conflict, and a warning
// if the conflict already existed.
func (c ClaimConflict) Problem() Problem {
	p := Problem{Severity: SeverityError, Origin: c.Service.Origin.At(c.Field), Service: c.Service.Name, Field: c.Field, Kind: Held}
	claim := c.Key.String()
	rival := c.Rival.Name
	at := c.Rival.Origin.Text()
	if !c.Key.Addr.IsValid() {
		claim = fmt.Sprintf("node port %s/%s", c.Key.Port, c.Key.Proto)
	}
	more := ""
	if c.More > 0 {
		more = fmt.Sprintf(" and %d more", c.More)
	}
	switch {
	case c.Key.Port == 0:
		p.Text = fmt.Sprintf("%s is allocated to service %s by a pool: choose another address", c.Key.Addr, rival)
	case c.New:
		p.Text = fmt.Sprintf("%s is claimed by service %s (%s)%s: choose another address or port", claim, rival, at, more)
	default:
		p.Severity = SeverityWarning
		p.Text = fmt.Sprintf("%s is also claimed by service %s (%s)%s; the conflict existed before this change", claim, rival, at, more)
	}
	return p
}

// claimHolders lists the services with a certain claim after a change. The services in old already
// had the claim, and the services in added gain it through the change.
type claimHolders struct{ old, added []Name }

// ClaimConflicts returns the conflicts between claims that would exist after a change, sorted by
// service and key. The map changed contains the new definition of each changed service, or nil for
// a removed service. Each conflict is reported once, for the service that causes it.
func ClaimConflicts(before, changed map[Name]*Service) (all []ClaimConflict) {
	after := map[Name]*Service{}
	maps.Copy(after, before)
	maps.Copy(after, changed)
	holders := map[Key]claimHolders{}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		claims := after[name].Claims()
		former := claims
		if _, is := changed[name]; is {
			former = before[name].Claims()
		}
		for key := range claims {
			c := holders[key]
			if _, is := former[key]; is {
				c.old = append(c.old, name)
			} else {
				c.added = append(c.added, name)
			}
			holders[key] = c
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
		all = append(all, pooledConflicts(before[name], s, given)...)
		wants := s.Claims()
		for _, key := range slices.SortedFunc(maps.Keys(wants), Key.Compare) {
			rivals, more, isNew := holdersOf(key, holders).rivals(name)
			for i, rival := range rivals {
				c := ClaimConflict{Service: s, Key: key, Field: wants[key], Rival: after[rival], New: isNew}
				if i == len(rivals)-1 {
					c.More = more
				}
				all = append(all, c)
			}
		}
	}
	return all
}

// holdersOf returns the services that claim key, or a range that conflicts with key.
func holdersOf(key Key, holders map[Key]claimHolders) claimHolders {
	all := holders[key]
	if !key.Port.IsRange() {
		return all
	}
	for other, c := range holders {
		if other != key && other.Addr == key.Addr && other.Proto == key.Proto && other.Port.conflicts(key.Port) {
			all.old, all.added = slices.Concat(all.old, c.old), slices.Concat(all.added, c.added)
		}
	}
	slices.Sort(all.old)
	slices.Sort(all.added)
	return claimHolders{slices.Compact(all.old), slices.Compact(all.added)}
}

// pooledConflicts returns a conflict for each new VIP in s that a pool has given to another
// service.
func pooledConflicts(before, s *Service, given map[netip.Addr]*Service) (all []ClaimConflict) {
	for n, vip := range s.VIPs {
		holder := given[vip]
		if holder == nil || holder.Name == s.Name || before != nil && slices.Contains(before.VIPs, vip) {
			continue
		}
		all = append(all, ClaimConflict{Service: s, Key: Key{Addr: vip}, Field: fmt.Sprintf("vips[%d]", n), Rival: holder, New: true})
	}
	return all
}

// rivals returns the rivals to report for a service's claim, the number of other rivals, and
// whether the change added the claim. A new claim conflicts with all older claims and with earlier
// new claims. An old claim conflicts only with old claims.
func (c claimHolders) rivals(name Name) (rivals []Name, more int, isNew bool) {
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

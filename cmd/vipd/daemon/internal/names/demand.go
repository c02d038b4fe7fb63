package names

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
)

type use struct {
	interval time.Duration // the maximum time between two lookups; if 0, only the answer determines it
	foreign  bool          // the service is from etcd
}

// usesOf returns the lookups that a service needs.
func usesOf(name balancer.Name, in *balancer.Inputs) map[balancer.Lookup]use {
	uses := map[balancer.Lookup]use{}
	if s, ok := in.Services.Get(name); ok {
		for l, interval := range balancer.LookupsOf(s, in) {
			uses[l] = use{interval, s.Origin.Key != ""}
		}
	}
	return uses
}

// replace updates the lookups of one service. New lookups start with the endpoints of the lookups
// that they replace.
func (n *Names) replace(name balancer.Name, old, in *balancer.Inputs) {
	before, now := usesOf(name, old), usesOf(name, in)
	for l, u := range before {
		if other, stays := now[l]; !stays || other != u {
			n.leave(balancer.LookupID{Service: name, Lookup: l})
		}
	}
	for l, u := range now {
		if other, known := before[l]; !known || other != u {
			n.join(balancer.LookupID{Service: name, Lookup: l}, u, in)
		}
	}
	for id := range n.resolved.While(balancer.LookupID{Service: name}, func(id balancer.LookupID) bool { return id.Service == name }) {
		if _, stays := now[id.Lookup]; !stays {
			n.forget(id)
		}
	}
}

// join adds a service to the users of a lookup. It refuses a new lookup if the services from etcd
// already have too many lookups.
func (n *Names) join(id balancer.LookupID, u use, in *balancer.Inputs) {
	if !n.resolved.Has(id) {
		n.publish(id, &balancer.Resolution{Former: n.replacedMembers(id)})
	}
	known := n.resolved.At(id)
	l := n.lookups[id.Lookup]
	if limit := n.o.MaxEtcd(); l == nil && u.foreign && n.foreign >= limit {
		n.refused[id] = u
		n.publish(id, &balancer.Resolution{
			Records: known.Records, Former: known.Former,
			Failure: fmt.Sprintf("not looked up, because services from etcd may use at most %d names (resolver.max_names)", limit),
		})
		return
	}
	delete(n.refused, id)
	if l == nil {
		l = &lookup{Lookup: id.Lookup, users: map[balancer.Name]use{}, again: wake.New(), answer: &balancer.Resolution{Records: known.Records}}
		n.foreign++
		n.mu.Lock()
		n.lookups[id.Lookup], n.added[l] = l, true
		n.mu.Unlock()
		n.wake.Send()
	}
	l.users[id.Service] = u
	if !u.foreign {
		if l.own++; l.own == 1 {
			n.foreign--
		}
	}
	if u.interval != 0 && (l.interval == 0 || u.interval < l.interval) {
		n.repeatEvery(l, u.interval)
	}
	n.update(id.Service, l, in, nil)
}

// leave removes a service from the users of a lookup. If no user remains, the lookup stops.
func (n *Names) leave(id balancer.LookupID) {
	delete(n.refused, id)
	l := n.lookups[id.Lookup]
	if l == nil {
		return
	}
	u, used := l.users[id.Service]
	if !used {
		return
	}
	delete(l.users, id.Service)
	if !u.foreign {
		if l.own--; l.own == 0 {
			n.foreign++
		}
	}
	if len(l.users) > 0 {
		if u.interval != 0 && u.interval == l.interval {
			n.repeatEvery(l, l.shortest())
		}
		return
	}
	n.foreign--
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.lookups, id.Lookup)
	delete(n.added, l)
	if l.stop != nil {
		l.stop()
	}
}

// repeatEvery sets the maximum time between two repetitions of a lookup.
func (n *Names) repeatEvery(l *lookup, interval time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l.interval = interval
	if l.stop != nil {
		l.again.Send()
	}
}

// retry starts lookups that were refused before and that the limit now permits.
func (n *Names) retry(in *balancer.Inputs) {
	if len(n.refused) == 0 || n.foreign >= n.o.MaxEtcd() {
		return
	}
	for _, id := range slices.SortedFunc(maps.Keys(n.refused), balancer.LookupID.Compare) {
		n.join(id, n.refused[id], in)
	}
}

// replacedMembers returns the known endpoints of the lookups that a new lookup replaces: lookups of
// the same name for another address family, or with another kind of discovery.
func (n *Names) replacedMembers(id balancer.LookupID) []balancer.LookupRecord {
	var members []balancer.LookupRecord
	for other, r := range n.resolved.While(balancer.LookupID{Service: id.Service}, func(other balancer.LookupID) bool { return other.Service == id.Service }) {
		if other.Lookup.Replaces(id.Lookup) {
			members = slices.Concat(members, r.Records, r.Former)
		}
	}
	members = slices.DeleteFunc(members, func(m balancer.LookupRecord) bool { return !id.Lookup.Wants(m.Addr) })
	slices.SortFunc(members, balancer.LookupRecord.Compare)
	return slices.Compact(members)
}

package watch

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/store"
	"vipd/store/etcd/schema"
)

// state holds all keys. It is a value, and copying it is cheap. A copy is an independent version.
type state struct {
	keys    schema.Keys
	records snap.Map[rawKey, *record]
	// departed holds endpoints that recently vanished with their leases, and endpoints that have
	// been kept in use since.
	departed snap.Map[rawKey, *departure]
	// absences summarizes departed by service. unsure holds the kept endpoints whose leases may
	// still be live.
	absences snap.Map[balancer.Name, absence]
	unsure   snap.Map[rawKey, bool]
	// troubled holds the records with problems, and an artificial record for each folder with a
	// problem.
	troubled snap.Map[rawKey, *record]
	// counts holds the number of keys in each folder of a service.
	counts snap.Map[rawKey, int]

	// Snapshot holds everything that is in use, up to Revision. Its Problems are empty.
	store.Snapshot
	// held holds the allocated addresses, sorted by service.
	held snap.Map[holding, bool]
	// config is the configuration of this node, or nil.
	config *schema.NodeConfig
	// pending is the pending change, which may have ended, or nil.
	pending *schema.Pending
	// cluster is the ID of etcd's cluster, or 0 if it is unknown.
	cluster uint64
	// No override and no pending change expires before expiry. It is zero if none of them expires.
	expiry time.Time
}

// folder returns the folder that contains the record, if it is a folder of the record's service.
// Otherwise it returns "".
func (r *record) folder(keys schema.Keys) rawKey {
	switch r.Kind {
	case schema.EndpointKind:
		return rawKey(keys.EndpointsOf(r.Of))
	case schema.OverrideKind:
		return rawKey(keys.OverridesOf(r.Of))
	}
	return ""
}

// put adds a record, or replaces the record with the same key.
func (s *state) put(r *record, now time.Time) {
	key := rawKey(r.key)
	old, had := s.records.Get(key)
	if old == r {
		return
	}
	s.records = s.records.Set(key, r)
	if folder := r.folder(s.keys); !had && folder != "" {
		s.counts = s.counts.Set(folder, s.counts.At(folder)+1)
	}
	s.returned(key)
	s.setProblems(key, r)
	if had && old.Kind == schema.VIPKind {
		s.removeValue(old) // the old value may belong to another object
	}
	s.addValue(r, now)
}

// setProblems replaces the problems of a key with the problems of a record.
func (s *state) setProblems(key rawKey, r *record) {
	if len(r.problems) > 0 {
		s.troubled = s.troubled.Set(key, r)
	} else {
		s.troubled = s.troubled.Delete(key)
	}
}

// addValue adds the decoded value of a record to the snapshot, and removeValue removes it.
func (s *state) addValue(r *record, now time.Time) {
	switch value := r.decoded.(type) {
	case *balancer.Service:
		s.Services = s.Services.Set(r.Of, s.allocated(value))
	case *balancer.Endpoint:
		s.Endpoints = s.Endpoints.Set(r.ID, value)
	case *balancer.Override:
		s.useOverride(r.Target, value, now)
	case balancer.Name:
		s.hold(r, true)
	case *schema.NodeConfig:
		s.config = value
	case *schema.Pending:
		s.pending = value
		s.expireAt(value.Until, now)
	case *balancer.VIP:
		s.VIPs = s.VIPs.Set(r.VIP, value)
	case *balancer.Pool:
		s.Pools = s.Pools.Set(r.OfPool, value)
	case *balancer.Node:
		s.Nodes = s.Nodes.Set(balancer.NodeName(r.Node), value)
	}
}

// useOverride adds the unexpired part of an override to the snapshot. If the whole override has
// expired, it removes the override.
func (s *state) useOverride(target balancer.Target, o *balancer.Override, now time.Time) {
	if o = o.Unexpired(now); o == nil {
		s.Overrides = s.Overrides.Delete(target)
		return
	}
	if s.Overrides.At(target) != o {
		s.Overrides = s.Overrides.Set(target, o)
	}
	s.expireAt(o.NextExpiry(), now)
}

// expireAt schedules expire for next, unless it is scheduled earlier or next is not in the future.
func (s *state) expireAt(next, now time.Time) {
	if next.After(now) && (s.expiry.IsZero() || next.Before(s.expiry)) {
		s.expiry = next
	}
}

func (s *state) removeValue(r *record) {
	switch r.Kind {
	case schema.ServiceKind:
		s.Services = s.Services.Delete(r.Of)
	case schema.EndpointKind:
		s.Endpoints = s.Endpoints.Delete(r.ID)
	case schema.OverrideKind:
		s.Overrides = s.Overrides.Delete(r.Target)
	case schema.VIPKind:
		s.hold(r, false)
	case schema.NodeConfigKind:
		s.config = nil
	case schema.PendingKind:
		s.pending = nil
	case schema.PolicyKind:
		s.VIPs = s.VIPs.Delete(r.VIP)
	case schema.PoolKind:
		s.Pools = s.Pools.Delete(r.OfPool)
	case schema.HostKind:
		s.Nodes = s.Nodes.Delete(balancer.NodeName(r.Node))
	}
}

// expire removes the expired parts of overrides from the snapshot, and sets the next expiry.
func (s *state) expire(now time.Time) {
	if s.expiry.IsZero() || s.expiry.After(now) {
		return
	}
	s.expiry = time.Time{}
	if s.pending != nil {
		s.expireAt(s.pending.Until, now)
	}
	for target, override := range s.Overrides.All() {
		if !override.NextExpiry().IsZero() {
			s.useOverride(target, override, now)
		}
	}
}

// remove removes a key. An endpoint that may have vanished with its lease is recorded in departed.
func (s *state) remove(key rawKey, now time.Time) {
	r, had := s.records.Get(key)
	if !had {
		return
	}
	s.records = s.records.Delete(key)
	s.troubled = s.troubled.Delete(key)
	if folder := r.folder(s.keys); folder != "" {
		if n := s.counts.At(folder) - 1; n > 0 {
			s.counts = s.counts.Set(folder, n)
		} else {
			s.counts = s.counts.Delete(folder)
		}
	}
	s.removeValue(r)
	s.depart(key, r, now)
}

// settle updates a service after a change to its keys. It limits endpoints and overrides, keeps
// endpoints that vanished together, and reports surplus addresses.
func (s *state) settle(name balancer.Name, now time.Time) {
	s.limit(s.keys.EndpointsOf(name), name, "endpoints", now)
	s.limit(s.keys.OverridesOf(name), name, "overrides", now)
	s.keepDeparted(name, now)
	s.surplus(name)
}

// limit keeps only the oldest MaxEndpoints keys of a folder in use.
func (s *state) limit(folder string, name balancer.Name, what string, now time.Time) {
	made := rawKey(folder + "\x00limit")
	n := s.counts.At(rawKey(folder))
	if n <= schema.MaxEndpoints && !s.troubled.Has(made) {
		return
	}
	var all []*record
	for _, r := range below(s.records, folder) {
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b *record) int { return cmp.Compare(a.now.created, b.now.created) })
	for i, r := range all {
		if i < schema.MaxEndpoints {
			s.addValue(r, now)
		} else {
			s.removeValue(r)
		}
	}
	s.setProblems(made, notice(n > schema.MaxEndpoints, balancer.SeverityError, name, folder,
		fmt.Sprintf("has %d %s; only the oldest %d are used", n, what, schema.MaxEndpoints)))
}

// notice returns an artificial record, which has a problem if found is true.
func notice(found bool, severity balancer.Severity, name balancer.Name, folder, text string) *record {
	r := &record{}
	if found {
		r.problems = []balancer.Problem{{Severity: severity, Service: name, Origin: balancer.Origin{Key: folder}, Text: text}}
	}
	return r
}

// below yields the entries of a folder.
func below[V comparable](m snap.Map[rawKey, V], folder string) iter.Seq2[rawKey, V] {
	return m.While(rawKey(folder), func(key rawKey) bool { return strings.HasPrefix(string(key), folder) })
}

// maxProblems is the maximum number of published problems. More problems would not help users, and
// would cost memory and time.
const maxProblems = 1000

// problems returns all problems, sorted by key.
func (s *state) problems() []balancer.Problem {
	var out []balancer.Problem
	for _, r := range s.troubled.All() {
		if len(out) >= maxProblems {
			return append(out, balancer.Problem{
				Severity: balancer.SeverityError, Origin: balancer.Origin{Key: s.keys.Prefix},
				Text: fmt.Sprintf("%d keys have problems; only the first %d are shown", s.troubled.Len(), maxProblems),
			})
		}
		out = append(out, r.problems...)
	}
	return out
}

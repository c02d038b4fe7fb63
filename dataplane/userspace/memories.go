package userspace

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
)

// clientMemory maps clients with affinity to their endpoints. Several frontends may share a memory.
type clientMemory struct {
	*pick.Sticky
	id balancer.AffinityMemory
	// choosing is locked while a backend is chosen, so a client of two frontends gets the same
	// endpoint. A frontend with two memories locks only the first.
	choosing sync.Mutex
	// users holds the affinity timeout of each frontend that uses the memory.
	users map[*frontend]time.Duration
}

type memories []*clientMemory

// of returns the memory that applies to a client of a frontend with the definition g.
func (m memories) of(g *balancer.Frontend, client netip.Addr, now time.Time) *clientMemory {
	if len(m) > 1 {
		if endpoint, ok := m[0].Lookup(client, now); ok && g.IsForeign(endpoint) {
			return m[1]
		}
	}
	return m[0]
}

type memoryRegistry struct {
	mu  sync.Mutex
	all map[balancer.AffinityMemory]*clientMemory
}

// share returns the affinity memories for g, the new definition of f, and makes f stop using all
// other memories. If g is nil, f uses none. A memory exists while a frontend uses it. Its timeout
// is the longest of its users' timeouts.
func (r *memoryRegistry) share(f *frontend, g *balancer.Frontend) memories {
	r.mu.Lock()
	defer r.mu.Unlock()
	var next memories
	if g != nil {
		for _, id := range g.AffinityMemories() {
			m := r.all[id]
			if m == nil {
				m = &clientMemory{Sticky: pick.NewSticky(g.AffinityTimeout, 0), id: id, users: map[*frontend]time.Duration{}}
				r.all[id] = m
			}
			m.users[f] = g.AffinityTimeout
			next = append(next, m)
		}
	}
	for _, m := range f.memories {
		if !slices.Contains(next, m) {
			delete(m.users, f)
		}
		if len(m.users) == 0 {
			delete(r.all, m.id)
		}
	}
	for _, m := range slices.Concat(next, f.memories) {
		m.setTimeout()
	}
	return next
}

func (m *clientMemory) setTimeout() {
	longest := time.Duration(0)
	for _, timeout := range m.users {
		longest = max(longest, timeout)
	}
	if longest > 0 {
		m.SetTimeout(longest)
	}
}

func (r *memoryRegistry) list() memories {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(memories, 0, len(r.all))
	for _, m := range r.all {
		all = append(all, m)
	}
	return all
}

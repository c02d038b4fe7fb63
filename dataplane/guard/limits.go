package guard

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/nft"
)

// Each service with limits has a chain. The map "limits" sends its clients' first packets there. It
// maps places, as in setEntry: the address, protocol and port of a frontend. The chain has a meter
// for each limit: a set of sources that rules fill. All frontends of the service in a family share
// its meters. A meter's name contains its limit, because elements keep the limit with which they
// were added. So a meter survives changes to other settings, and a restart of vipd.
//
// A connection over a limit gets no entry in conntrack, so the kernel removes it from the meters. A
// repeated SYN of an accepted connection is not a first packet. Rate meters come first, so a source
// that floods a service does not fill the meter of all connections.

const (
	// limitChain and limitMeter are the name prefixes of chains and meters.
	limitChain, limitMeter = "limit-", "meter-"
	// maxSources is the maximum number of sources in a meter. Additional sources have no limit. A
	// meter uses at most about 20 MB of memory.
	maxSources = 1 << 16
	// fullMemory is how long a frontend remains in the set "full" after one of its meters was full.
	fullMemory = time.Minute
	// maxFull is the maximum number of frontends in the set "full".
	maxFull = 4096
)

func isLimited(f *balancer.Frontend) bool { return !f.Limits.IsZero() }

// limiter describes the chain that enforces a service's limits. The direct frontends of a service
// have their own chain.
type limiter struct {
	chain   string
	service balancer.Name
	limits  balancer.ClientLimits
}

func limiterOf(f *balancer.Frontend) limiter {
	chain := limitChain + string(f.Service)
	if isDirect(f) {
		chain += ".direct"
	}
	return limiter{chain, f.Service, f.Limits}
}

// meter is a set of sources whose connections are counted, with their limit.
type meter struct {
	set  *nft.Set
	key  nft.Network
	over nft.Over
}

// meters returns the meters of l, in the order of its rules.
func (l limiter) meters() (all []meter) {
	add := func(bits int, over nft.Over, name string) {
		m := meter{key: nft.Network{Field: nft.Saddr, Bits: bits}, over: over}
		m.set = &nft.Set{Name: fmt.Sprintf("%s%s-%s", limitMeter, name, l.service), Key: nft.Saddr, Dynamic: true, Timed: over.Rate > 0, Size: maxSources}
		m.over.Set, m.over.Key = m.set, m.key
		all = append(all, m)
	}
	bits := l.limits.SourcePrefix
	if r := l.limits.SourceRate; r.N > 0 {
		add(bits, nft.Over{Rate: uint32(r.N), Per: r.Per}, fmt.Sprintf("%s-%d", strings.ReplaceAll(r.String(), "/", "-"), bits))
	}
	if n := l.limits.SourceConnections; n > 0 {
		add(bits, nft.Over{Connections: uint32(n)}, fmt.Sprintf("%d-%d", n, bits))
	}
	if n := l.limits.Connections; n > 0 {
		add(0, nft.Over{Connections: uint32(n)}, fmt.Sprintf("%d-0", n)) // all sources are in one network
	}
	return all
}

// rules returns the rules of l's chain. If a meter is full, they also add the place to the set
// full.
func (l limiter) rules(y *layout, bits markBits) (rules []nft.Rule) {
	refuse := []nft.Stmt{nft.Drop}
	if l.limits.Over == balancer.RejectOver { // the refusal carries the connection's mark, so filters accept it
		refuse = []nft.Stmt{nft.AddBits{Field: nft.CtMark, Bits: bits.ours}, nft.Goto("refuse")}
	}
	for _, m := range l.meters() {
		rules = append(rules, rule(append([]nft.Stmt{m.over}, refuse...)...))
		if m.key.Bits > 0 {
			rules = append(rules, rule(nft.In{Of: m.key, Set: m.set, Not: true}, nft.Update{Map: y.full, Key: y.full.Key, Timeout: fullMemory}))
		}
	}
	return rules
}

// newLimitsMap returns the map from places to the chains of their limits.
func newLimitsMap(name string, place nft.Concat) *nft.Set {
	return &nft.Set{Name: name, Key: place, Verdict: true}
}

// newFullSet returns the set of places whose connections were not limited recently because a meter
// was full.
func newFullSet(place nft.Concat) *nft.Set {
	return &nft.Set{Name: "full", Key: place, Timed: true, Dynamic: true, Size: maxFull}
}

// limits holds the limiters of frontends, and their chains in the kernel.
type limits struct {
	// desired and applied are the numbers of frontends with limits, by place and limiter.
	desired, applied map[setEntry]map[limiter]int
	// changed holds the places whose counts have changed since the last comparison.
	changed map[setEntry]bool
	// places maps the places in the kernel to their chains. chains and sets hold the chains and the
	// meters in the kernel. If another process wrote a chain, its limiter is zero.
	places map[setEntry]string
	chains map[string]limiter
	sets   map[string]bool
	// tried reports whether the limits trial has run. fault is the reason why the kernel does not
	// support limits, or nil.
	tried bool
	fault error
}

// want adds the argument by to the reference count of f's limiter at f's place. If applied is set,
// f counts as an applied frontend, otherwise as a desired frontend.
func (s *limits) want(f *balancer.Frontend, by int, applied bool) {
	if !isLimited(f) || f.Withdrawn || f.Addr.IsLoopback() {
		return
	}
	to := &s.desired
	if applied {
		to = &s.applied
	}
	if *to == nil {
		*to = map[setEntry]map[limiter]int{}
	}
	if s.changed == nil {
		s.changed = map[setEntry]bool{}
	}
	at, l := placeOf(f.Key), limiterOf(f)
	if (*to)[at] == nil {
		(*to)[at] = map[limiter]int{}
	}
	if (*to)[at][l] += by; (*to)[at][l] <= 0 {
		delete((*to)[at], l)
	}
	if len((*to)[at]) == 0 {
		delete(*to, at)
	}
	s.changed[at] = true
}

// limiterAt returns the wanted limiter of a place, or the zero value. Desired frontends have
// priority over frontends that are only applied, so changed limits apply immediately.
func (s *limits) limiterAt(place setEntry) limiter {
	for _, from := range []map[setEntry]map[limiter]int{s.desired, s.applied} {
		for l := range from[place] {
			return l
		}
	}
	return limiter{}
}

// differ reports whether the kernel has wrong limits for a changed place. It then forgets the
// changed places. A change to endpoints does not affect limits.
func (s *limits) differ() bool {
	defer clear(s.changed)
	for place := range s.changed {
		if l := s.limiterAt(place); s.places[place] != l.chain || l.chain != "" && s.chains[l.chain] != l {
			return true
		}
	}
	return false
}

// forget records that the kernel has no chains and meters of limits.
func (s *limits) forget() {
	s.places, s.chains, s.sets = map[setEntry]string{}, map[string]limiter{}, map[string]bool{}
}

// services returns the desired services with limits.
func (s *limits) services() []balancer.Name {
	names := map[balancer.Name]bool{}
	for _, at := range s.desired {
		for l := range at {
			names[l.service] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (s *limits) nonEmpty() bool { return len(s.desired)+len(s.applied) > 0 }

// wanted returns the chain of each place, and the limiter of each chain. A chain has the limiter of
// its first desired place.
func (s *limits) wanted() (places map[setEntry]string, chains map[string]limiter) {
	places, chains = map[setEntry]string{}, map[string]limiter{}
	for _, from := range []map[setEntry]map[limiter]int{s.desired, s.applied} {
		for _, place := range slices.SortedFunc(maps.Keys(from), setEntry.compare) {
			if _, found := places[place]; found {
				continue
			}
			l := s.limiterAt(place)
			places[place] = l.chain
			if _, found := chains[l.chain]; !found {
				chains[l.chain] = l
			}
		}
	}
	return places, chains
}

// write queues the difference between the kernel's and the wanted chains. If on is false, it queues
// the removal of all chains.
func (s *limits) write(tx *nft.Tx, y *layout, bits markBits, on bool) {
	places, chains := map[setEntry]string{}, map[string]limiter{}
	if on {
		places, chains = s.wanted()
	}
	sets := map[string]bool{}
	for at, chain := range sortedPlaces(s.places) {
		if places[at] != chain {
			tx.Delete(y.table, y.limitsOf(at), placeElement(at, chain))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		l := chains[name]
		for _, m := range l.meters() {
			if sets[m.set.Name] = true; !s.sets[m.set.Name] {
				tx.AddSet(y.table, m.set)
			}
		}
		if s.chains[name] == l {
			continue
		}
		tx.AddChain(y.table, &nft.Chain{Name: name})
		tx.FlushChain(y.table, name)
		for _, r := range l.rules(y, bits) {
			tx.AddRule(y.table, name, r)
		}
	}
	for at, chain := range sortedPlaces(places) {
		if s.places[at] != chain {
			tx.Add(y.table, y.limitsOf(at), placeElement(at, chain))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.chains)) {
		if _, wanted := chains[name]; !wanted {
			tx.FlushChain(y.table, name)
			tx.DeleteChain(y.table, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.sets)) {
		if !sets[name] {
			tx.DeleteSet(y.table, &nft.Set{Name: name})
		}
	}
	s.places, s.chains, s.sets = places, chains, sets
}

func sortedPlaces(places map[setEntry]string) func(func(setEntry, string) bool) {
	return func(yield func(setEntry, string) bool) {
		for _, at := range slices.SortedFunc(maps.Keys(places), setEntry.compare) {
			if !yield(at, places[at]) {
				return
			}
		}
	}
}

// placeElement returns the map element that sends packets for a place to a chain.
func placeElement(at setEntry, chain string) nft.Elem {
	e := element(at)
	e.Jump = chain
	return e
}

// limitsOf returns the map that contains a place. Port ranges have a separate map.
func (l *layout) limitsOf(at setEntry) *nft.Set {
	if at.Port.IsRange() {
		return l.inRange.limits
	}
	return l.limits
}

func (l *layout) toLimits(with features) []nft.Rule {
	if !with.limited {
		return nil
	}
	return []nft.Rule{rule(nft.Vmap{Of: l.place, In: l.limits})}
}

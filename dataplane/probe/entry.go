package probe

import (
	"container/heap"
	"encoding/json"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
)

// entry is one periodic probe, shared by all targets with its key.
type entry struct {
	key      entryKey
	probe    *Probe
	rules    health.Rules
	lane     *lane
	state    health.State
	targets  []balancer.Target // empty if the entry was removed
	checking bool
	place    int // index in the schedule; -1 while it waits in a lane or is being checked
	seats    [circles]int
	queued   time.Time // when it started to wait in its lane
	hurried  time.Time // when an alarm last brought its check forward
}

// services returns the services of the entry's targets, sorted and without duplicates.
func (e *entry) services() (names []balancer.Name) {
	for _, t := range e.targets {
		names = append(names, t.Service)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// entryKey identifies an entry. Targets with the same key share the entry.
type entryKey struct {
	at         netip.AddrPort
	definition string
}

// sharedProbe is the probe of all entries that have the same definition.
type sharedProbe struct {
	*Probe
	users  circle
	digest string // fingerprint of the definition
}

// lane is a queue that limits the number of concurrent checks of one kind.
type lane struct {
	max, running int
	waiting      []*entry
	late         Late // the last check that was late
	lateAt       time.Time
}

// batch holds the intermediate data of a call to Set.
type batch struct {
	now         time.Time
	moves       []move
	definitions map[definitionOf]string
	// leaving holds targets to remove from entries. They are removed after all moves, so an entry
	// retains its state even if all its targets change.
	leaving []leaving
}

// leaving is a target that no longer uses an entry.
type leaving struct {
	target balancer.Target
	entry  *entry
}

// leave records that t no longer uses the entries of its old watch w, except those in kept. w may
// be nil.
func (b *batch) leave(t balancer.Target, w *watch, kept []*entry) {
	if w == nil {
		return
	}
	for _, e := range w.checks {
		if !slices.Contains(kept, e) {
			b.leaving = append(b.leaving, leaving{t, e})
		}
	}
}

// move is a target whose check was added, changed or removed.
type move struct {
	target  balancer.Target
	subject health.Subject
	stays   bool // false if the target was removed
}

// definitionOf holds everything that determines the text of a definition.
type definitionOf struct {
	health *balancer.Health
	proto  balancer.Protocol
	header balancer.ProxyProtocol
}

// startRate is the maximum number of first checks per second. The rate is higher if the checks'
// interval is too short for it. A single new target is checked immediately.
const startRate = 1000

// within returns the time over which first checks with this interval are spread.
func (b *batch) within(interval time.Duration) time.Duration {
	return min(interval, time.Duration(len(b.moves)-1)*time.Second/startRate)
}

// definition returns a text that identifies a subject's check without the subject's address.
// Subjects with the same text share a probe.
func (b *batch) definition(s health.Subject) string {
	k := definitionOf{s.Health, s.Proto, s.Header}
	if text, ok := b.definitions[k]; ok {
		return text
	}
	h := *s.Health
	h.PanicThreshold = 0
	h.OnFailure = ""
	h.From = ""
	h.Need = ""
	h.Agent = nil                // how results are used does not change the check
	text, err := json.Marshal(h) // JSON sorts the keys of maps
	if err != nil {
		panic("probe: the health definition can't be written as JSON: " + err.Error())
	}
	if h.Type == balancer.DNSHealth {
		text = append(text, s.Proto...)
	}
	text = append(text, s.Header...)
	b.definitions[k] = string(text)
	return b.definitions[k]
}

// addLocked adds an entry for a target. Its initial state is the target's old state or, if missing,
// other nodes' verdict or, if also missing, the state that an earlier run saved.
func (r *Runner) addLocked(b *batch, key entryKey, t balancer.Target, s health.Subject, old *watch) *entry {
	shared := r.probes[key.definition]
	if shared == nil {
		shared = &sharedProbe{newProbe(s, &r.system), circle{of: ofCheck}, digest(key.definition)}
		r.probes[key.definition] = shared
	}
	e := &entry{key: key, probe: shared.Probe, rules: health.RulesOf(s.Health), lane: &r.network}
	if s.Health.Type == balancer.ExecHealth {
		e.lane = &r.programs
	}
	seed, within := r.seed(key), b.within(e.rules.Interval)
	saved, known := r.keptOf(key, t.Service)
	switch {
	case old != nil:
		e.state = old.state(nil, nil).Inherit(seed, b.now, min(within, e.rules.FastInterval))
	case r.assumed.Has(t):
		e.state = health.New(seed, b.now, within).Assume(r.assumed.At(t), b.now)
	case known:
		e.state = saved.Restore(e.rules, seed, r.o.Held, b.now, within)
	default:
		e.state = health.New(seed, b.now, within)
	}
	r.entries[key] = e
	shared.users.add(e)
	host := r.hosts[key.at.Addr()]
	if host == nil {
		host = &circle{of: ofAddress}
		r.hosts[key.at.Addr()] = host
	}
	host.add(e)
	heap.Push(&r.due, e)
	return e
}

// seed returns the seed of an entry's jitter.
func (r *Runner) seed(key entryKey) uint64 {
	h := fnv.New64a()
	text, _ := key.at.MarshalBinary() // an address can always be encoded
	_, _ = h.Write(text)
	_, _ = h.Write([]byte(key.definition))
	return h.Sum64() ^ r.o.Seed
}

// leaveLocked removes a target from an entry. If the entry has no other target, it also removes the
// entry.
func (r *Runner) leaveLocked(t balancer.Target, e *entry) {
	e.targets = slices.DeleteFunc(e.targets, func(other balancer.Target) bool { return other == t })
	if len(e.targets) > 0 {
		return
	}
	delete(r.entries, e.key)
	if e.place >= 0 {
		heap.Remove(&r.due, e.place)
	}
	users, host := &r.probes[e.key.definition].users, r.hosts[e.key.at.Addr()]
	if users.remove(e); len(users.entries) == 0 {
		delete(r.probes, e.key.definition)
	}
	if host.remove(e); len(host.entries) == 0 {
		delete(r.hosts, e.key.at.Addr())
	}
}

// schedule is a heap of entries, ordered by their due times.
type schedule []*entry

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].state.Due.Before(s[j].state.Due) }

func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i, j
}

// Push appends an entry.
func (s *schedule) Push(x any) {
	e := x.(*entry)
	e.place = len(*s)
	*s = append(*s, e)
}

// Pop removes the last entry.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	e := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	e.place = -1
	return e
}

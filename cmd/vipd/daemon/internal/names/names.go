package names

import (
	"bufio"
	"context"
	"maps"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane/resolve"
	"vipd/store/statedir"
)

// Names looks up the endpoints of services.
type Names struct {
	runner *resolve.Runner
	file   *statedir.File

	// The caller of Resolved owns the fields below.
	services  snap.Map[balancer.Name, *balancer.Service]
	endpoints snap.Map[balancer.EndpointID, *balancer.Endpoint]
	answers   snap.Map[balancer.Lookup, *balancer.Resolution]
	resolved  snap.Map[balancer.LookupID, *balancer.Resolution]
	// users maps each lookup to the services that need it, with the maximum time between two
	// lookups. needs holds the lookups of each service.
	users    map[balancer.Lookup]map[balancer.Name]time.Duration
	needs    map[balancer.Name]map[balancer.Lookup]time.Duration
	complete bool // reports whether the store was ever readable
}

// Options configures Names.
type Options struct {
	// StateDir keeps the answers for the next run.
	StateDir *statedir.Dir
	// Answer makes a lookup (see [resolve.Client.Answer]).
	Answer func(ctx context.Context, l balancer.Lookup, last []balancer.Member) resolve.Answer
	// Kick makes the model call Resolved again. It must not block.
	Kick func()
}

// keptNames is the content of the file.
type keptNames struct {
	Version int          `json:"version"`
	Lookups []keptLookup `json:"lookups"`
}

type keptLookup struct {
	balancer.Lookup
	balancer.Resolution
}

// New reads the answers of an earlier run. Lookups start with Resolved and Run.
func New(o Options) *Names {
	n := &Names{
		file:  o.StateDir.File("names.json", "addresses of endpoints with a name do not outlive a restart", statedir.Large),
		users: map[balancer.Lookup]map[balancer.Name]time.Duration{}, needs: map[balancer.Name]map[balancer.Lookup]time.Duration{},
	}
	var kept keptNames
	n.file.Read(&kept)
	for _, k := range kept.Lookups {
		n.answers = n.answers.Set(k.Lookup, &k.Resolution)
	}
	n.runner = resolve.NewRunner(resolve.RunnerOptions{Answer: o.Answer, Changed: o.Kick, Kept: n.answers})
	return n
}

// Run makes lookups until ctx ends.
func (n *Names) Run(ctx context.Context) error { return n.runner.Run(ctx) }

// Resolved starts the lookups that the services of in need, stops the others, and returns the
// present answers. Its cost depends on the changes. If complete is false, services of an earlier
// run may be missing in in, and their answers are kept.
func (n *Names) Resolved(in *balancer.Inputs, complete bool) snap.Map[balancer.LookupID, *balancer.Resolution] {
	changed := map[balancer.Name]bool{}
	for name := range snap.Diff(n.services, in.Services) {
		changed[name] = true
	}
	for id := range snap.Diff(n.endpoints, in.Endpoints) {
		changed[id.Service] = true
	}
	n.services, n.endpoints = in.Services, in.Endpoints
	other, former := complete != n.complete, map[balancer.Lookup]balancer.Lookup{}
	for name := range changed {
		other = n.replace(name, in, former) || other
	}
	if n.complete = complete; other {
		n.runner.Set(resolve.Demand{Lookups: n.intervals(), Former: former, Incomplete: !complete})
	}
	answers := n.runner.Answers()
	for l, change := range snap.Diff(n.answers, answers) {
		for name := range n.users[l] {
			n.set(balancer.LookupID{Service: name, Lookup: l}, change.New)
		}
	}
	if answers != n.answers {
		n.answers = answers
		n.keep()
	}
	return n.resolved
}

// replace replaces the lookups of one service, and reports whether they have changed. If another
// lookup discovers the endpoints now, it adds the old lookup to former.
func (n *Names) replace(name balancer.Name, in *balancer.Inputs, former map[balancer.Lookup]balancer.Lookup) bool {
	var now map[balancer.Lookup]time.Duration
	if s, ok := in.Services.Get(name); ok {
		now = balancer.LookupsOf(s, in)
	}
	before := n.needs[name]
	if maps.Equal(before, now) {
		return false
	}
	if l, earlier := discovery(now), discovery(before); l != (balancer.Lookup{}) && earlier != (balancer.Lookup{}) {
		former[l] = earlier
	}
	for l := range before {
		delete(n.users[l], name)
		if len(n.users[l]) == 0 {
			delete(n.users, l)
		}
		n.resolved = n.resolved.Delete(balancer.LookupID{Service: name, Lookup: l})
	}
	for l, interval := range now {
		if n.users[l] == nil {
			n.users[l] = map[balancer.Name]time.Duration{}
		}
		n.users[l][name] = interval
		n.set(balancer.LookupID{Service: name, Lookup: l}, n.answers.At(l))
	}
	if n.needs[name] = now; len(now) == 0 {
		delete(n.needs, name)
	}
	return true
}

// discovery returns the lookup that discovers a service's endpoints, or the zero value.
func discovery(lookups map[balancer.Lookup]time.Duration) balancer.Lookup {
	for l := range lookups {
		if l.Kind != balancer.HostLookup {
			return l
		}
	}
	return balancer.Lookup{}
}

// set stores the answer for a service. Nil removes it.
func (n *Names) set(id balancer.LookupID, answer *balancer.Resolution) {
	if answer == nil {
		n.resolved = n.resolved.Delete(id)
	} else {
		n.resolved = n.resolved.Set(id, answer)
	}
}

// intervals returns the maximum time between two runs of each lookup. It is the shortest time that
// a service needs.
func (n *Names) intervals() map[balancer.Lookup]time.Duration {
	all := make(map[balancer.Lookup]time.Duration, len(n.users))
	for l, users := range n.users {
		var shortest time.Duration
		for _, interval := range users {
			if interval != 0 && (shortest == 0 || interval < shortest) {
				shortest = interval
			}
		}
		all[l] = shortest
	}
	return all
}

// keep saves the answers for the next run.
func (n *Names) keep() {
	answers := n.answers
	n.file.Keep(func(w *bufio.Writer) error {
		kept := keptNames{statedir.Version, []keptLookup{}}
		for l, r := range answers.All() {
			if len(r.Members) > 0 {
				kept.Lookups = append(kept.Lookups, keptLookup{l, *r})
			}
		}
		return statedir.Text(kept)(w)
	})
}

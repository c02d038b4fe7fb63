package names

import (
	"bufio"
	"context"
	"sync"

	"vipd/balancer"
	"vipd/balancer/lib/wake"
	"vipd/balancer/snap"
	"vipd/dataplane/resolve"
	"vipd/store/statedir"
)

// Names looks up the endpoints of services.
type Names struct {
	o    Options
	file *statedir.File
	wake wake.Signal   // sent when lookups were added
	free chan struct{} // limits simultaneous lookups

	// The caller of Resolved owns the fields below.
	services  snap.Map[balancer.Name, *balancer.Service]
	endpoints snap.Map[balancer.EndpointID, *balancer.Endpoint]
	resolved  snap.Map[balancer.LookupID, *balancer.Resolution]
	held      map[balancer.LookupID]bool // lookups with old addresses that are still served
	refused   map[balancer.LookupID]use  // lookups beyond the limit
	foreign   int                        // number of lookups that only services from etcd use
	complete  bool                       // set once the store was readable

	mu       sync.Mutex // guards the fields below
	lookups  map[balancer.Lookup]*lookup
	added    map[*lookup]bool // lookups to start
	answered map[*lookup]bool // lookups whose answer differs from resolved
}

// Options configures Names.
type Options struct {
	// StateDir stores the answers, which the next run reads.
	StateDir *statedir.Dir
	// Answer performs a lookup (see [resolve.Client.Answer]).
	Answer func(ctx context.Context, l balancer.Lookup, last []balancer.LookupRecord) resolve.Answer
	// MaxEtcd returns the maximum number of lookups for services from etcd. Lookups that a service
	// from a file shares do not count.
	MaxEtcd func() int
	// Kick makes the model call Resolved again. It must not block.
	Kick func()
	// Uncheckable reports whether the checks of a target can't run on this node. Only Checked calls
	// it.
	Uncheckable func(balancer.Target) bool
}

// New reads the answers that the previous run saved. Lookups start after Resolved and Run are
// called.
func New(o Options) *Names {
	n := &Names{
		o: o, file: o.StateDir.File("names.json", "a restart will lose the addresses of endpoints with a host name", statedir.Large),
		wake: wake.New(), free: make(chan struct{}, maxSimultaneous),
		held: map[balancer.LookupID]bool{}, refused: map[balancer.LookupID]use{},
		lookups: map[balancer.Lookup]*lookup{}, added: map[*lookup]bool{}, answered: map[*lookup]bool{},
	}
	var kept keptNames
	n.file.Read(&kept)
	for _, k := range kept.Lookups {
		n.publish(balancer.LookupID{Service: k.Service, Lookup: k.Lookup}, &k.Resolution)
	}
	return n
}

// Resolved starts the lookups for the services in the inputs, stops all other lookups, and returns
// the current answers. Its cost depends on the changes. The verdicts in the inputs are older than
// these answers. If complete is false, services that the previous run knew may still be missing
// from the inputs, so their answers are kept.
func (n *Names) Resolved(in *balancer.Inputs, complete bool) snap.Map[balancer.LookupID, *balancer.Resolution] {
	before := n.resolved
	old := balancer.Inputs{Services: n.services, Endpoints: n.endpoints}
	n.services, n.endpoints = in.Services, in.Endpoints
	for name := range changedServices(&old, in) {
		n.replace(name, &old, in)
	}
	n.retry(in)
	n.mu.Lock()
	answered := n.answered
	n.answered = map[*lookup]bool{}
	n.mu.Unlock()
	for l := range answered {
		for name := range l.users {
			n.update(name, l, in, nil)
		}
	}
	if complete && !n.complete {
		n.complete = true
		for id := range n.resolved.Keys() {
			if !in.Services.Has(id.Service) {
				n.forget(id)
			}
		}
	}
	return n.kept(before)
}

// changedServices returns the services that differ between two inputs.
func changedServices(before, after *balancer.Inputs) map[balancer.Name]bool {
	changed := map[balancer.Name]bool{}
	for name := range snap.Diff(before.Services, after.Services) {
		changed[name] = true
	}
	for id := range snap.Diff(before.Endpoints, after.Endpoints) {
		changed[id.Service] = true
	}
	return changed
}

// Checked returns the answers after the endpoints from Resolved have been checked. The inputs
// contain the new verdicts. Checked removes records that new records have replaced.
func (n *Names) Checked(in *balancer.Inputs) snap.Map[balancer.LookupID, *balancer.Resolution] {
	before := n.resolved
	for id := range n.held {
		if l := n.lookups[id.Lookup]; l != nil && in.Services.Has(id.Service) {
			n.update(id.Service, l, in, n.o.Uncheckable)
		}
	}
	return n.kept(before)
}

// Awaits reports whether a lookup for a service in this node's own files has neither endpoints nor
// a first answer. Its cost depends on the number of lookups.
func (n *Names) Awaits() bool {
	for id, r := range n.resolved.All() {
		if l := n.lookups[id.Lookup]; l != nil && l.own > 0 && len(r.Records)+len(r.Former) == 0 && r.Failure == "" {
			return true
		}
	}
	return false
}

// update publishes a lookup's answer for one service.
func (n *Names) update(name balancer.Name, l *lookup, in *balancer.Inputs, uncheckable func(balancer.Target) bool) {
	id := balancer.LookupID{Service: name, Lookup: l.Lookup}
	n.mu.Lock()
	answer := l.answer
	n.mu.Unlock()
	n.publish(id, answer.After(n.resolved.At(id), in.Services.At(name), in, l.Lookup, uncheckable))
}

func (n *Names) publish(id balancer.LookupID, r *balancer.Resolution) {
	n.resolved = n.resolved.Set(id, r)
	if n.held[id] = len(r.Former) > 0; !n.held[id] {
		delete(n.held, id)
	}
}

func (n *Names) forget(id balancer.LookupID) {
	n.resolved = n.resolved.Delete(id)
	delete(n.held, id)
}

// keptNames is the content of the file names.json.
type keptNames struct {
	Version int          `json:"version"`
	Lookups []keptLookup `json:"lookups"`
}

type keptLookup struct {
	Service balancer.Name `json:"service"`
	balancer.Lookup
	balancer.Resolution
}

// kept returns the answers. If they differ from before, it saves them for the next run.
func (n *Names) kept(before snap.Map[balancer.LookupID, *balancer.Resolution]) snap.Map[balancer.LookupID, *balancer.Resolution] {
	resolved := n.resolved
	if resolved == before {
		return resolved
	}
	n.file.Keep(func(w *bufio.Writer) error {
		kept := keptNames{statedir.Version, []keptLookup{}}
		for id, r := range resolved.All() {
			if len(r.Records)+len(r.Former) > 0 {
				kept.Lookups = append(kept.Lookups, keptLookup{id.Service, id.Lookup, *r})
			}
		}
		return statedir.Text(kept)(w)
	})
	return resolved
}

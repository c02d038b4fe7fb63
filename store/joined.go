package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Joined is the source of what two others hold together: services of this node alone, and those of a fleet. Where both
// define one name, the node's own is taken, and what the fleet says of that name (endpoints, overrides) is left out: it
// is about another service. Of two settings of one address the node's own are taken, too.
type Joined struct {
	// Local has services. Endpoints and overrides apart from them are the fleet's alone.
	Local Source
	Fleet Source
}

var (
	_ Source   = (*Joined)(nil)
	_ Reloader = (*Joined)(nil)
)

// Watch publishes what both hold, once both have published, until ctx ends. Revisions are the fleet's: they stay the
// same where only the node's own services change. An error is that of one of the two, and ends the other.
func (j *Joined) Watch(ctx context.Context, publish func(Snapshot)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := joining{publish: publish}
	watch := func(s Source, last **Snapshot) error {
		defer cancel() // one without the other is not complete
		return s.Watch(ctx, func(s Snapshot) { w.take(last, s) })
	}
	var local error
	var running sync.WaitGroup
	running.Go(func() { local = watch(j.Local, &w.local) })
	fleet := watch(j.Fleet, &w.fleet)
	running.Wait()
	return errors.Join(local, fleet)
}

// Reload has those of the two read everything anew that can be told to.
func (j *Joined) Reload(ctx context.Context) ([]balancer.Problem, error) {
	var problems []balancer.Problem
	for _, s := range []Source{j.Local, j.Fleet} {
		if r, ok := s.(Reloader); ok {
			more, err := r.Reload(ctx)
			if err != nil {
				return nil, err
			}
			problems = append(problems, more...)
		}
	}
	return problems, nil
}

// joining is one run of Watch.
type joining struct {
	publish func(Snapshot)

	mu           sync.Mutex // held while publish runs: it is never called twice at once
	local, fleet *Snapshot  // what was last published; nil means nothing yet
	joined       joined
}

// take takes in what one of the two has published.
func (w *joining) take(last **Snapshot, s Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*last = &s
	if w.local != nil && w.fleet != nil {
		w.publish(w.joined.next(*w.local, *w.fleet))
	}
}

// joined is what two snapshots come to together. The zero value is that of two empty ones.
type joined struct {
	local, fleet Snapshot // of which it was made
	out          Snapshot
	// contested are services of the fleet that the node defines too, and contestedVIPs settings of addresses.
	contested     snap.Map[balancer.Name, *balancer.Service]
	contestedVIPs snap.Map[netip.Addr, *balancer.VIP]
}

// next joins the two snapshots that came after. Its cost is that of comparing them with those before.
func (j *joined) next(local, fleet Snapshot) Snapshot {
	moved := either(&j.out.Services, &j.contested, [2]snap.Map[balancer.Name, *balancer.Service]{j.local.Services, j.fleet.Services}, local.Services, fleet.Services)
	either(&j.out.VIPs, &j.contestedVIPs, [2]snap.Map[netip.Addr, *balancer.VIP]{j.local.VIPs, j.fleet.VIPs}, local.VIPs, fleet.VIPs)
	j.out.Pools = fleet.Pools
	serviceOf := func(id balancer.EndpointID) balancer.Name { return id.Service }
	j.out.Endpoints = follow(j.out.Endpoints, local.Services, j.fleet.Endpoints, fleet.Endpoints, serviceOf)
	targetOf := func(t balancer.Target) balancer.Name { return t.Service }
	j.out.Overrides = follow(j.out.Overrides, local.Services, j.fleet.Overrides, fleet.Overrides, targetOf)
	for name := range moved {
		j.out.Endpoints = shift(j.out.Endpoints, fleet.Endpoints, balancer.EndpointID{Service: name}, local.Services.Has(name), serviceOf)
		j.out.Overrides = shift(j.out.Overrides, fleet.Overrides, balancer.Target{Service: name}, local.Services.Has(name), targetOf)
	}
	j.out.Settings, j.out.Began = local.Settings, fleet.Began
	if local.Began.After(fleet.Began) {
		j.out.Began = local.Began
	}
	j.out.Revision, j.out.Connected = fleet.Revision, local.Connected && fleet.Connected
	j.out.Kept = !j.out.Connected && (local.Connected || local.Kept) && (fleet.Connected || fleet.Kept)
	j.out.Err = errors.Join(local.Err, fleet.Err)
	j.out.Problems = slices.Concat(local.Problems, fleet.Problems, j.contests(local))
	j.local, j.fleet = local, fleet
	return j.out
}

// either brings into out what has changed since before in what the node defines and the fleet: each from the node, or else
// from the fleet. Contested gets the fleet's where both define it. It returns what the node has begun or ceased to define.
func either[K snap.Ordered[K], V any](out, contested *snap.Map[K, *V], before [2]snap.Map[K, *V], local, fleet snap.Map[K, *V]) (moved map[K]bool) {
	moved = map[K]bool{}
	look := func(key K) {
		own, shared := local.At(key), fleet.At(key)
		*out = set(*out, key, cmp.Or(own, shared))
		if own == nil {
			shared = nil
		}
		*contested = set(*contested, key, shared)
	}
	for key, c := range snap.Diff(before[0], local) {
		look(key)
		if c.HadOld != c.HasNew {
			moved[key] = true
		}
	}
	for key := range snap.Diff(before[1], fleet) {
		look(key)
	}
	return moved
}

// contests are the problems of what both define.
func (j *joined) contests(local Snapshot) []balancer.Problem {
	var problems []balancer.Problem
	for name, shared := range j.contested.All() {
		at := local.Services.At(name).Origin
		problems = append(problems, balancer.Problem{
			Severity: balancer.SeverityError, Service: name, Origin: shared.Origin,
			Text: fmt.Sprintf("this node's own service of that name (%s:%d) is served instead; rename or remove one of the two", at.File, at.Line),
		})
	}
	for addr, shared := range j.contestedVIPs.All() {
		at := local.VIPs.At(addr).Origin
		problems = append(problems, balancer.Problem{
			Severity: balancer.SeverityError, Origin: shared.Origin.At(""),
			Text: fmt.Sprintf("this node's own settings of %s (%s:%d) apply instead; remove one of the two", addr, at.File, at.Line),
		})
	}
	return problems
}

// set puts a value in, or takes out what there is if it is nil.
func set[K snap.Ordered[K], V any](m snap.Map[K, *V], key K, value *V) snap.Map[K, *V] {
	if value == nil {
		return m.Delete(key)
	}
	return m.Set(key, value)
}

// follow brings what has changed in the fleet into out, but for what belongs to services that the node defines.
func follow[K snap.Ordered[K], V any](out snap.Map[K, *V], own snap.Map[balancer.Name, *balancer.Service], before, after snap.Map[K, *V], of func(K) balancer.Name) snap.Map[K, *V] {
	for key, c := range snap.Diff(before, after) {
		if !own.Has(of(key)) {
			out = set(out, key, c.New)
		}
	}
	return out
}

// shift takes what the fleet says of the service of start out, or brings it back.
func shift[K snap.Ordered[K], V any](out, fleet snap.Map[K, *V], start K, own bool, of func(K) balancer.Name) snap.Map[K, *V] {
	for _, m := range []snap.Map[K, *V]{out, fleet} {
		for key, v := range m.From(start) {
			if of(key) != of(start) {
				break
			}
			if own {
				v = nil
			}
			out = set(out, key, v)
		}
	}
	return out
}

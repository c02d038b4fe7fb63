package store

import (
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
}

// next joins the two snapshots that came after. What changes in the fleet costs what it is; the node's own file is taken in anew.
func (j *joined) next(local, fleet Snapshot) Snapshot {
	own, was := local.Services, j.local.Services
	j.out.Services = follow(j.out.Services, j.fleet.Services, fleet.Services, own, own == was, func(n balancer.Name) balancer.Name { return n })
	j.out.VIPs = follow(j.out.VIPs, j.fleet.VIPs, fleet.VIPs, local.VIPs, local.VIPs == j.local.VIPs, func(a netip.Addr) netip.Addr { return a })
	j.out.Endpoints = follow(j.out.Endpoints, j.fleet.Endpoints, fleet.Endpoints, own, own == was, func(id balancer.EndpointID) balancer.Name { return id.Service })
	j.out.Overrides = follow(j.out.Overrides, j.fleet.Overrides, fleet.Overrides, own, own == was, func(t balancer.Target) balancer.Name { return t.Service })
	if own != was {
		for name, service := range own.All() {
			j.out.Services = j.out.Services.Set(name, service)
			j.out.Endpoints = leaveOut(j.out.Endpoints, balancer.EndpointID{Service: name}, func(id balancer.EndpointID) bool { return id.Service == name })
			j.out.Overrides = leaveOut(j.out.Overrides, balancer.Target{Service: name}, func(t balancer.Target) bool { return t.Service == name })
		}
	}
	if local.VIPs != j.local.VIPs {
		for addr, vip := range local.VIPs.All() {
			j.out.VIPs = j.out.VIPs.Set(addr, vip)
		}
	}
	j.out.Pools = fleet.Pools
	j.out.Settings, j.out.Began = local.Settings, fleet.Began
	if local.Began.After(fleet.Began) {
		j.out.Began = local.Began
	}
	j.out.Revision, j.out.Connected = fleet.Revision, local.Connected && fleet.Connected
	j.out.Kept = !j.out.Connected && (local.Connected || local.Kept) && (fleet.Connected || fleet.Kept)
	j.out.Err = errors.Join(local.Err, fleet.Err)
	j.out.Problems = slices.Concat(local.Problems, fleet.Problems, contests(local, fleet))
	j.local, j.fleet = local, fleet
	return j.out
}

// contests are the problems of what both define: the node's own is taken.
func contests(local, fleet Snapshot) []balancer.Problem {
	var problems []balancer.Problem
	for name, own := range local.Services.All() {
		if shared := fleet.Services.At(name); shared != nil {
			problems = append(problems, balancer.Problem{
				Severity: balancer.SeverityError, Service: name, Origin: shared.Origin,
				Text: fmt.Sprintf("this node's own service of that name (%s:%d) is served instead; rename or remove one of the two", own.Origin.File, own.Origin.Line),
			})
		}
	}
	for addr, own := range local.VIPs.All() {
		if shared := fleet.VIPs.At(addr); shared != nil {
			problems = append(problems, balancer.Problem{
				Severity: balancer.SeverityError, Origin: shared.Origin.At(""),
				Text: fmt.Sprintf("this node's own settings of %s (%s:%d) apply instead; remove one of the two", addr, own.Origin.File, own.Origin.Line),
			})
		}
	}
	return problems
}

// follow is what there is in the fleet after before, but for what belongs to what the node defines; where that is not the same as for out,
// with all.
func follow[K snap.Ordered[K], N snap.Ordered[N], V, O any](
	out, before, after snap.Map[K, *V], own snap.Map[N, *O], same bool, of func(K) N,
) snap.Map[K, *V] {
	if !same {
		return after
	}
	for key, c := range snap.Diff(before, after) {
		switch {
		case own.Has(of(key)):
		case c.HasNew:
			out = out.Set(key, c.New)
		default:
			out = out.Delete(key)
		}
	}
	return out
}

// leaveOut removes what is of one, from start on.
func leaveOut[K snap.Ordered[K], V any](m snap.Map[K, *V], start K, is func(K) bool) snap.Map[K, *V] {
	for key := range m.From(start) {
		if !is(key) {
			break
		}
		m = m.Delete(key)
	}
	return m
}

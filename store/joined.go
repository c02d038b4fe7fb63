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

// Joined is a source that combines two sources: this node's own services, and a fleet's services.
// If both define a service, the node's definition is used, and the fleet's endpoints and overrides
// of that service are ignored. If both have settings for an address, the node's settings are used.
type Joined struct {
	// Local provides the node's own services. Endpoints and overrides outside a service's
	// definition are read only from Fleet.
	Local Source
	Fleet Source
}

var _ Source = (*Joined)(nil)

// Watch publishes the combined state until ctx ends, starting when both sources have published. Its
// revisions are the fleet's, so the node's own services do not affect them. If one source's Watch
// returns, Watch also ends the other source.
func (j *Joined) Watch(ctx context.Context, publish func(Snapshot)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex          // held while publish runs, because calls to publish must not overlap
	var local, fleet *Snapshot // last snapshots, or nil if nothing was published yet
	var both joined
	watch := func(s Source, last **Snapshot) error {
		defer cancel() // without its other source, the combined state would be incomplete
		return s.Watch(ctx, func(s Snapshot) {
			mu.Lock()
			defer mu.Unlock()
			*last = &s
			if local != nil && fleet != nil {
				publish(both.next(*local, *fleet))
			}
		})
	}
	var failed error
	var running sync.WaitGroup
	running.Go(func() { failed = watch(j.Local, &local) })
	err := watch(j.Fleet, &fleet)
	running.Wait()
	return errors.Join(failed, err)
}

// joined is the combination of two snapshots. The zero value is the combination of two empty
// snapshots.
type joined struct {
	local, fleet Snapshot // the snapshots that out combines
	out          Snapshot
}

// next combines the next two snapshots. Its cost depends on the number of changes in the fleet's
// snapshot, and on the size of the node's own snapshot.
func (j *joined) next(local, fleet Snapshot) Snapshot {
	own, was := local.Services, j.local.Services
	j.out.Services = follow(j.out.Services, j.fleet.Services, fleet.Services, own, own == was, func(n balancer.Name) balancer.Name { return n })
	j.out.VIPs = follow(j.out.VIPs, j.fleet.VIPs, fleet.VIPs, local.VIPs, local.VIPs == j.local.VIPs, func(a netip.Addr) netip.Addr { return a })
	j.out.Endpoints = follow(j.out.Endpoints, j.fleet.Endpoints, fleet.Endpoints, own, own == was, func(id balancer.EndpointID) balancer.Name { return id.Service })
	j.out.Overrides = follow(j.out.Overrides, j.fleet.Overrides, fleet.Overrides, own, own == was, func(t balancer.Target) balancer.Name { return t.Service })
	if own != was {
		for name, service := range own.All() {
			j.out.Services = j.out.Services.Set(name, service)
			for id := range fleet.Endpoints.While(balancer.EndpointID{Service: name}, func(id balancer.EndpointID) bool { return id.Service == name }) {
				j.out.Endpoints = j.out.Endpoints.Delete(id)
			}
			for t := range fleet.Overrides.While(balancer.Target{Service: name}, func(t balancer.Target) bool { return t.Service == name }) {
				j.out.Overrides = j.out.Overrides.Delete(t)
			}
		}
	}
	if local.VIPs != j.local.VIPs {
		for addr, vip := range local.VIPs.All() {
			j.out.VIPs = j.out.VIPs.Set(addr, vip)
		}
	}
	j.out.Local = &LocalState{Revision: local.Revision, Connected: local.Connected, Err: local.Err}
	j.out.Pools, j.out.Nodes = fleet.Pools, fleet.Nodes
	j.out.Retained, j.out.Vanished = local.Retained, local.Vanished
	j.out.Settings, j.out.Began = local.Settings, fleet.Began
	if local.Began.After(fleet.Began) {
		j.out.Began = local.Began
	}
	j.out.Revision, j.out.Connected = fleet.Revision, local.Connected && fleet.Connected
	j.out.Kept = !j.out.Connected && (local.Connected || local.Kept) && (fleet.Connected || fleet.Kept)
	j.out.Err = errors.Join(local.Err, fleet.Err)
	j.out.Pending = slices.Concat(local.Pending, fleet.Pending)
	j.out.Problems = slices.Concat(local.Problems, fleet.Problems, contests(local, fleet))
	j.local, j.fleet = local, fleet
	return j.out
}

// contests returns a problem for each service that both sources define, and for each address that
// has settings in both sources.
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

// follow applies the changes between before and after, which are two versions of a map from the
// fleet, to out. It skips keys that the node defines itself. If same is false, the node's own
// definitions have changed. In this case it returns after, to which the caller must apply these
// definitions.
func follow[K snap.Ordered[K], N snap.Ordered[N], V, O any](
	out, before, after snap.Map[K, *V], own snap.Map[N, *O], same bool, nameOf func(K) N,
) snap.Map[K, *V] {
	if !same {
		return after
	}
	for key, c := range snap.Diff(before, after) {
		switch {
		case own.Has(nameOf(key)):
		case c.HasNew:
			out = out.Set(key, c.New)
		default:
			out = out.Delete(key)
		}
	}
	return out
}

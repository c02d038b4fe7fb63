package userspace

import (
	"context"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
)

// Observe returns the frontends that this process serves: what an earlier one served ended with it. In the redirect
// interception it looks at the rules too, and what an earlier process left of them is damage.
func (d *Dataplane) Observe(ctx context.Context) (dataplane.Observation, error) {
	d.applying.Lock()
	defer d.applying.Unlock()
	d.carried.Again()
	seen := dataplane.Observation{Digests: map[balancer.Key]dataplane.Digest{}}
	for _, f := range d.list() {
		switch {
		case f.isRemoved():
		case d.tables.served(f):
			seen.Digests[f.key] = d.Digest(f.conf.Load().Frontend)
		default:
			seen.Digests[f.key] = 0
		}
	}
	damage, err := d.tables.inspect(ctx)
	if len(seen.Digests) > 0 { // else nothing is applied that would mend it, though removed ones may still serve: the next frontend does
		seen.Damage = damage
	}
	return seen, err
}

// Intact reports what is missing. Sockets don't go away by themselves: it is about the rules of the redirect
// interception.
func (d *Dataplane) Intact(ctx context.Context) (string, error) {
	d.discard() // the engine asks once everything that is wanted has been applied
	return d.tables.intact(ctx)
}

// list returns all frontends, in any order.
func (d *Dataplane) list() []*frontend {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.frontends))
}

func (f *frontend) isRemoved() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.removed
}

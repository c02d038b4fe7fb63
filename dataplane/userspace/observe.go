package userspace

import (
	"context"
	"errors"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
)

// Observe returns the frontends that this process serves. With redirects, it also reports as damage
// any rules that are not as expected or that an earlier process left behind.
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
	more, failed := d.replies.inspect(d, d.keepsReplies || d.usesClients())
	damage, err = append(damage, more...), errors.Join(err, failed)
	if len(seen.Digests) > 0 { // without frontends, nothing would repair the damage; the next Apply does
		seen.Damage = damage
	}
	return seen, err
}

// Intact returns a description of missing redirect rules, or "". Sockets can't disappear.
func (d *Dataplane) Intact(ctx context.Context) (string, error) {
	reason, err := d.tables.intact(ctx)
	if reason != "" || err != nil {
		return reason, err
	}
	d.applying.Lock()
	defer d.applying.Unlock()
	return d.replies.intact()
}

// usesClients reports whether any frontend connects to backends from clients' addresses.
func (d *Dataplane) usesClients() bool {
	return slices.ContainsFunc(d.list(), func(f *frontend) bool { return !f.isRemoved() && f.conf.Load().Source == balancer.ClientSource })
}

// usesClientsAt reports whether the frontend with this key connects to backends from clients'
// addresses.
func (d *Dataplane) usesClientsAt(key balancer.Key) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.frontends[key]
	return f != nil && !f.isRemoved() && f.conf.Load().Source == balancer.ClientSource
}

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

package guard

import (
	"errors"
	"fmt"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
)

// errNotYet is why source ranges are not in force where nothing has failed.
var errNotYet = errors.New("the guard has not been put up yet")

// restricts says why the source ranges of f are not in force; nil means they are, or they can't be had here and the dataplane
// enforces them by itself. They can't be had where there are no ipsets or iptables, or no privilege to use them, where the
// kernel lacks sets of networks, and where it has refused the rules for as long as refusedAfter.
func (g *legacy) restricts(f *balancer.Frontend, enforced bool) error {
	if err := g.unrestrictable(); err != nil {
		return unenforceable(err, enforced)
	}
	standing := g.ready
	for _, p := range g.parts {
		if p.def.name == marksPart {
			standing = standing && p.chains != nil
		}
	}
	if standing && g.inForce(f, g.uses) {
		return nil
	}
	return notInForce(g.fault)
}

// unenforceable is what a frontend with source ranges is told where these can't be had; nil means the dataplane enforces them.
func unenforceable(reason error, enforced bool) error {
	if enforced {
		return nil
	}
	return fmt.Errorf("it is not served, because its source_ranges can't be enforced here: mend that, use mode = \"userspace\", "+
		"which enforces them by itself, or remove source_ranges: %w", reason)
}

// notInForce is what a frontend with source ranges is told before they are in force; fault is why the guard was not changed.
func notInForce(fault error) error {
	if fault == nil {
		fault = errNotYet
	}
	return fmt.Errorf("source_ranges are not in force yet: %w", fault)
}

// inForce reports whether all that restricts f is in those sets that the guard uses.
func (w *wanted) inForce(f *balancer.Frontend, uses func(*members) bool) bool {
	for _, m := range w.members {
		if !m.def.early || m.def.entries == nil || !uses(m) {
			continue
		}
		for _, e := range m.def.entries(f) {
			if !m.have[e] && !m.vetoed(e) {
				return false
			}
		}
	}
	return true
}

// unrestrictable says why source ranges can't be had here; nil means they can, now or soon.
func (g *legacy) unrestrictable() error {
	err := errors.Join(g.failed, g.set(allowedSet).lacking)
	for _, p := range g.parts {
		if p.def.name == marksPart {
			err = errors.Join(err, p.failed)
		}
	}
	return err
}

// unrestricted reports whether c is none of the guard's business: it has no source ranges, or was served within the same
// ones before, so that applying it admits no new clients.
func unrestricted(c dataplane.Change) bool {
	f := c.New
	return len(f.Sources) == 0 || f.Addr.IsLoopback() || c.Old != nil && c.Old.Serves() && slices.Equal(c.Old.Sources, f.Sources)
}

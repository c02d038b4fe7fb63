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

// restricts says why the source ranges of f are not in force; nil: they are, or they can't be had here and the dataplane
// enforces them by itself. They can't be had where there are no ipsets or iptables, or no privilege to use them, where the
// kernel lacks sets of networks, and where it has refused the rules for as long as refusedAfter.
func (g *family) restricts(f *balancer.Frontend, enforced bool) error {
	if err := g.unrestrictable(); err != nil {
		if enforced {
			return nil
		}
		return fmt.Errorf("it is not served, because its source_ranges can't be enforced here: mend that, use mode = \"userspace\", "+
			"which enforces them by itself, or remove source_ranges: %w", err)
	}
	standing := g.ready
	for _, p := range g.parts {
		if p.def.name != marksPart {
			continue
		}
		standing = standing && p.chains != nil
	}
	for _, m := range g.members {
		if !standing || !m.def.early || m.def.entries == nil || !g.uses(m) {
			continue
		}
		for _, e := range m.def.entries(f) {
			standing = standing && (m.have[e] || m.vetoed(e))
		}
	}
	if standing {
		return nil
	}
	err := g.fault
	if err == nil {
		err = errNotYet
	}
	return fmt.Errorf("source_ranges are not in force yet: %w", err)
}

// unrestrictable says why source ranges can't be had here; nil: they can, now or soon.
func (g *family) unrestrictable() error {
	err := errors.Join(g.failed, g.set(allowedSet).lacking)
	for _, p := range g.parts {
		if p.def.name == marksPart {
			err = errors.Join(err, p.failed)
		}
	}
	return err
}

// unrestricted reports whether c is none of the guard's business: it has no source ranges, or was served within the same
// ones before, so that applying it lets nobody in who was not.
func unrestricted(c dataplane.Change) bool {
	f := c.New
	return len(f.Sources) == 0 || f.Addr.IsLoopback() || c.Old != nil && c.Old.Serves() && slices.Equal(c.Old.Sources, f.Sources)
}

package host

import (
	"errors"
	"fmt"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
)

// errNotYet is why source ranges are not in force where nothing has failed.
var errNotYet = errors.New("the guard has not been put up yet")

// restricts says why the source ranges of f are not in force; nil: they are, or they can't be had here. That is so where
// there are no ipsets or iptables, or no privilege to use them, where the kernel lacks sets of networks, and where it
// has refused the rules for as long as refusedAfter: then problems says so, and what was served without them still is,
// for the userspace mode enforces them by itself.
func (g *guard) restricts(f *balancer.Frontend) error {
	if g.failed != nil || g.set(allowedSet).lacking != nil {
		return nil
	}
	standing := g.ready
	for _, p := range g.parts {
		if p.def.name != marksPart {
			continue
		}
		if p.failed != nil {
			return nil
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

// unrestricted reports whether c is none of the guard's business: it has no source ranges, or was served within the same
// ones before, so that applying it lets nobody in who was not.
func unrestricted(c dataplane.Change) bool {
	f := c.New
	return len(f.Sources) == 0 || f.Addr.IsLoopback() || c.Old != nil && c.Old.Serves() && slices.Equal(c.Old.Sources, f.Sources)
}

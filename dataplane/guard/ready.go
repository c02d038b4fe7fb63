package guard

import (
	"errors"
	"fmt"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
)

// errNotYet is the reason why restrictions are not in force yet, if nothing has failed.
var errNotYet = errors.New("the guard is not installed yet")

// unenforceable returns the error for a restricted frontend on a host without a guard. It returns
// nil if the dataplane enforces the restriction.
func unenforceable(f *balancer.Frontend, reason error, enforced bool) error {
	if enforced {
		return nil
	}
	return fmt.Errorf("it is not served, because its %[1]s can't be enforced here. Fix the cause, use mode = \"userspace\", or remove %[1]s: %[2]w", restrictionOf(f), reason)
}

// notInForce returns the error for a restricted frontend before its restrictions are in force.
// fault is the reason why the last change to the guard failed, or nil.
func notInForce(f *balancer.Frontend, fault error) error {
	if fault == nil {
		fault = errNotYet
	}
	return fmt.Errorf("%s can't be enforced yet: %w", restrictionOf(f), fault)
}

func restrictionOf(f *balancer.Frontend) string {
	if isRestricted(f) {
		return "source_ranges"
	}
	return `hold = "one"`
}

// inForce reports whether the sets contain all restrictions of f.
func (w *wanted) inForce(f *balancer.Frontend) bool {
	if w.isOwned(f) && !w.owned.have[setEntry{Addr: f.Addr}] {
		return false
	}
	for _, m := range w.members {
		if !m.def.early || m.def.entries == nil {
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

// isOwned reports whether the address of f may be on another host.
func (w *wanted) isOwned(f *balancer.Frontend) bool {
	return w.owned.count[setEntry{Addr: f.Addr}] > 0
}

// unrestricted reports whether c admits no additional clients, because the frontend is not
// restricted or was already served within the same limits.
func (w *wanted) unrestricted(c dataplane.Change) bool {
	f := c.New
	return len(f.Sources) == 0 && !w.isOwned(f) || f.Addr.IsLoopback() ||
		c.Old != nil && c.Old.Serves() && slices.Equal(c.Old.Sources, f.Sources)
}

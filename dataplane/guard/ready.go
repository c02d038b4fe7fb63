package guard

import (
	"errors"
	"fmt"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
)

// errNotYet is why what restricts is not in force where nothing has failed.
var errNotYet = errors.New("the guard has not been put up yet")

// unenforceable is what a frontend that is restricted is told where that is unavailable; nil means the dataplane enforces it.
func unenforceable(f *balancer.Frontend, reason error, enforced bool) error {
	if enforced {
		return nil
	}
	return fmt.Errorf("it is not served, because its %[1]s can't be enforced here: mend that, use mode = \"userspace\", "+
		"which does so by itself, or remove %[1]s: %[2]w", restrictionOf(f), reason)
}

// notInForce is what a frontend that is restricted is told before that is in force; fault is why the guard was not changed.
func notInForce(f *balancer.Frontend, fault error) error {
	if fault == nil {
		fault = errNotYet
	}
	return fmt.Errorf("%s can't be enforced yet: %w", restrictionOf(f), fault)
}

// restrictionOf is the setting by which a frontend is restricted.
func restrictionOf(f *balancer.Frontend) string {
	if isRestricted(f) {
		return "source_ranges"
	}
	return `hold = "one"`
}

// inForce reports whether the sets have all that restricts f.
func (w *wanted) inForce(f *balancer.Frontend) bool {
	if w.isOwned(f) && !w.owned.have[entry{Addr: f.Addr}] {
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

// isOwned reports whether f is on an address that another host may have.
func (w *wanted) isOwned(f *balancer.Frontend) bool {
	return w.owned.count[entry{Addr: f.Addr}] > 0
}

// unrestricted reports whether c is none of the guard's business: it is not restricted, or was served within the same limits
// before, so that applying it admits no new clients.
func (w *wanted) unrestricted(c dataplane.Change) bool {
	f := c.New
	return len(f.Sources) == 0 && !w.isOwned(f) || f.Addr.IsLoopback() ||
		c.Old != nil && c.Old.Serves() && slices.Equal(c.Old.Sources, f.Sources)
}

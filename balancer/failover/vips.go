package failover

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer/failover/local"
)

// Policy holds the users' settings for a VIP with hold = "one".
type Policy struct {
	// Prefer lists nodes, best first. All other nodes rank below them.
	Prefer []string
	// Preempt is how long a more preferred node must be healthy before the VIP returns to it. Zero
	// means that the VIP does not return.
	Preempt time.Duration
	// Group names VIPs that must be on the same node. If empty, the VIP has no group.
	Group string
}

// vip is a VIP. The VIPs in a group move together, but each has its own record in etcd.
type vip struct {
	name   string
	addr   netip.Addr
	policy Policy
	bound  bool
	// giving is the ID of the Unbind that started the release of the VIP, or 0 if the VIP is not
	// being released.
	giving int
	// fresh reports whether etcd has no owner record for the VIP.
	fresh bool
	// since is when this node noticed that the VIP is free, or 0 if it is not free. better is since
	// when a more preferred node could own the VIP, or 0 if there is none.
	since, better local.Time
	// clear is set if a probe found no host with the address, so this node may claim the VIP.
	// stranger is the MAC of a host outside the fleet that has the address. Until askAgain, this
	// node ignores a VIP that it could not claim.
	clear    bool
	stranger string
	askAgain local.Time
	// changed holds when the VIP's owner changed, for the most recent changes.
	changed []local.Time
}

// A VIP that has moved maxMoves times within movesTime without a request stays where it is until
// fewer moves are that recent.
const (
	maxMoves  = 3
	movesTime = time.Minute
)

// flapping reports whether the VIP has recently moved so often that it must stay where it is.
func (v *vip) flapping(now local.Time) bool {
	return len(v.changed) == maxMoves && now.Since(v.changed[0]) < movesTime
}

func (v *vip) moved(now local.Time) {
	v.changed = append(v.changed, now)
	v.changed = v.changed[max(0, len(v.changed)-maxMoves):]
}

// vips holds all VIPs with hold = "one".
type vips struct {
	byName map[string]*vip
	// removed holds VIPs that users have removed, until it is certain that this node does not own
	// them.
	removed map[string]*vip
	order   []*vip // by name
	// groups holds the VIPs of each group, in order.
	groups map[string][]*vip
	// bound is the number of addresses that are bound on this host.
	bound int
}

func newVIPs() *vips { return &vips{byName: map[string]*vip{}, removed: map[string]*vip{}} }

// set replaces all VIPs, and returns the VIPs that users have removed.
func (x *vips) set(policies map[netip.Addr]Policy) (removed []*vip) {
	next := map[string]*vip{}
	for a, p := range policies {
		v := x.find(a.String())
		if v == nil {
			v = &vip{name: a.String(), addr: a}
		}
		v.policy = p
		next[v.name] = v
	}
	for name, v := range x.byName {
		if next[name] == nil {
			x.removed[name] = v
			removed = append(removed, v)
		}
	}
	x.byName, x.groups = next, map[string][]*vip{}
	x.order = slices.SortedFunc(maps.Values(next), func(a, b *vip) int { return cmp.Compare(a.name, b.name) })
	for _, v := range x.order {
		if g := v.policy.Group; g != "" {
			x.groups[g] = append(x.groups[g], v)
		}
	}
	return removed
}

func (x *vips) find(name string) *vip { return cmp.Or(x.byName[name], x.removed[name]) }

// together returns the VIPs that move together with a VIP, including itself.
func (x *vips) together(v *vip) []*vip {
	if all := x.groups[v.policy.Group]; len(all) > 0 {
		return all
	}
	return []*vip{v}
}

// unbind marks a VIP as no longer bound.
func (x *vips) unbind(v *vip) {
	if v.bound {
		v.bound = false
		x.bound--
	}
}

func (x *vips) boundNames() (names []string) {
	for _, v := range x.order {
		if v.bound {
			names = append(names, v.name)
		}
	}
	return names
}

package vrrp

import (
	"time"

	"vipd/balancer/failover/local"
)

// These priorities have a special meaning.
const (
	// resignPriority is in the last advert that an owner sends when it releases the VIPs.
	resignPriority = 0
	// unfitPriority is the priority of a router that can't serve the VIPs.
	unfitPriority = 1
)

// fitness decides whether this host should own the VIPs.
type fitness struct {
	// why is the reason why this host can't serve the VIPs, or "". since is when it became able to
	// serve them.
	why   string
	since local.Time
	// moving is set while an operator is moving the VIPs away. held is set when the move is
	// complete. After the move, this host does not preempt an owner with a lower priority.
	moving, held bool
}

// priority returns the priority of the next advert.
func (r *router) priority() uint8 {
	if r.fitness.why != "" || r.fitness.moving || r.witness.lost {
		return unfitPriority
	}
	return r.g.Priority
}

// preempts reports whether this host takes over from an owner with a lower priority. It does so if
// it has been healthy for the duration after, and no operator has moved the VIPs away.
func (f *fitness) preempts(now local.Time, after time.Duration) bool {
	return after >= 0 && !f.held && !f.moving && now.Since(f.since) >= after
}

// ready sets the reason why this host can't serve the VIPs; "" means that it can. An owner that
// becomes unable resigns. An owner that was already unable when it took over remains the owner,
// because no other router wanted the VIPs.
func (r *router) ready(why string) {
	worse := r.fitness.why == "" && why != ""
	if r.fitness.why != "" && why == "" {
		r.fitness.since = r.now
	}
	if r.fitness.why = why; worse && (r.state == Active || r.state == Claiming) {
		r.resign(Backup, cause{"not ready", why})
	}
}

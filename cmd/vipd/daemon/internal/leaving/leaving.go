package leaving

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/dataplane"
)

// Options connects Run to the daemon.
type Options struct {
	// State returns the last compiled state, and a channel that is closed when the next state is
	// published.
	State func() (*model.State, <-chan struct{})
	// Done returns the applied frontends, and a channel that is closed when they may have changed.
	Done func() (snap.Map[balancer.Key, *balancer.Frontend], <-chan struct{})
	// Mode returns a value that identifies the mode in use, and that changes with each switch.
	Mode func() any
	// Connections calls visit for the connections of the mode in use.
	Connections func(ctx context.Context, visit func(*dataplane.Connection) error) error
	// Tracked returns the VIPs that have connections in the kernel's connection tracking.
	Tracked func(ctx context.Context, vips map[netip.Addr]bool) (map[netip.Addr]bool, error)
	// Release releases VIPs early, unless their drain has changed.
	Release func(vips map[netip.Addr]balancer.Drain)
}

// The pause between two checks is between minPause and maxPause. It grows, because the cost of a
// check grows with the number of connections.
const (
	minPause = time.Second
	maxPause = 5 * time.Second
)

// leave is a VIP without frontends.
type leave struct {
	drain balancer.Drain
	// mode is the mode that was in use at the start of the drain. Another mode may not list all
	// connections of the VIP.
	mode any
	// inherited reports whether the drain started before this process did. If so, this process may
	// not list all connections of the VIP.
	inherited bool
	// removed reports whether the frontends were removed from the kernel.
	removed bool
}

// watch holds the leaving VIPs. The goroutine of Run owns it.
type watch struct {
	Options
	leaves map[netip.Addr]leave
	began  bool // set once there was a complete state
}

// Run releases VIPs until ctx is done.
func Run(ctx context.Context, o Options) error {
	w := &watch{Options: o, leaves: map[netip.Addr]leave{}}
	pause := minPause
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		state, compiled := w.State()
		done, applied := w.Done()
		w.follow(state)
		if fresh := w.remove(done); fresh {
			pause = minPause
			again.Reset(0)
		}
		if len(w.leaves) == 0 {
			applied = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-compiled:
		case <-applied:
		case <-again.C:
			if w.releaseUnused(ctx) {
				again.Reset(pause)
				pause = min(2*pause, maxPause)
			}
		}
	}
}

// follow updates the set of leaving VIPs from s.
func (w *watch) follow(s *model.State) {
	if !s.Complete {
		return
	}
	all := s.Inputs.DrainingVIPs
	maps.DeleteFunc(w.leaves, func(a netip.Addr, l leave) bool { d, still := all.Get(a); return !still || d != l.drain })
	for a, d := range all.All() {
		if _, known := w.leaves[a]; !known {
			w.leaves[a] = leave{drain: d, mode: w.Mode(), inherited: !w.began}
		}
	}
	w.began = true
}

// remove marks the VIPs whose frontends were removed from the kernel, and reports whether it marked
// any. These VIPs can't get new connections.
func (w *watch) remove(done snap.Map[balancer.Key, *balancer.Frontend]) (fresh bool) {
	for a, l := range w.leaves {
		l.removed = l.removed || !anyOn(done, a)
		fresh = fresh || l.removed != w.leaves[a].removed
		w.leaves[a] = l
	}
	return fresh
}

func anyOn(done snap.Map[balancer.Key, *balancer.Frontend], a netip.Addr) bool {
	for range balancer.FrontendsOn(done, a) {
		return true
	}
	return false
}

// releaseUnused releases the VIPs without connections, and reports whether other VIPs must be
// checked later.
func (w *watch) releaseUnused(ctx context.Context) (others bool) {
	idle := map[netip.Addr]bool{}
	for a, l := range w.leaves {
		if l.removed && !l.inherited && l.mode == w.Mode() {
			idle[a] = true
		}
	}
	if len(idle) == 0 {
		return false
	}
	tracked, err := w.Tracked(ctx, idle)
	if err == nil {
		err = w.Connections(ctx, func(c *dataplane.Connection) error {
			if isLive(c) {
				delete(idle, c.Frontend.Addr)
			}
			return nil
		})
	}
	if err != nil {
		return true // the connections are unknown, so the VIPs wait for their drain_timeout
	}
	free := map[netip.Addr]balancer.Drain{}
	for a := range idle {
		if !tracked[a] {
			free[a] = w.leaves[a].drain
		}
	}
	if len(free) > 0 {
		w.Release(free)
	}
	return len(free) < len(w.leaves)
}

// isLive reports whether a connection still needs the address, because it was answered and has not
// ended. UDP flows end with their frontend, so they never need the address.
func isLive(c *dataplane.Connection) bool {
	return c.Frontend.Proto != balancer.UDP && !slices.Contains([]string{"time-wait", "close", "closed", "syn-sent", "none"}, c.State)
}

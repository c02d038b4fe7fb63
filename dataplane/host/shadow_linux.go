package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer/lib/wake"
	"vipd/dataplane/internal/rtnl"
)

// unshadow removes the kernel's own routes to IPv6 addresses to which vipd has added a route. The
// kernel completes a new address asynchronously and then adds its own route, so unshadow waits for
// the address's event. If the event is late, as on a busy host, the route remains until the event
// arrives (see Intact).
func (rs *routes) unshadow(ctx context.Context, fresh []*address, catchUp func()) error {
	shadowed := func(r *address) bool { return r.shadowed }
	if len(rs.leftover(shadowed)) == 0 {
		return nil
	}
	const patience, pause = time.Second, 2 * time.Millisecond
	arriving := func(r *address) bool { return r.arriving }
	for deadline := time.Now().Add(patience); !rs.stale && slices.ContainsFunc(fresh, arriving) && time.Now().Before(deadline) && wake.Sleep(ctx, pause); {
		catchUp()
	}
	return rs.dropShadows(rs.leftover(shadowed))
}

// dropArrived removes the kernel's routes to addresses whose event arrived after unshadow. A
// removed device has no routes.
func (rs *routes) dropArrived() error {
	come := rs.leftover(func(r *address) bool { return r.shadowed && !r.arriving })
	if len(come) == 0 {
		return nil
	}
	if d, err := rs.holder(); err != nil || d.index == 0 {
		for _, r := range come {
			r.shadowed = false
		}
		return nil //nolint:nilerr // the status shows this, and addresses that return to the device are shadowed again
	}
	return rs.dropShadows(come)
}

// dropShadows removes the kernel's routes to shadowed addresses. It skips addresses whose event has
// not arrived.
func (rs *routes) dropShadows(shadowed []*address) error {
	if len(shadowed) == 0 {
		return nil
	}
	// The kernel sends the event before it adds the route. It holds one lock during both, and this
	// request waits for that lock.
	if _, err := rs.nl.LinkByIndex(rs.device.index); err != nil {
		return fmt.Errorf("reading device %s: %w", rs.device.name, err)
	}
	var drop []rtnl.Message
	for _, r := range shadowed {
		drop = append(drop, rtnl.LocalRoute(unix.RTM_DELROUTE, 0, r.addr, netip.Addr{}, rs.device.index, unix.RTPROT_KERNEL))
	}
	var all []error
	for i, err := range rs.batches.Do(drop) {
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			all = append(all, fmt.Errorf("removing the kernel's route to %s: %w", shadowed[i].addr, err))
		}
	}
	for _, r := range shadowed {
		r.shadowed = r.arriving
	}
	return errors.Join(all...)
}

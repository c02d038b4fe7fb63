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

// unshadow removes the kernel's own routes to IPv6 addresses that have ours. The kernel ends the adding of an address
// in its own work queue, where it puts its route back if that is gone: so this waits for the event from there. If the event of a
// fresh address is late, as on a busy host, its route is left for when it comes, see Intact.
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

// dropArrived removes the kernel's routes of those addresses that have come after unshadow. Where their device is gone, so are they.
func (rs *routes) dropArrived() error {
	come := rs.leftover(func(r *address) bool { return r.shadowed && !r.arriving })
	if len(come) == 0 {
		return nil
	}
	if d, err := rs.holder(); err != nil || d.index == 0 {
		for _, r := range come {
			r.shadowed = false
		}
		return nil //nolint:nilerr // status has it, and what comes to the device is shadowed anew
	}
	return rs.dropShadows(come)
}

// dropShadows removes the kernel's routes to shadowed addresses. Those that are still arriving remain shadowed.
func (rs *routes) dropShadows(shadowed []*address) error {
	if len(shadowed) == 0 {
		return nil
	}
	// The event comes first, then the route, both under the lock that this request has to take.
	if _, err := rs.nl.LinkByIndex(rs.device.index); err != nil {
		return fmt.Errorf("looking at device %s: %w", rs.device.name, err)
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

package host

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// pollInterval is the interval between comparisons of addresses if the kernel sends no events.
const pollInterval = 5 * time.Second

// poll calls changed whenever the result of list changes, until ctx is done. If list fails, its
// result counts as unchanged.
func poll(ctx context.Context, interval time.Duration, list func() ([]netip.Addr, error), changed func()) error {
	before, _ := list()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		after, err := list()
		if err == nil && !slices.Equal(before, after) {
			before = after
			changed()
		}
	}
}

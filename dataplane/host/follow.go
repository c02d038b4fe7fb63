package host

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// pollInterval is the interval at which addresses are compared if the kernel sends no events.
const pollInterval = 5 * time.Second

// poll calls changed after each change in the result of list, until ctx ends. A result with an
// error counts as unchanged.
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

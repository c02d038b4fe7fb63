package host

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// pollInterval is how often addresses are compared where the kernel does not say when they change.
const pollInterval = 5 * time.Second

// poll calls changed after each change of what list returns, until ctx ends. A list that fails counts as unchanged.
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

package transitions

import (
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/model"
)

// TestDrainBegins describes the start of drains with different deadlines. The text must contain the
// maximum duration, which must never be negative. If vipd was stopped, a deadline may be in the
// past.
func TestDrainBegins(t *testing.T) {
	now := time.Unix(1e9, 0)
	for until, want := range map[time.Time]string{
		{}: "drains", now.Add(30 * time.Second): "drains, for 30s at most", now: "drains; its deadline has passed", now.Add(-5 * time.Minute): "drains; its deadline has passed",
	} {
		if got, _ := drainBegins(balancer.Target{}, balancer.Backend{State: balancer.Removed, Until: until}, &model.State{}, now); got != want {
			t.Errorf("until %v: text = %q, want %q", until, got, want)
		}
	}
}

package transitions

import (
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/vipd/daemon/internal/model"
)

// TestDrainBegins describes drains with different ends. The text must have the maximum duration,
// which must never be negative. A drain may outlive its end if vipd was stopped.
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

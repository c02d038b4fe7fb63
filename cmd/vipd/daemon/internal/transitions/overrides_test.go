package transitions

import (
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// TestExpired changes overrides. Only settings whose time is up count as expired; removed and
// renewed settings do not.
func TestExpired(t *testing.T) {
	yes, no, two, five, end := true, false, 2, 5, time.Unix(3600, 0)
	weight := &balancer.Override{Weight: &five, Expires: end}
	both := &balancer.Override{Weight: &five, WeightExpires: end, Draining: &yes}
	drain := &balancer.Override{Weight: &five, DrainingExpires: end, Draining: &yes}
	undrain := &balancer.Override{Weight: &five, DrainingExpires: end, Draining: &no}
	bare := &balancer.Override{WeightExpires: end, Draining: &yes}
	for _, c := range []struct {
		was, is *balancer.Override
		want    string
	}{
		{weight, nil, "override"},
		{both, both.Unexpired(end), "weight 5"},
		{drain, drain.Unexpired(end), "drain"},
		{undrain, undrain.Unexpired(end), "undrain"},
		{bare, bare.Unexpired(end), ""},
		{both, nil, ""},
		{both, &balancer.Override{Weight: &two}, ""},
		{nil, weight, ""},
	} {
		change := snap.Change[*balancer.Override]{Old: c.was, New: c.is, HadOld: c.was != nil, HasNew: c.is != nil}
		if got, _ := expired(change, end); got != c.want {
			t.Errorf("from %+v to %+v: expired = %q, want %q", c.was, c.is, got, c.want)
		}
	}
}

// TestSignedInEvents receives two overrides at once, as happens after an etcd outage. The event of
// each must have its own author and reason.
func TestSignedInEvents(t *testing.T) {
	yes, five, now := true, 5, time.Unix(3600, 0)
	got := OverrideEvents(balancer.Target{Service: "web"}, nil,
		&balancer.Override{Weight: &five, WeightBy: "ana", WeightReason: "slow", Draining: &yes, By: "ben", Reason: "kernel"}, now)
	if len(got) != 2 || got[0].Text != "weight set to 5 by ana" || got[0].Cause != "slow" || got[1].Text != "drained by ben" || got[1].Cause != "kernel" {
		t.Errorf("events = %+v, want a weight by ana and a drain by ben", got)
	}
}

// TestEndsInEvents changes parts of overrides. Each event must contain the end time of the part
// that changed.
func TestEndsInEvents(t *testing.T) {
	yes, five, now := true, 5, time.Unix(3600, 0)
	minute, hour := now.Add(time.Minute), now.Add(time.Hour)
	both := balancer.Override{Weight: &five, WeightExpires: minute, Draining: &yes, By: "ana"}
	longer := both
	longer.WeightExpires = hour
	for _, c := range []struct {
		was, is *balancer.Override
		want    string
	}{
		{nil, &balancer.Override{Weight: &five, Expires: hour, By: "ana"}, "weight set to 5 for 1h0m0s by ana"},
		{&balancer.Override{Weight: &five, Expires: minute}, &both, "drained by ana"},
		{&both, &balancer.Override{Weight: &five, Expires: minute, By: "ana"}, "undrained by ana"},
		{&both, &longer, "override renewed for 1h0m0s by ana"},
	} {
		if got := OverrideEvents(balancer.Target{Service: "web"}, c.was, c.is, now); len(got) != 1 || got[0].Text != c.want {
			t.Errorf("from %+v to %+v: events = %+v, want %q", c.was, c.is, got, c.want)
		}
	}
}

package balancer

import (
	"testing"
	"time"
)

// TestBackendExpired calls Expired shortly before, at and after the deadline in Until. A backend
// must expire exactly at its deadline. A backend without a deadline must never expire.
func TestBackendExpired(t *testing.T) {
	until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		until time.Time
		now   time.Time
		want  bool
	}{
		{time.Time{}, until, false},
		{until, until.Add(-1), false},
		{until, until, true},
		{until, until.Add(time.Hour), true},
	} {
		if got := (Backend{Until: c.until}).Expired(c.now); got != c.want {
			t.Errorf("until %v, at %v: Expired() = %v, want %v", c.until, c.now, got, c.want)
		}
	}
}

package counters

import (
	"math/rand/v2"
	"testing"
	"time"

	"vipd/test/wait"
)

// key identifies an endpoint of a service by their numbers. Endpoint 0 stands for the whole
// service.
type key struct{ service, endpoint int }

func newSums() *Sums[key, int] {
	return New(func(k key) key { return key{service: k.service} }, func(a, b int) int { return a + b })
}

// TestForgets removes endpoints and lets time pass. The removed endpoints' counts must be added to
// their service, and must be dropped together with the service.
func TestForgets(t *testing.T) {
	now := time.Unix(0, 0)
	s := newSums()
	s.Add(key{1, 1}, 10, now)
	with := func(after time.Duration, live map[key]int, want map[key]int) {
		t.Helper()
		now = now.Add(after)
		got := s.With(live, now)
		for k, n := range want {
			if got[k] != n {
				t.Errorf("count of %v = %d, want %d", k, got[k], n)
			}
		}
		if len(got) != len(want) {
			t.Errorf("counts = %v, want %v", got, want)
		}
	}
	with(Retention, map[key]int{{1, 2}: 1}, map[key]int{{1, 1}: 10, {1, 2}: 1})
	with(time.Second, map[key]int{{1, 2}: 2}, map[key]int{{1, 0}: 10, {1, 2}: 2})
	with(Retention, map[key]int{}, map[key]int{{1, 0}: 10})
	with(time.Second, map[key]int{}, map[key]int{})
}

// TestNothingGoesBack adds endpoints, counts their connections, and removes them, all at random. A
// total must not decrease until an hour after its service or endpoint is removed. Memory use must
// stay small.
func TestNothingGoesBack(t *testing.T) {
	for seed := range uint64(wait.Soak(40, 200)) {
		r := rand.New(rand.NewPCG(seed, 2))
		s, now := newSums(), time.Unix(0, 0)
		live, seen, was := map[key]int{}, map[key]time.Time{}, map[key]int{}
		for range 300 {
			now = now.Add(time.Duration(r.Int64N(int64(Retention / 3))))
			k := key{1 + r.IntN(3), 1 + r.IntN(20)}
			if n, ok := live[k]; ok && r.IntN(2) == 0 {
				s.Add(k, n, now)
				delete(live, k)
				seen[k] = now
			} else {
				live[k] += r.IntN(5)
			}
			all := map[key]int{}
			for k, n := range live {
				all[k] = n
				seen[k], seen[key{service: k.service}] = now, now
			}
			all = s.With(all, now)
			services := map[key]int{}
			for k, n := range all {
				services[key{service: k.service}] += n
				if now.Sub(seen[k]) > Retention && k.endpoint != 0 {
					t.Fatalf("seed %d: %v still has a count %v after its removal, want it dropped after Retention", seed, k, now.Sub(seen[k]))
				}
				if k.endpoint != 0 && n < was[k] {
					t.Fatalf("seed %d: count of %v = %d before and %d after, want no decrease", seed, k, was[k], n)
				}
			}
			for k, n := range was {
				if k.endpoint == 0 && services[k] < n && now.Sub(seen[k]) <= Retention {
					t.Fatalf("seed %d: count of service %v = %d before and %d after, want no decrease", seed, k, n, services[k])
				}
			}
			was = services
			for k, n := range all {
				if k.endpoint != 0 {
					was[k] = n
				}
			}
		}
	}
}

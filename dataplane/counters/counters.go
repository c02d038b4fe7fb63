package counters

import "time"

// Retention is how long Sums keeps a removed object's count under its own key.
const Retention = time.Hour

// Sums holds the counts of removed objects. It is not safe for concurrent use.
type Sums[K comparable, V any] struct {
	sums map[K]sum[V]
	// whole maps an object's key to the key of the whole to which the object belongs, such as a
	// backend to its port. whole(whole(k)) equals whole(k).
	whole func(K) K
	add   func(V, V) V
}

// sum is a count, and the time when an object with its key last existed.
type sum[V any] struct {
	count V
	seen  time.Time
}

// New returns Sums without counts. When Sums drops a key, it adds the key's count to the key that
// whole returns.
func New[K comparable, V any](whole func(K) K, add func(V, V) V) *Sums[K, V] {
	return &Sums[K, V]{map[K]sum[V]{}, whole, add}
}

// Add adds a removed object's count to the sum of its key.
func (s *Sums[K, V]) Add(k K, count V, now time.Time) {
	s.sums[k] = sum[V]{s.add(s.sums[k].count, count), now}
}

// With adds the counts of removed objects to the counts of live objects, and returns the result. A
// key that has had no objects for longer than Retention is merged into its whole. The whole is
// dropped when this is true of all its keys.
func (s *Sums[K, V]) With(live map[K]V, now time.Time) map[K]V {
	if len(s.sums) == 0 {
		return live
	}
	last := make(map[K]time.Time) // the time when an object of each whole last existed
	for k := range live {
		last[s.whole(k)] = now
		if kept, ok := s.sums[k]; ok {
			s.sums[k] = sum[V]{kept.count, now}
		}
	}
	for k, kept := range s.sums {
		if whole := s.whole(k); kept.seen.After(last[whole]) {
			last[whole] = kept.seen
		}
	}
	for k, kept := range s.sums {
		whole := s.whole(k)
		if now.Sub(last[whole]) > Retention {
			delete(s.sums, k)
		} else if k != whole && now.Sub(kept.seen) > Retention {
			delete(s.sums, k)
			s.Add(whole, kept.count, last[whole])
		}
	}
	for k, kept := range s.sums {
		live[k] = s.add(live[k], kept.count)
	}
	return live
}

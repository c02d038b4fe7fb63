package counters

import "time"

// Memory is how long what is gone is remembered by itself.
const Memory = time.Hour

// Sums are the counts of what is gone. It is not safe for use by several goroutines.
type Sums[K comparable, V any] struct {
	sums map[K]sum[V]
	// whole is what a key is a part of; whole(whole(k)) is whole(k).
	whole func(K) K
	add   func(V, V) V
}

// sum is a count, and when its key was last there.
type sum[V any] struct {
	count V
	seen  time.Time
}

// New returns sums of nothing. A key's count goes to the key that whole names once it is forgotten; add adds two counts.
func New[K comparable, V any](whole func(K) K, add func(V, V) V) *Sums[K, V] {
	return &Sums[K, V]{map[K]sum[V]{}, whole, add}
}

// Add counts more for a key, of which an object is gone.
func (s *Sums[K, V]) Add(k K, count V, now time.Time) {
	s.sums[k] = sum[V]{s.add(s.sums[k].count, count), now}
}

// With adds what is kept to live, the counts of what is there, and returns it. What was not there for longer than Memory
// becomes a part of its whole, and is lost with that once nothing of the whole was there for as long.
func (s *Sums[K, V]) With(live map[K]V, now time.Time) map[K]V {
	if len(s.sums) == 0 {
		return live
	}
	last := make(map[K]time.Time) // when something of a whole was there
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
		if now.Sub(last[whole]) > Memory {
			delete(s.sums, k)
		} else if k != whole && now.Sub(kept.seen) > Memory {
			delete(s.sums, k)
			s.Add(whole, kept.count, last[whole])
		}
	}
	for k, kept := range s.sums {
		live[k] = s.add(live[k], kept.count)
	}
	return live
}

package snap

import "iter"

// Change is a difference between two versions: the old and the new value of a key. At least one of
// HadOld and HasNew is true. If both are true, the values differ.
type Change[V comparable] struct {
	Old, New       V
	HadOld, HasNew bool
}

// Diff yields, in key order, the keys whose entries differ between before and after. If after is
// derived from before, the cost is proportional to the number of differences times the depth of the
// tree. It never exceeds the sum of both sizes.
func Diff[K Ordered[K], V comparable](before, after Map[K, V]) iter.Seq2[K, Change[V]] {
	return func(yield func(K, Change[V]) bool) { diff(before.root, after.root, yield) }
}

func diff[K Ordered[K], V comparable](a, b *node[K, V], yield func(K, Change[V]) bool) bool {
	switch {
	case a == b:
		return true
	case a == nil:
		return b.walk(func(k K, v V) bool { return yield(k, Change[V]{New: v, HasNew: true}) })
	case b == nil:
		return a.walk(func(k K, v V) bool { return yield(k, Change[V]{Old: v, HadOld: true}) })
	}
	// The keys alone determine a tree's shape, so one tree's root is at or near the other tree's
	// root. Split the tree with the lower root around the key of the higher root, and compare the
	// halves.
	if !a.above(b.key, b.priority) {
		before, at, after := a.split(b.key)
		return diff(before, b.left, yield) && yieldPair(b.key, at, b, yield) && diff(after, b.right, yield)
	}
	before, at, after := b.split(a.key)
	return diff(a.left, before, yield) && yieldPair(a.key, a, at, yield) && diff(a.right, after, yield)
}

func yieldPair[K Ordered[K], V comparable](key K, a, b *node[K, V], yield func(K, Change[V]) bool) bool {
	var c Change[V]
	if a != nil {
		c.Old, c.HadOld = a.value, true
	}
	if b != nil {
		c.New, c.HasNew = b.value, true
	}
	if c.HadOld && c.HasNew && c.Old == c.New {
		return true
	}
	return yield(key, c)
}

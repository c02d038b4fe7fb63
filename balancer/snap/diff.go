package snap

import "iter"

// Change is one difference between two versions: what a key had and what it has. At least one of HadOld and HasNew is
// true; where both are, the values differ.
type Change[V comparable] struct {
	Old, New       V
	HadOld, HasNew bool
}

// Diff yields, in key order, the keys whose entries differ between before and after. Its cost is proportional to the
// number of differences (times the depth of the tree) where after was made from before by changes, and never more
// than proportional to both sizes.
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
	// Both trees have the shape that their keys dictate, so the root of one is found at or near the root of the other:
	// split the one with the lower root around the higher root's key, and compare the halves.
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

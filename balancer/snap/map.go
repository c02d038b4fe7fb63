package snap

import (
	"hash/maphash"
	"iter"
)

// Ordered is the constraint of keys, which are comparable with ==. Compare returns a negative
// number, zero or a positive number if the receiver sorts before, with or after other. Compare
// returns zero if and only if the keys are ==.
type Ordered[K any] interface {
	comparable
	Compare(other K) int
}

// Map is a persistent map from K to V in key order.
//
// It is a treap whose priorities are hashes of the keys, so the set of keys alone determines the
// shape of the tree, whatever the order of changes was. This makes Diff cheap: equal parts of two
// versions are the same nodes at the same places, and one pointer comparison skips them.
type Map[K Ordered[K], V comparable] struct {
	root *node[K, V]
}

type node[K Ordered[K], V comparable] struct {
	key         K
	value       V
	priority    uint64
	size        int
	left, right *node[K, V]
}

// seed makes the priorities unpredictable to anyone who chooses keys. All versions of all maps use
// the same seed, so that they can be compared.
var seed = maphash.MakeSeed()

// Len returns the number of entries.
func (m Map[K, V]) Len() int { return m.root.len() }

// Get returns the value of key, and reports whether key has an entry.
func (m Map[K, V]) Get(key K) (V, bool) {
	for n := m.root; n != nil; {
		switch c := key.Compare(n.key); {
		case c == 0:
			return n.value, true
		case c < 0:
			n = n.left
		default:
			n = n.right
		}
	}
	var none V
	return none, false
}

// At returns the value of key, or the zero value.
func (m Map[K, V]) At(key K) V {
	v, _ := m.Get(key)
	return v
}

// Has reports whether key has an entry.
func (m Map[K, V]) Has(key K) bool {
	_, ok := m.Get(key)
	return ok
}

// Set returns a map in which key has the given value. If m already has this entry, Set returns m.
func (m Map[K, V]) Set(key K, value V) Map[K, V] {
	if old, ok := m.Get(key); ok && old == value {
		return m
	}
	return Map[K, V]{m.root.set(key, value, maphash.Comparable(seed, key))}
}

// Delete returns a map without key. If m has no such key, Delete returns m.
func (m Map[K, V]) Delete(key K) Map[K, V] {
	if !m.Has(key) {
		return m
	}
	return Map[K, V]{m.root.delete(key)}
}

// All yields all entries in key order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.walk(yield) }
}

// While yields the entries from start on, in key order, until in returns false for a key.
func (m Map[K, V]) While(start K, in func(K) bool) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		m.root.walkFrom(start, func(k K, v V) bool { return in(k) && yield(k, v) })
	}
}

// Keys yields the keys in order.
func (m Map[K, V]) Keys() iter.Seq[K] {
	return func(yield func(K) bool) {
		m.root.walk(func(k K, _ V) bool { return yield(k) })
	}
}

func (n *node[K, V]) len() int {
	if n == nil {
		return 0
	}
	return n.size
}

// with returns a copy of n with the given children, or n itself if its children are the same.
func (n *node[K, V]) with(left, right *node[K, V]) *node[K, V] {
	if left == n.left && right == n.right {
		return n
	}
	c := *n
	c.left, c.right = left, right
	c.size = left.len() + right.len() + 1
	return &c
}

// above reports whether n belongs above a node with this key and priority. Keys break ties between
// priorities, so the shape is unique.
func (n *node[K, V]) above(key K, priority uint64) bool {
	if n.priority != priority {
		return n.priority > priority
	}
	return n.key.Compare(key) < 0
}

func (n *node[K, V]) set(key K, value V, priority uint64) *node[K, V] {
	if n == nil {
		return &node[K, V]{key: key, value: value, priority: priority, size: 1}
	}
	c := key.Compare(n.key)
	if c == 0 {
		fresh := *n
		fresh.value = value
		return &fresh
	}
	if !n.above(key, priority) {
		left, _, right := n.split(key)
		return &node[K, V]{key: key, value: value, priority: priority, size: n.size + 1, left: left, right: right}
	}
	if c < 0 {
		return n.with(n.left.set(key, value, priority), n.right)
	}
	return n.with(n.left, n.right.set(key, value, priority))
}

func (n *node[K, V]) delete(key K) *node[K, V] {
	switch c := key.Compare(n.key); {
	case c == 0:
		return join(n.left, n.right)
	case c < 0:
		return n.with(n.left.delete(key), n.right)
	default:
		return n.with(n.left, n.right.delete(key))
	}
}

// split returns the tree of keys before key, the node of key or nil, and the tree of keys after it.
func (n *node[K, V]) split(key K) (before, at, after *node[K, V]) {
	if n == nil {
		return nil, nil, nil
	}
	switch c := key.Compare(n.key); {
	case c == 0:
		return n.left, n, n.right
	case c < 0:
		before, at, after = n.left.split(key)
		return before, at, n.with(after, n.right)
	default:
		before, at, after = n.right.split(key)
		return n.with(n.left, before), at, after
	}
}

// join merges two trees. Every key of left sorts before every key of right.
func join[K Ordered[K], V comparable](left, right *node[K, V]) *node[K, V] {
	switch {
	case left == nil:
		return right
	case right == nil:
		return left
	case left.above(right.key, right.priority):
		return left.with(left.left, join(left.right, right))
	default:
		return right.with(join(left, right.left), right.right)
	}
}

func (n *node[K, V]) walk(yield func(K, V) bool) bool {
	return n == nil || n.left.walk(yield) && yield(n.key, n.value) && n.right.walk(yield)
}

func (n *node[K, V]) walkFrom(start K, yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	if n.key.Compare(start) < 0 {
		return n.right.walkFrom(start, yield)
	}
	return n.left.walkFrom(start, yield) && yield(n.key, n.value) && n.right.walk(yield)
}

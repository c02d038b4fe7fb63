package store

import (
	"slices"

	"vipd/balancer/snap"
)

// Same reports whether two snapshots say the same, whatever their revisions: a source has nothing new to publish then.
// Its cost is that of comparing what differs.
func (s Snapshot) Same(other Snapshot) bool {
	return s.Connected == other.Connected && message(s.Err) == message(other.Err) &&
		slices.Equal(s.Problems, other.Problems) && same(s.Services, other.Services) &&
		same(s.Endpoints, other.Endpoints) && same(s.Overrides, other.Overrides)
}

func same[K snap.Ordered[K], V comparable](a, b snap.Map[K, V]) bool {
	for range snap.Diff(a, b) {
		return false
	}
	return true
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

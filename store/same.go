package store

import (
	"reflect"
	"slices"

	"vipd/balancer/snap"
)

// Same reports whether two snapshots have the same content. It ignores Revision and Began. Its cost
// depends on the number of differences.
func (s Snapshot) Same(other Snapshot) bool {
	return s.Connected == other.Connected && s.Kept == other.Kept && s.Settings == other.Settings && message(s.Err) == message(other.Err) &&
		slices.Equal(s.Problems, other.Problems) && slices.Equal(s.Pending, other.Pending) && slices.Equal(s.Retained, other.Retained) && slices.Equal(s.Vanished, other.Vanished) && same(s.Services, other.Services) &&
		same(s.Endpoints, other.Endpoints) && same(s.Overrides, other.Overrides) && same(s.VIPs, other.VIPs) && same(s.Pools, other.Pools) && same(s.Nodes, other.Nodes)
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

// Keeping returns s, but with old's pointer for each value that is equal in both, because
// successive snapshots must share equal values. Its cost depends on the number of differences.
func (s Snapshot) Keeping(old Snapshot) Snapshot {
	s.Services = keeping(s.Services, old.Services)
	s.Endpoints = keeping(s.Endpoints, old.Endpoints)
	s.Overrides = keeping(s.Overrides, old.Overrides)
	s.VIPs = keeping(s.VIPs, old.VIPs)
	s.Pools = keeping(s.Pools, old.Pools)
	s.Nodes = keeping(s.Nodes, old.Nodes)
	return s
}

func keeping[K snap.Ordered[K], V any](m, old snap.Map[K, *V]) snap.Map[K, *V] {
	out := m
	for key, c := range snap.Diff(old, m) {
		if c.HadOld && c.HasNew && reflect.DeepEqual(c.Old, c.New) {
			out = out.Set(key, c.Old)
		}
	}
	return out
}

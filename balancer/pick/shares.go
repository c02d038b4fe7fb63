package pick

import (
	"slices"

	"vipd/balancer"
)

// Shares returns the fraction of new connections that each backend gets with scheduler s. If the
// choice depends on f or on the current load, a single backend gets all connections. Otherwise all
// backends have equal fractions (rr), or fractions in proportion to their weights. All fractions
// are zero if no backend can be chosen. The arguments are the same as for New and Pick.
func Shares(s balancer.Scheduler, backends []balancer.Backend, load func(i int) int64, f Flow, skip func(i int) bool) []float64 {
	parts := make([]float64, len(backends))
	switch s {
	case balancer.LeastConn, balancer.WeightedLeastConn, balancer.ShortestDelay, balancer.NeverQueue,
		balancer.SourceHash, balancer.DestinationHash, balancer.Maglev:
		if at := New(s, backends, load).Pick(f, skip); at >= 0 {
			parts[at] = 1
		}
		return parts
	}
	members := slices.DeleteFunc(candidatesOf(backends), func(m candidate) bool { return skip(m.index) })
	var sum int64
	for i := range members {
		if s == balancer.RoundRobin {
			members[i].weight = 1
		}
		sum += members[i].weight
	}
	for _, m := range members {
		parts[m.index] = float64(m.weight) / float64(sum)
	}
	return parts
}

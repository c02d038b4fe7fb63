package nftables

import (
	"log/slog"

	"vipd/balancer"
	"vipd/dataplane"
)

// Options are the options of a [Dataplane].
type Options struct {
	// Log receives warnings. If nil, nothing is logged.
	Log *slog.Logger
	// Mark is the mask of bits that rules set in the marks of connections to frontends. The guard
	// recognizes these connections by it (guard.MarkBits).
	Mark uint32
}

// Capabilities returns the features that nftables mode supports.
func Capabilities() balancer.Capabilities {
	return balancer.Capabilities{
		Mode:      "nftables",
		Protocols: []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP},
		Nearest: map[balancer.Scheduler]balancer.Scheduler{
			balancer.LeastConn: balancer.Random, balancer.WeightedLeastConn: balancer.Random,
			balancer.ShortestDelay: balancer.Random, balancer.NeverQueue: balancer.Random,
		},
		Forwards:       []balancer.Forward{balancer.NATForward, balancer.DRForward},
		Untranslated:   []balancer.Forward{balancer.DRForward},
		Stateless:      true,
		MaxPorts:       balancer.AllPorts.Len(),
		RangeAffinity:  true,
		MaxMovedPorts:  maxMovedPorts,
		KeepsSource:    true,
		DropsClients:   true,
		Slots:          maxSlots,
		SlotsEach:      slotsEach,
		AffinityScopes: []balancer.AffinityScope{balancer.ServiceScope, balancer.VIPScope},
		AffinityPrefix: true,
	}
}

// maxMovedPorts is the maximum number of ports in a moved range, which endpoints serve at other
// ports. Each port has an element in the map range-targets, and all elements for a frontend are
// written in one transaction (see maxBatchElements).
const maxMovedPorts = 10_000

// Needs returns the requirements of nftables mode.
func Needs() dataplane.Needs {
	return dataplane.Needs{Forward: true, Marked: true, TranslatesAll: true, Resets: true}
}

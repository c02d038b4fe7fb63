package nftables

import (
	"log/slog"

	"vipd/balancer"
	"vipd/dataplane"
)

// Options are what a Dataplane is made of.
type Options struct {
	// Log gets warnings; nil means that nothing is logged.
	Log *slog.Logger
	// Mark are the bits that are set in the marks of connections to frontends, by which the guard knows them (host.Mark).
	Mark uint32
}

// Capabilities says what nftables mode can honour.
func Capabilities() balancer.Capabilities {
	return balancer.Capabilities{
		Mode:      "nftables",
		Protocols: []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP},
		Nearest: map[balancer.Scheduler]balancer.Scheduler{
			balancer.LeastConn: balancer.Random, balancer.WeightedLeastConn: balancer.Random,
			balancer.ShortestDelay: balancer.Random, balancer.NeverQueue: balancer.Random,
		},
		Forwards:     []balancer.Forward{balancer.NATForward},
		KeepsSource:  true,
		DropsClients: true,
	}
}

// Needs are what nftables mode needs of the host.
func Needs() dataplane.Needs {
	return dataplane.Needs{Forward: true, Marked: true, TranslatesAll: true, Resets: true}
}

package iptables

import (
	"log/slog"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
)

// Options are what a Dataplane is made of.
type Options struct {
	// Log gets warnings; nil means nothing is logged.
	Log *slog.Logger
	// Variant is the variant of iptables; auto follows the host.
	Variant Variant
	// Mark is the rule, without "-A" and a chain's name, that marks the connections to frontends, for those that have to
	// know them later on their way (host.Mark); "" means they are not marked.
	Mark string
}

// Variant is a variant of iptables: auto (what the host's other rules use), nft or legacy.
type Variant = xtables.Variant

// Capabilities says what iptables mode can honour where the kernel has all that it may use, for those that have no
// Dataplane.
func Capabilities() balancer.Capabilities {
	return balancer.Capabilities{
		Mode:      "iptables",
		Protocols: protocols(),
		Nearest: map[balancer.Scheduler]balancer.Scheduler{
			balancer.LeastConn: balancer.Random, balancer.WeightedLeastConn: balancer.Random,
			balancer.ShortestDelay: balancer.Random, balancer.NeverQueue: balancer.Random,
		},
		Forwards:     []balancer.Forward{balancer.NATForward},
		KeepsSource:  true,
		DropsClients: true,
	}
}

// Needs are what iptables mode needs of the host.
func Needs() dataplane.Needs {
	return dataplane.Needs{Forward: true, Marked: true, TranslatesAll: true, Resets: true}
}

package iptables

import (
	"log/slog"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
)

// Options are the options of a [Dataplane].
type Options struct {
	// Log receives warnings. If nil, nothing is logged.
	Log *slog.Logger
	// Variant is the variant of iptables. Auto selects the host's variant.
	Variant Variant
	// Mark is the rule that marks connections to frontends, without "-A" and a chain name
	// (guard.Mark). If it is "", they are not marked.
	Mark string
}

// Variant is an iptables variant: nft, legacy, or auto, which selects the variant of the host's
// other rules.
type Variant = xtables.Variant

// Capabilities returns the features that iptables mode supports if the kernel has all optional
// modules.
func Capabilities() balancer.Capabilities {
	return balancer.Capabilities{
		Mode:      "iptables",
		Protocols: protocols(),
		Nearest: map[balancer.Scheduler]balancer.Scheduler{
			balancer.LeastConn: balancer.Random, balancer.WeightedLeastConn: balancer.Random,
			balancer.ShortestDelay: balancer.Random, balancer.NeverQueue: balancer.Random,
		},
		MaxPorts:      balancer.AllPorts.Len(),
		MaxMovedPorts: maxMovedPorts,
		MaxMovedRules: maxMovedRules,
		Forwards:      []balancer.Forward{balancer.NATForward},
		KeepsSource:   true,
		DropsClients:  true,
	}
}

// maxMovedPorts is the maximum number of ports of a range that endpoints serve at other ports. Each
// endpoint has a rule for each port, and the first packet of a connection passes half of them. The
// first write of a range writes all its rules, so maxMovedRules limits their number: 3,000 rules
// are written in 0.2 s.
const maxMovedPorts, maxMovedRules = 1000, 20_000

// Needs returns the requirements of iptables mode.
func Needs() dataplane.Needs {
	return dataplane.Needs{Forward: true, Marked: true, TranslatesAll: true, Resets: true}
}

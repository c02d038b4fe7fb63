package ipvs

import (
	"log/slog"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// Options are what a Dataplane is made of.
type Options struct {
	// Log gets warnings; nil means nothing is logged.
	Log *slog.Logger
	// RunDir is the folder of the ledger of virtual servers; it is made where it is missing.
	RunDir string
	// TCPTimeout, TCPFinTimeout and UDPTimeout are how long the kernel remembers connections without packets: open ones,
	// ones that one end has closed, and flows of UDP. Whole seconds; 0 leaves what the kernel has.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
}

// Capabilities says what IPVS mode can honour where the kernel has all schedulers, for those that have no Dataplane.
func Capabilities() balancer.Capabilities {
	return balancer.Capabilities{
		Mode:           "ipvs",
		Protocols:      []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP},
		Nearest:        map[balancer.Scheduler]balancer.Scheduler{balancer.Random: balancer.WeightedRoundRobin},
		Forwards:       []balancer.Forward{balancer.NATForward, balancer.DRForward, balancer.TunnelForward},
		Untranslated:   []balancer.Forward{balancer.DRForward, balancer.TunnelForward},
		KeepsSource:    true,
		MaxConnections: true,
		// A template of persistence is followed without a look at thresholds (ip_vs_sched_persist).
		AffinityUnbounded: true,
		DropsClients:      true,
	}
}

// schedulers are those that the kernel may have, the likeliest first: what is missing is served by the first that is
// there.
func schedulers() []balancer.Scheduler {
	return []balancer.Scheduler{
		balancer.WeightedRoundRobin, balancer.RoundRobin, balancer.WeightedLeastConn, balancer.LeastConn,
		balancer.SourceHash, balancer.Maglev, balancer.DestinationHash, balancer.ShortestDelay, balancer.NeverQueue,
	}
}

// Needs are what ipvs mode needs of the host.
func Needs() dataplane.Needs { return dataplane.Needs{Forward: true, LocalIn: true} }

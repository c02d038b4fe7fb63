package ipvs

import (
	"log/slog"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// Options are the options of a [Dataplane].
type Options struct {
	// Log receives warnings. If nil, nothing is logged.
	Log *slog.Logger
	// RunDir is the directory that contains the ledger of virtual servers. It is created if
	// missing.
	RunDir string
	// The kernel forgets an open TCP connection after TCPTimeout without packets, a closing one
	// after TCPFinTimeout, and a UDP flow after UDPTimeout. The timeouts are whole seconds. Zero
	// leaves the kernel's value unchanged.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
	// FollowConntrack raises the timeout of open TCP connections to conntrack's timeout, while the
	// host has no foreign virtual servers.
	FollowConntrack bool
}

// Capabilities returns the features that IPVS mode supports if the kernel has all schedulers.
func Capabilities() balancer.Capabilities {
	return balancer.Capabilities{
		Mode:           "ipvs",
		Protocols:      []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP},
		Nearest:        map[balancer.Scheduler]balancer.Scheduler{balancer.Random: balancer.WeightedRoundRobin},
		Forwards:       []balancer.Forward{balancer.NATForward, balancer.DRForward, balancer.TunnelForward},
		Untranslated:   []balancer.Forward{balancer.DRForward, balancer.TunnelForward},
		KeepsSource:    true,
		MaxConnections: true,
		// The kernel's ip_vs_sched_persist follows a persistence template without checking
		// thresholds.
		AffinityUnbounded: true,
		DropsClients:      true,
		AffinityPrefix:    true,
		MaxPorts:          balancer.AllPorts.Len(),
		RangeAffinity:     true,
	}
}

// schedulers returns the schedulers that the kernel may have, the most common first. A missing
// scheduler is replaced with the first available one.
func schedulers() []balancer.Scheduler {
	return []balancer.Scheduler{
		balancer.WeightedRoundRobin, balancer.RoundRobin, balancer.WeightedLeastConn, balancer.LeastConn,
		balancer.SourceHash, balancer.Maglev, balancer.DestinationHash, balancer.ShortestDelay, balancer.NeverQueue,
	}
}

// Needs returns the requirements of IPVS mode.
func Needs() dataplane.Needs { return dataplane.Needs{Forward: true, LocalIn: true} }

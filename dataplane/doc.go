// Package dataplane applies compiled frontends. It defines the contract of a dataplane, and
// [Engine], the loop that calls it.
//
//	daemon --Set(Desired)--> Engine --Prepare, Finish--> Host       addresses, guard, sysctls: they outlive the mode
//	                            |----Apply([]Change)---> Dataplane  ipvs, nftables, iptables, userspace: frontends only
//
// Engine is level-triggered: Set only requests another comparison. A start, a change, a retry after
// a failure, drift and a full comparison use the same code: it compares the applied state with the
// desired state, and applies the difference.
//
// [Dataplane] is the interface of all modes. Abilities that only some modes have are separate
// interfaces ([Yields], [HandsOver], [ReportsDials], [WatchesUnanswered], [ListsConnections],
// [EndsConnections], [FollowsConnections], [Explains]), and [As] finds them.
//
// docs/contributing.md lists the steps for a new mode.
package dataplane

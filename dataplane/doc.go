// Package dataplane applies compiled frontends. It has the contract of a dataplane, and [Engine],
// the loop that drives it.
//
//	daemon --Set(Desired)--> Engine --Prepare, Finish--> Host       addresses, guard, sysctls: they outlive the mode
//	                            |----Apply([]Change)---> Dataplane  ipvs, nftables, iptables, userspace: frontends only
//
// Engine is level-triggered: Set only asks it to look again. A start, a change, a retry after a
// failure, drift and a full comparison take the same path: compare the applied state with the
// wanted state, and apply the difference.
//
// [Dataplane] is what every mode implements. What only some modes can do is an interface of its own
// ([Yields], [HandsOver], [ReportsDials], [WatchesUnanswered], [ListsConnections],
// [EndsConnections], [FollowsConnections], [Explains]), and [As] asks for it.
//
// docs/contributing.md lists the steps for a new mode.
package dataplane

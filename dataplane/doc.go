// Package dataplane carries compiled frontends out: it holds the contract of a dataplane, and Engine, the one loop
// that drives it.
//
//	daemon --Set(Desired)--> Engine --Prepare/Finish--> Host       addresses, guard, sysctls: they outlive the mode
//	                            |---Apply([]Change)---> Dataplane  userspace | iptables | ipvs: frontends, nothing else
//
// Engine is level-triggered: Set only says "look again". A start, a change, a retry after a failure, drift and a full
// comparison all take the same path: compare what was applied with what is wanted, and apply the difference.
//
// A new dataplane is a folder beside these with doc.go, render.go, apply.go, observe.go and NAME.go, a line in
// cmd/internal/modes, and a pass of the suite in dataplanetest.
package dataplane

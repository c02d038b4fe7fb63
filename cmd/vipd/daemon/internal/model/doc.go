// Package model owns everything that is compiled: what the store publishes, the configuration, what operators and the fleet say
// of this node, verdicts, drains, who holds contested addresses, and facts about the host.
//
//	store -> Publish ---+
//	API -> Update ------+-> one loop -> balancer.Compiler -> State -> dataplane.Engine
//	checks, ... -> Kick +                                      |
//	                                                           +-> history (Compiled), API, metrics (State)
//
// The loop compiles all inputs anew whenever something has kicked it, at a cost of what has changed. What must outlive a
// restart (drains, holders, local overrides) it keeps in state_dir.
//
// The package decides nothing of what is compiled (balancer does) and carries nothing out (dataplane.Engine does).
package model

// Package model owns all inputs of the compiler. These are the store's snapshot, the configuration,
// overrides from operators and from the fleet, verdicts, drains, holders of contested addresses,
// and facts about the host.
//
//	store -> Publish ---+
//	API -> Update ------+-> one loop -> balancer.Compiler -> State -> dataplane.Engine
//	checks, ... -> Kick +                                      |
//	                                                           +-> history (Compiled), API, metrics (State)
//
// The loop compiles after each kick. The cost depends on the changes. It saves drains, holders and
// local overrides in state_dir, because they must survive a restart.
//
// Package balancer decides what is compiled, and dataplane.Engine applies it.
package model

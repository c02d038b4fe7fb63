// Package health decides from the results of checks whether a target is up or down. It does no I/O and has no clock:
// times are arguments, so that a minute of checks is tested in no time. Package dataplane/probe does the checks.
//
//	services, endpoints -> Targets.Next -> what to check: (address, check) for each target
//	                       probe.Runner checks, and feeds each result to State.After
//	State.Verdict       -> balancer.Inputs.Health -> Compile
//
// A target begins unknown, and the first result decides. From then on it takes Rules.Fall failed results in a row to
// take it down and Rules.Rise passed ones to bring it up; a single contrary result starts the count again. While such a
// row is under way, checks come at the fast interval:
//
//	s := health.New(seed, rules, now)
//	s = s.After(rules, health.Result{Outcome: health.Passed, Began: now, Took: time.Millisecond, Text: "connected"})
//	s.Verdict // up
//	s.Due     // when to check again
//
// Ejections decides the same from what came of clients' connects, where a mode sees that: some failures in a row, and the
// endpoint gets no new connections for a while.
//
// What it does not do: run checks, choose backends (balancer.Compile does), or remember anything on disk (State.Save
// makes what is to be kept).
package health

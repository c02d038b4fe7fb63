// Package health decides from the results of checks whether a target is up or down. It does no I/O
// and has no clock. Times are arguments, so tests need no waiting. Package dataplane/probe runs the
// checks.
//
//	services, endpoints -> Targets.Next -> what to check: (address, check) for each target
//	                       probe.Runner checks, and feeds each result to State.After
//	State.Verdict       -> balancer.Inputs.Health -> Compile
//
// A target is unknown until its first result, which alone decides the first verdict. After that,
// Rules.Fall consecutive failed checks take the target down, and Rules.Rise consecutive passed
// checks bring it up. A single contrary result resets the count. During such a series, checks run
// at the fast interval:
//
//	s := health.New(seed, rules, now)
//	s = s.After(rules, health.Result{Outcome: health.Passed, Began: now, Took: time.Millisecond, Text: "connected"})
//	s.Verdict // up
//	s.Due     // when the next check is due
//
// In modes that observe the outcomes of clients' connection attempts, Ejections uses these
// outcomes. After several failures in a row, an endpoint gets no new connections for a while.
//
// The package runs no checks, chooses no backends (balancer.Compile does) and writes no files
// (State.Save returns what the next run needs).
package health

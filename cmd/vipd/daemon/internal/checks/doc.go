// Package checks runs the health checks of endpoints. Its verdicts are an input of what the model compiles:
//
//	services, endpoints -> targets -> runner -> verdicts -> compile
//	                                  report -> the model looks again, and the history says so
//
// Verdicts takes in what is compiled next, and returns what is known of it; where checks are shared with a fleet, it asks
// fleetchecks, which gives the runner its part. What was found outlives a restart, in health.json. Which checks this node can't
// run is kept apart (unable.go): their endpoints keep their verdicts, and look well.
//
// The checks themselves, and when each is due, are dataplane/probe's.
package checks

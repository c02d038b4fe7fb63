// Package checks runs the health checks of endpoints. Its verdicts are an input of the model:
//
//	services, endpoints -> targets -> runner -> verdicts -> compile
//	                                  report -> the model compiles again, and the history records it
//
// Verdicts receives new inputs, and returns the verdicts on their targets. If a fleet shares
// checks, package fleetchecks determines which of them this node runs. Results survive a restart in
// health.json. unable.go records the checks that this node can't run, because their endpoints keep
// their verdicts and may seem healthy.
//
// Package dataplane/probe runs and schedules the checks.
package checks

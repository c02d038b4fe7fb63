// Package checks runs the health checks of endpoints. Its verdicts are an input of the model:
//
//	services, endpoints -> targets -> runner -> verdicts -> compile
//	                                  report -> the model compiles again, and the history records it
//
// Verdicts receives the next inputs, and returns their verdicts. If a fleet shares checks,
// fleetchecks determines the runner's part. Results survive a restart in health.json. unable.go
// records the checks that this node can't run: their endpoints keep their verdicts, and look
// healthy.
//
// Package dataplane/probe makes the checks and schedules them.
package checks

// Package agents asks the agents of endpoints for their weight and state:
//
//	services, endpoints -> targets -> runner -> answers -> compile
//
// An agent answers a connection with a line in the syntax of HAProxy's agent-check. The answers are
// an input of the model, in addition to the verdicts of checks. Each host asks the agents itself.
// After three questions without an answer, an endpoint has its configured weight and state again,
// and the silent agent is reported as a problem. Answers are saved in state_dir, so they survive a
// restart.
//
// Package dataplane/probe makes the connections and schedules them.
package agents

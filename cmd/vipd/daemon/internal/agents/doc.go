// Package agents asks the agents of endpoints for their weight and state:
//
//	services, endpoints -> targets -> runner -> answers -> compile
//
// An agent answers a connection with a line in the words of HAProxy's agent-check. The answers are
// an input of the model, next to the verdicts of checks. Each host asks for itself. After three
// questions without an answer, an endpoint is as configured again, and the silent agent is a
// problem. Answers are saved in state_dir, so they outlive a restart.
//
// Package dataplane/probe makes the connections and schedules them.
package agents

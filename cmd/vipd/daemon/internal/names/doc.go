// Package names keeps the endpoints of services that are defined by name up to date.
//
//	model: Resolved(inputs) --- lookups of all services ---> resolve.Runner
//	model <--- Inputs.Resolved, and a kick at each change --------+
//
// The last good answers are kept in state_dir, so a start while DNS is down serves the known
// endpoints. Answers of missing services are kept until the store was readable.
// In a fleet, each node looks names up itself.
package names

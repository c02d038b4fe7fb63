// Package names keeps the addresses of endpoints that are defined by name up to date.
//
//	model: Resolved(inputs) --- lookups of all services ---> resolve.Runner
//	model <--- Inputs.Resolved, and a kick at each change --------+
//
// The last good answers are saved in state_dir, so after a start without DNS the known endpoints
// are served. Answers of missing services are kept until the store was readable. In a fleet, each
// node makes its own lookups.
package names

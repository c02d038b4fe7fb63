// Package names keeps the addresses of endpoints that are defined by name up to date.
//
//	model: Resolved(inputs) --- services' lookups ---> a goroutine for each distinct lookup
//	model <--- Inputs.Resolved, and a kick --- answers, with former members until new ones pass checks
//
// The last good answers are saved in state_dir, so after a start without DNS the known endpoints
// are served. Answers of missing services are kept until the store was readable. In a fleet, each
// node makes its own lookups.
package names

// Package names keeps the addresses of endpoints that are defined by name up to date.
//
//	model: Resolved(inputs) --- services' lookups ---> a goroutine for each distinct lookup
//	model <--- Inputs.Resolved, and a kick --- answers, with the old addresses until new addresses pass checks
//
// The last good answers are saved in state_dir, so the known endpoints are served after a start
// without DNS. Answers for services that are missing are not dropped until the store is readable.
// In a fleet, each node makes its own lookups.
package names

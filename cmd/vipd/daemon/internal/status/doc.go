// Package status describes the node at one moment: the answers of the API, the values of metrics,
// the status in the fleet, and readiness.
//
// It reads the published states of the daemon's parts (Sources), and owns and changes nothing. Each
// request has its own View, so all its details are of one moment. Counts are read on demand,
// because they may cost more than the rest.
package status

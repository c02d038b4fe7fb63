// Package status describes the node at one moment. Its views are the source for the answers of the
// API, the values of metrics, the status in the fleet, and readiness.
//
// It reads the published states of the daemon's parts (Sources), and changes nothing. Each request
// has its own View, so all its details are from the same moment. Counts are read on demand, because
// they may cost more than everything else.
package status

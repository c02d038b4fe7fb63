// Package status describes the node at one moment. The API's answers, metrics, the status in the
// fleet, and readiness are built from its views.
//
// The package reads the published states of the daemon's parts (Sources), and changes nothing. Each
// request has its own View, so all its details are from the same moment. Counts are read only if
// they are needed, because reading them may cost more than everything else.
package status

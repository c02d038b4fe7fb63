// Package fleet is this node as one of many: it follows what the fleet shares, and tells the fleet how it is.
//
//	PREFIX/services, endpoints, overrides   -> Source -> model
//	PREFIX/nodes/NODE/config                -> Source -> Configured: mode and zone
//	PREFIX/nodes/NODE/live, status          <- presence <- Run, from views
//
// What it tells is written at most once a second, and only when it has changed. That etcd is lost, or that the fleet does not see
// this node, begins and ends in the history (events.go).
//
// Keys, leases and the watch are store/etcd's; the health checks that a fleet shares are fleetchecks'.
package fleet

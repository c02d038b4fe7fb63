// Package fleet makes this node a member of a fleet: it follows the shared state, and publishes the
// node's status.
//
//	PREFIX/services, endpoints, overrides   -> Source -> model
//	PREFIX/nodes/NODE/config                -> Source -> Configured: mode and zone
//	PREFIX/nodes/NODE/live, status          <- presence <- Run, from views
//
// The status is written at most once a second, and only if it has changed. events.go records in the
// history when etcd is lost and when the fleet does not see this node.
//
// Package store/etcd implements keys, leases and the watch. Package fleetchecks implements the
// health checks that a fleet shares.
package fleet

// Package schema defines the names of the keys in etcd. It also decodes and encodes their values.
//
//	PREFIX/services/NAME               a service, as JSON
//	PREFIX/endpoints/SERVICE/ID        an endpoint, usually under a lease
//	PREFIX/overrides/SERVICE/ADDRESS   an operator's override of an endpoint
//	PREFIX/vips/ADDRESS                the name of the service that the address is allocated to
//	PREFIX/pools/NAME                  the networks that addresses are allocated from
//	PREFIX/nodes/NODE/config           the mode and zone of a node
//	PREFIX/nodes/NODE/live, status     the presence and the status of a node, under one lease
//	PREFIX/hosts/NODE                  the node's own addresses, under the same lease
//	PREFIX/pending                     the pending change of services
//	PREFIX/ownership/policy/ADDRESS    the settings of an address
//	PREFIX/ownership/KIND/NAME         a record of failover
//	PREFIX/ownership/key               the keys of heartbeats
//	PREFIX/history/SERVICE/N           the last texts of a service
//	PREFIX/claims/all                  the service with the last new claim; it orders writers
//	PREFIX/health/NODE/live            the node takes part in the fleet's health checks
//	PREFIX/health/NODE/SERVICE/ADDRESS the node's result for an endpoint, under the same lease
//
// The package does not access etcd.
package schema

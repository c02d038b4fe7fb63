// Package schema has the names of the keys in etcd, and decodes and encodes their values.
//
//	PREFIX/services/NAME               a service, as JSON
//	PREFIX/endpoints/SERVICE/ID        one endpoint, usually under a lease
//	PREFIX/overrides/SERVICE/ADDRESS   what an operator said of an endpoint by hand
//	PREFIX/vips/ADDRESS                the name of the service that the address is allocated to
//	PREFIX/pools/NAME                  the networks that addresses are allocated from
//	PREFIX/nodes/NODE/config           what a node is told: its mode and zone
//	PREFIX/nodes/NODE/live, status     that a node is there, and how it is, under one lease
//	PREFIX/hosts/NODE                  the node's own addresses, under the same lease
//	PREFIX/history/SERVICE/N           the last texts of a service
//	PREFIX/claims/all                  the service that claimed something last: turns for writers
//	PREFIX/health/NODE/live            that a node takes part in the fleet's health checks
//	PREFIX/health/NODE/SERVICE/ADDRESS what it has found of an endpoint, under the same lease as that
//
// What it does not do: it does not talk to etcd.
package schema

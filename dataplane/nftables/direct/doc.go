// Package direct forwards frontends with forward = "dr". It uses a table in the family netdev,
// which processes frames before routing. The table keeps no state for connections: a hash of the
// client selects a slot, and each slot has an endpoint. The endpoint replies to the client
// directly.
//
// The table netdev vipd exists while such frontends exist:
//
//	device-2-eth0         a chain for each device on which clients may arrive. It continues in arriving
//	arriving              skips frames to other hosts, and maps (address, protocol, port) to one of the following chains
//	tcp-port-4            forwards by a hash of the client's address and port
//	tcp-client-4          forwards by a hash of the client's address
//	...-closing           like tcp-port-4 or tcp-client-4, but forwards no new connections, because all endpoints drain
//	...-restricted        continues in the chain without this suffix if the set allowed contains the client
//	errors-port-4         forwards ICMP errors about an endpoint's packets, with the hash of tcp-port-4
//
// A slot's number also contains the index of the endpoint's device, because each rule forwards
// through a single device. A packet without a slot continues to the NAT tables. These serve the
// host's own programs, endpoints on this host and endpoints behind a router, and refuse clients.
package direct

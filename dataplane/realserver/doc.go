// Package realserver tests from a gateway whether direct-routing real servers accept packets to a
// VIP, and whether their replies bypass the gateway.
//
//	gateway                                real server
//	SYN client -> VIP, to the server's MAC ---->  has the VIP, and a program listens
//	       <---- SYN/ACK VIP -> client, if the server's route to the client leads here
package realserver

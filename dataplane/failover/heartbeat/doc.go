// Package heartbeat carries the messages of VIP ownership between hosts: UDP datagrams, signed with
// a key that the fleet shares.
//
// A datagram is a message from Encode and its HMAC-SHA256. The message names the sender, the
// sender's process (its boot) and session, and the receiver's address. A datagram that arrives at
// another address is dropped.
//
// Anybody on the network can record, delay, drop and repeat datagrams, but can't forge them. This
// package also delivers repeated datagrams, and [failover.Node.Heard] decides which of them count.
// A heartbeat counts once on each address, and only if it echoes a heartbeat that the receiver sent
// a moment ago. So a recorded heartbeat never counts, and a late heartbeat counts at most for
// ownership.detect. An attacker that drops datagrams can make a host look dead, like a cut cable;
// etcd then confirms it.
//
// Earlier versions neither name the receiver's address nor echo heartbeats. Each of their
// heartbeats counts once, if their boot is recorded in etcd.
package heartbeat

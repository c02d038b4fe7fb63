// Package dnat follows the connections of modes that translate destinations in the kernel. It uses
// conntrack, which decides the destination of a flow only once, so later changes of rules affect
// only new flows. Therefore the [Tracker]
//
//   - removes flows that conntrack would still send to a removed backend, or past a new service: UDP flows with the
//     change itself, because clients continue to send, and connections when their time is over, in a separate
//     goroutine, because searching for them takes longer than a change ([Flows]),
//   - counts live connections, and bytes if the kernel accounts for them (traffic_linux.go),
//   - lists connections, and reports backends that do not answer new ones.
//
// After a mode switch, conntrack continues to translate the connections of the earlier mode. For a
// mode that does not translate addresses, [Carried] follows these connections.
//
// A mode calls Found with the frontends of an earlier process, Applied after each batch, and Close
// at its end. The mode's rules, not the Tracker, send packets to backends and count new
// connections.
package dnat

// Package dnat follows the connections of modes that translate destinations in the kernel. It uses
// conntrack, which decides a flow's destination only once, so later changes to rules affect only
// new flows. Therefore the [Tracker]
//
//   - removes flows that conntrack would otherwise continue to send to a removed backend, or past a
//     new service (see [Flows]),
//   - counts live connections, and bytes if the kernel counts them (traffic_linux.go),
//   - lists connections, and reports backends that do not answer new connections.
//
// After a mode switch, conntrack continues to translate the earlier mode's connections. If the new
// mode does not translate addresses, it uses [Carried] to follow these connections.
//
// A mode calls Found with an earlier process's frontends, Applied after each batch, and Close when
// it closes. The mode's rules, not the Tracker, send packets to backends and count new connections.
package dnat

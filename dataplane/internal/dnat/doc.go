// Package dnat follows the connections of modes that translate destinations in the kernel, with
// conntrack. conntrack decides the destination of a flow only once, so later changes of rules only
// affect new flows. Therefore the [Tracker]
//
//   - removes flows that conntrack would still send to a removed backend, or past a new service: UDP flows with the
//     change itself, because clients continue to send, and connections when their time is over, in a separate
//     goroutine, because searching for them takes longer than a change ([Flows]),
//   - counts live connections, and bytes if the kernel accounts for them (traffic_linux.go),
//   - lists connections, and reports backends that do not answer new ones.
//
// After a change of the mode, conntrack keeps translating the connections of the earlier mode.
// [Carried] does the Tracker's work for them in a mode that translates nothing.
//
// A mode calls Found with the frontends of an earlier process, Applied after each batch, and Close
// at its end. The mode's rules, not the Tracker, send packets to backends and count new
// connections.
package dnat

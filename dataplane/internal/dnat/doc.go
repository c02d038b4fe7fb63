// Package dnat follows in conntrack what modes that translate destinations in the kernel lead to backends. conntrack decides
// once where a flow goes: rules that change later concern new flows alone. So the Tracker
//
//   - drops flows that conntrack would go on leading to a backend that is gone, or past a service that has come since: those
//     of UDP with the change itself, because clients go on sending; connections when their time is over, in a goroutine of its
//     own, because looking for them takes longer than a change (Flows),
//   - counts live connections, and bytes where the kernel accounts for them (traffic_linux.go),
//   - lists connections, and tells which backends leave new ones without an answer.
//
// After a switch, conntrack carries connections on that the rules of such a mode have begun: Carried does for them, in a mode that translates
// nothing, what Tracker does.
//
// A mode calls Found with what an earlier process left, Applied after each batch, and Close at its end. How packets get to
// backends, and how many there were first, the Tracker does not know: the mode's rules do.
package dnat

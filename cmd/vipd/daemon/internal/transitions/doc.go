// Package transitions turns changes to a node into events: one at the start, and one at the end
// with the duration.
//
//	model  -> Compiled -> problems, panics, outages, drains, unreadable files; at vipd's start, endpoints that are still down
//	engine -> Follow   -> applied changes, failures to apply, problems of the host
//	reload -> Reloads  -> the result
//
// Checks, ejections, the choice of the mode, and the fleet record their own events, because they
// make the decisions.
//
// The package remembers which events are still open. It decides nothing, and no other part depends
// on it.
package transitions

// Package transitions turns what changes on a node into events of the events: each once, when it begins and when it ends, with how
// long it lasted.
//
//	model  -> Compiled -> problems, panics, outages, drains, files that can't be read; at the start, who is still down
//	engine -> Follow   -> what is applied, what can't be, what the host lacks
//	reload -> Reloads  -> what came of it
//
// What checks, ejections, the choice of the mode and the fleet find is recorded by those parts, who decide it.
//
// The package keeps what it has told and is not over yet; it decides nothing, and nothing depends on it.
package transitions

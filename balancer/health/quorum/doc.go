// Package quorum lets the hosts of a fleet share health checks: three of them check a target, and what two of these
// find is what all go by. It does no I/O and has no clock; the Board, in which hosts read each other's votes, is filled by
// the owner of the connection (store/etcd).
//
//	Board.Nodes  -> Checkers: which three  -> Coordinator.Assign -> what this host checks -> probe.Runner -> its verdicts
//	Board.Votes  -> Decide: the majority   -> Coordinator.Judge  -> balancer.Inputs.Health                      |
//	     ^------------------------------- the votes of Coordinator.Assignments <-------------------------------------+
//
// # Who checks
//
// Rendezvous hashing: each node draws a number from its name and the address that is probed, and the Size best ones
// check it. All hosts know the same nodes, so no vote is needed. A node that leaves moves only the targets that it
// had, each to one other node; one that joins takes its share, and moves no other. Services that ask for the same address
// have the same checkers, so that what they share is checked once. Only nodes that may run programs check with programs.
//
// # What they come to
//
// A verdict takes the majority of a target's checkers: two of three, both of two, the one of one.
//
//   - Checkers that have not voted yet keep what was decided before from changing by one vote. So a verdict stays when a
//     checker dies or is exchanged, until as many as it takes see it otherwise. Who has not voted after the time that a
//     row of results and the way to the board take is mute, and counts for nothing until it votes.
//   - Of two that disagree, the vote counts that stands longest, whatever a host has known before: all hosts that read the
//     same board come to the same.
//   - A checker that is cut off from the target alone sees it down, and is outvoted by the two others.
//   - A checker that can't carry the check out abstains (a vote that is neither up nor down), and counts for nothing: the
//     others decide as if there were fewer. One that can't any more takes its vote back after a while.
//   - What no node may check any more is forgotten after the same time, as nobody would find that it has recovered.
//   - Where no node checks at all, because none has said that it is there or all are mute, each host checks for itself.
//
// A verdict holds since a host has taken it, and for who finds it so, since the votes came to it.
//
// A node that ceases to be a checker goes on, and its vote stays, until most of those that are now have voted.
//
// # Without a board
//
// A host that has lost the board checks everything for itself at once (Round.Alone), beginning with what the fleet has
// found: its own checks have to see as much to the contrary as at any other time. It goes on like that for a while after
// the board is back, until all that others found meanwhile is on it.
package quorum

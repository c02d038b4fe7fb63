// Package quorum lets the hosts of a fleet share health checks: three hosts check each target, and
// the majority of their results counts for all hosts. The package does no I/O and has no clock. The
// owner of the connection (store/etcd) fills the Board, in which hosts read each other's votes.
//
//	Board.Nodes  -> Checkers: which three  -> Coordinator.Assign -> this host's checks -> probe.Runner -> verdicts
//	Board.Votes  -> Decide: the majority   -> Coordinator.Judge  -> balancer.Inputs.Health                    |
//	     ^------------------------------- the votes about Coordinator.Assignments <---------------------------+
//
// # Checkers
//
// The checkers are chosen by rendezvous hashing: each node's number is a hash of its name and of
// the probed address, and the Size nodes with the highest numbers check the target. All hosts have
// the same list of nodes, so they need not vote on the choice. If a node leaves, only its targets
// move, each to one other node. If a node joins, it gets its share, and no other target moves.
// Services with the same address have the same checkers, so a shared check runs once. Exec checks
// run only on nodes that may run programs.
//
// # Verdicts
//
// A verdict needs the majority of a target's checkers: two of three, two of two, or one of one.
//
//   - A checker that has not voted yet prevents a change by a single vote. So if a checker dies or
//     is replaced, the verdict stays until enough other checkers contradict it. A checker is mute
//     if it has not voted within the time for the necessary results and for publishing them. A mute
//     checker does not count until it votes.
//   - If two checkers disagree, the older vote wins, regardless of the verdict that a host had
//     before. So all hosts that read the same board agree.
//   - If a single checker is cut off from the target, it finds the target down, but the two others
//     outvote it.
//   - A checker that can't run the check abstains. Its vote is neither up nor down, and the others
//     decide as if it did not exist. A checker that loses the ability to run a check withdraws its
//     vote after a while.
//   - If no node may check a target any longer, its verdict is dropped after the same time, because
//     no checker would notice a recovery.
//   - If no node checks at all, because no node is on the board or all are mute, each host checks
//     for itself.
//
// The time of a verdict (Since) is when this host adopted it. A host that finds the verdict on the
// board uses the time when the votes became a majority.
//
// A node that is no longer a checker continues to check, and its vote is kept, until most of the
// new checkers have voted.
//
// # Without a board
//
// A host without a connection to the board immediately starts to check everything itself
// (Round.Alone). It starts with the fleet's verdicts, and needs the usual number of contrary
// results to change them. When the board is available again, the host continues for a while, until
// the results of other hosts are on the board.
package quorum

package quorum

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Checker is what a node says of itself as one that checks.
type Checker struct {
	// Exec: it may run the programs that services ask for.
	Exec bool `json:"exec,omitempty"`
}

// Ballot is whose vote about what it is.
type Ballot struct {
	Target balancer.Target
	Node   balancer.NodeName
}

// Compare orders ballots by target, then node.
func (b Ballot) Compare(other Ballot) int {
	return cmp.Or(b.Target.Compare(other.Target), b.Node.Compare(other.Node))
}

// Vote is what a node has found of a target.
type Vote struct {
	// Verdict is what its checks came to; unknown: it can't carry them out, and abstains.
	Verdict balancer.Verdict `json:"verdict"`
	// Since is when they did, by the node's own clock.
	Since time.Time `json:"since,omitzero"`
	// Cause is the result that decided, in words.
	Cause string `json:"cause,omitempty"`
}

// Board is what the nodes of a fleet have said. It is a value: what is on it never changes.
type Board struct {
	// Connected is false while it can't be read; the rest is what it had last then.
	Connected bool
	// Nodes are those that check, and that are there.
	Nodes snap.Map[balancer.NodeName, Checker]
	// Votes are theirs. A vote goes with its node.
	Votes snap.Map[Ballot, *Vote]
}

// about yields the votes about a target.
func (b *Board) about(t balancer.Target) iter.Seq2[Ballot, *Vote] {
	return b.Votes.While(Ballot{Target: t}, func(of Ballot) bool { return of.Target == t })
}

// votes splits the votes about a target into those of its checkers, and those of other nodes that are there.
func (b *Board) votes(t balancer.Target, checkers []balancer.NodeName) (of, others []Vote) {
	for ballot, v := range b.about(t) {
		switch {
		case slices.Contains(checkers, ballot.Node):
			of = append(of, *v)
		case b.Nodes.Has(ballot.Node):
			others = append(others, *v)
		}
	}
	return of, others
}

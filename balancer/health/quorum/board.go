package quorum

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// Checker is a node's announcement that it checks targets.
type Checker struct {
	// Exec reports whether the node may run the programs of exec checks.
	Exec bool `json:"exec,omitempty"`
}

// VoteKey identifies a vote: its target and its node.
type VoteKey struct {
	Target balancer.Target
	Node   balancer.NodeName
}

// Compare orders vote keys by target, then by node.
func (b VoteKey) Compare(other VoteKey) int {
	return cmp.Or(b.Target.Compare(other.Target), b.Node.Compare(other.Node))
}

// Vote is a node's verdict on a target.
type Vote struct {
	// Verdict is the verdict of its checks. Unknown means that the node can't run the checks and
	// abstains.
	Verdict balancer.Verdict `json:"verdict"`
	// Since is when the verdict was reached, by the node's own clock.
	Since time.Time `json:"since,omitzero"`
	// Cause is the text of the result that decided.
	Cause string `json:"cause,omitempty"`
}

// Board holds the announcements and votes of a fleet. It is an immutable value.
type Board struct {
	// Connected reports whether the board can be read. If not, the other fields hold its last known
	// content.
	Connected bool
	// Nodes are the live nodes that check targets.
	Nodes snap.Map[balancer.NodeName, Checker]
	// Votes are the votes of Nodes. A vote is removed together with its node.
	Votes snap.Map[VoteKey, *Vote]
}

// votesOn yields the votes on a target.
func (b *Board) votesOn(t balancer.Target) iter.Seq2[VoteKey, *Vote] {
	return b.Votes.While(VoteKey{Target: t}, func(k VoteKey) bool { return k.Target == t })
}

// votes returns the votes on a target. The result own contains its checkers' votes, and others
// contains other live nodes' votes.
func (b *Board) votes(t balancer.Target, checkers []balancer.NodeName) (own, others []Vote) {
	for k, v := range b.votesOn(t) {
		switch {
		case slices.Contains(checkers, k.Node):
			own = append(own, *v)
		case b.Nodes.Has(k.Node):
			others = append(others, *v)
		}
	}
	return own, others
}

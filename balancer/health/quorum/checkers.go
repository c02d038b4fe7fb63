package quorum

import (
	"cmp"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/balancer/internal/hash"
)

// Size is the number of nodes that check a target. With three nodes, one may be wrong or missing.
const Size = 3

// electorate is the set of nodes from which checkers are chosen.
type electorate []elector

type elector struct {
	node balancer.NodeName
	seed uint64
}

func newElectorate(nodes []balancer.NodeName) electorate {
	e := make(electorate, 0, len(nodes))
	for _, n := range nodes {
		e = append(e, elector{n, hash.Mix(hash.Add(hash.Offset, n))})
	}
	return e
}

// checkers returns the nodes that check targets at a probed address, best first. There are Size of
// them, or fewer if the electorate is smaller. The result depends only on the electorate and the
// address, so all hosts choose the same nodes.
func (e electorate) checkers(at netip.AddrPort) []balancer.NodeName {
	addr := at.Addr().As16()
	key := hash.Mix(hash.Add(hash.Offset, append(addr[:], byte(at.Port()>>8), byte(at.Port()))))
	type draw struct {
		node   balancer.NodeName
		number uint64
	}
	var best []draw
	for _, each := range e {
		d := draw{each.node, hash.Mix(key ^ each.seed)}
		if len(best) == Size && best[Size-1].number > d.number {
			continue // true for most nodes
		}
		i, _ := slices.BinarySearchFunc(best, d, func(a, b draw) int {
			return cmp.Or(cmp.Compare(b.number, a.number), a.node.Compare(b.node))
		})
		best = slices.Insert(best, i, d)
		best = best[:min(len(best), Size)]
	}
	nodes := make([]balancer.NodeName, len(best))
	for i, d := range best {
		nodes[i] = d.node
	}
	return nodes
}

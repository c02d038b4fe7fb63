package iptables

import (
	"cmp"
	"slices"
	"strconv"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
)

// The shape of the dispatch tree. The time of a first packet is flat between 4 and 16 chains below one; what costs is a
// chain that is in no cache, so that a longer list in the last one is cheaper than one more. The bound of the depth
// leaves room for what comes below frontends' chains (deepest), within the 15 that nft allows below a hook.
const (
	// fanOut is the most other nodes that a node leads to when it is made.
	fanOut = 8
	// leafSize is the most frontends that are in one list.
	leafSize = 32
	// fullNode is the most that a node may grow to before it is divided.
	fullNode = 48
	// deepestTree is the most nodes on the way to a frontend.
	deepestTree = 8
)

// tree finds the frontend of a packet by the bits of its destination: a level-compressed trie, each node of which is a
// chain. It is immutable: changes make a new one that shares what stays.
//
// A change touches the node that it belongs to; one that gets full is divided, and no other is ever rearranged.
type tree struct {
	root *treeNode
	// next is the number of the next node's name.
	next int
}

// treeNode is one chain of the tree. The root's name is fixed; the others have numbers, which are not used again.
type treeNode struct {
	name string
	at   path
	// ways are sorted by path.
	ways []branch
}

// branch leads to another node, or, where node is nil, to the frontend of a whole path.
type branch struct {
	at   path
	node *treeNode
}

// rule leads to the branch from a node at the path within.
func (b branch) rule(within path) string {
	if b.node != nil {
		return b.at.match(within) + "-g " + b.node.name
	}
	return b.at.match(within) + "-g " + frontChain(b.at.key())
}

// newTree is the tree of no frontends in one family.
func newTree(is4 bool) tree {
	at := path{addr: 128}
	if is4 {
		at.addr = 32
	}
	return tree{root: &treeNode{name: rootChain, at: at}}
}

// build returns the tree of keys, whose nodes' names go on after those of t.
func (t tree) build(keys []balancer.Key) tree {
	ways := make([]branch, len(keys))
	for i, k := range keys {
		ways[i] = branch{at: pathOf(k)}
	}
	slices.SortFunc(ways, func(a, b branch) int { return a.at.compare(b.at) })
	for fan := fanOut; ; fan *= 2 {
		next := tree{next: t.next}
		next.root = next.begin(t.root.at, ways, fan)
		if next.root.depth() <= deepestTree {
			return next
		}
	}
}

// begin returns the root. It sends on what is under the prefix that all have in common, so that packets for no VIP pay
// for one comparison.
func (t *tree) begin(at path, ways []branch, fan int) *treeNode {
	if len(ways) <= leafSize {
		return t.divide(at, rootChain, ways, fan)
	}
	under := ways[0].at.prefix(ways[0].at.common(ways[len(ways)-1].at))
	if under.len == 0 {
		return t.divide(at, rootChain, ways, fan)
	}
	t.next++
	return &treeNode{name: rootChain, at: at, ways: []branch{{at: under, node: t.divide(under, nodeName(t.next), ways, fan)}}}
}

// divide returns the node at a prefix, with nodes below it until none leads to more than fan.
func (t *tree) divide(at path, name string, ways []branch, fan int) *treeNode {
	n := &treeNode{name: name, at: at, ways: ways}
	if len(ways) <= leafSize {
		return n
	}
	n.ways = nil
	for _, part := range parts(at, ways, fan) {
		if len(part) == 1 {
			n.ways = append(n.ways, part[0])
			continue
		}
		under := part[0].at.prefix(part[0].at.common(part[len(part)-1].at))
		t.next++
		n.ways = append(n.ways, branch{at: under, node: t.divide(under, nodeName(t.next), part, fan)})
	}
	return n
}

func nodeName(number int) string { return nodePrefix + strconv.FormatInt(int64(number), 36) }

// parts cuts ways, which are sorted and differ within what rules can match, where they differ within the longest prefix
// that yields at most fan parts, or within the shortest one that yields more than one.
func parts(at path, ways []branch, fan int) [][]branch {
	alike := make([]int, len(ways)-1) // how many bits each has in common with the next
	longest := ways[0].at.len         // what can be looked into
	for i := range alike {
		alike[i] = ways[i].at.common(ways[i+1].at)
		longest = min(longest, ways[i+1].at.len)
	}
	cut := 0
	for n := at.len + 1; n <= longest; n++ {
		if at.skips(n) {
			continue
		}
		count := 1
		for _, bits := range alike {
			if bits < n {
				count++
			}
		}
		if count > fan && cut > 0 {
			break
		}
		if count > 1 {
			cut = n
		}
	}
	var all [][]branch
	start := 0
	for i, bits := range alike {
		if bits < cut {
			all = append(all, ways[start:i+1])
			start = i + 1
		}
	}
	return append(all, ways[start:])
}

func (p path) compare(q path) int {
	return cmp.Or(slices.Compare(p.bits[:], q.bits[:]), cmp.Compare(p.len, q.len))
}

// with returns t with the key. It notes the nodes that are new or changed, each before those that lead to it.
func (t tree) with(k balancer.Key, changed *changes) tree {
	t.root = t.insert(t.root, pathOf(k), changed)
	return t
}

func (t *tree) insert(n *treeNode, at path, changed *changes) *treeNode {
	i, found := slices.BinarySearchFunc(n.ways, at, func(b branch, at path) int {
		if b.at.covers(at) {
			return 0
		}
		return b.at.compare(at)
	})
	copied := *n
	switch {
	case found && n.ways[i].node == nil: // it is there
		return n
	case found:
		below := t.insert(n.ways[i].node, at, changed)
		if below == n.ways[i].node {
			return n
		}
		copied.ways = slices.Clone(n.ways)
		copied.ways[i].node = below
		return &copied
	}
	copied.ways = slices.Insert(slices.Clone(n.ways), i, branch{at: at})
	if len(copied.ways) > fullNode {
		was := t.next
		divided := t.divide(n.at, n.name, copied.ways, fanOut)
		divided.each(func(m *treeNode) {
			if m.number() > was {
				changed.write(m)
			}
		})
		copied = *divided
	}
	changed.write(&copied)
	return &copied
}

// without returns t without the key. It notes the nodes that changed or are left without anything.
func (t tree) without(k balancer.Key, changed *changes) tree {
	if next := t.remove(t.root, pathOf(k), changed); next != nil {
		t.root = next
	}
	return t
}

// remove returns nil where nothing is left of n, unless it is the root.
func (t *tree) remove(n *treeNode, at path, changed *changes) *treeNode {
	for i, b := range n.ways {
		if !b.at.covers(at) {
			continue
		}
		copied := *n
		if b.node != nil {
			below := t.remove(b.node, at, changed)
			if below == b.node {
				return n
			}
			if below != nil {
				copied.ways = slices.Clone(n.ways)
				copied.ways[i].node = below
				return &copied
			}
		}
		copied.ways = slices.Delete(slices.Clone(n.ways), i, i+1)
		if len(copied.ways) == 0 && n.name != rootChain {
			changed.remove(n)
			return nil
		}
		changed.write(&copied)
		return &copied
	}
	return n
}

// depth is the number of nodes on the longest way.
func (n *treeNode) depth() int {
	most := 0
	for _, b := range n.ways {
		if b.node != nil {
			most = max(most, b.node.depth())
		}
	}
	return most + 1
}

// each calls visit for n and all below it, those first that others lead to.
func (n *treeNode) each(visit func(*treeNode)) {
	for _, b := range n.ways {
		if b.node != nil {
			b.node.each(visit)
		}
	}
	visit(n)
}

// number is the one in the node's name; the root has -1.
func (n *treeNode) number() int {
	if n.name == rootChain {
		return -1
	}
	number, _ := strconv.ParseInt(n.name[len(nodePrefix):], 36, 64)
	return int(number)
}

// keeper is the root's last rule. It matches nothing, but it uses conntrack, whose hooks the kernel removes with the
// last rule that does: established connections would lose their way when the last service goes.
func keeper(is4 bool) string {
	if is4 {
		return "-d 0.0.0.0/32 -m conntrack --ctstate INVALID -j RETURN"
	}
	return "-d ::/128 -m conntrack --ctstate INVALID -j RETURN"
}

// chain is the chain of the node.
func (n *treeNode) chain() xtables.Chain {
	c := xtables.Chain{Name: n.name}
	for _, b := range n.ways {
		c.Rules = append(c.Rules, b.rule(n.at))
	}
	if n.name == rootChain {
		c.Rules = append(c.Rules, keeper(n.at.addr == 32))
	}
	return c
}

// changes are the nodes that a change of the tree comes to.
type changes struct {
	// written are in the order in which they were first noted; nodes are their newest states.
	written []string
	nodes   map[string]*treeNode
	gone    []*treeNode
}

func (c *changes) write(n *treeNode) {
	if c.nodes == nil {
		c.nodes = map[string]*treeNode{}
	}
	if _, ok := c.nodes[n.name]; !ok {
		c.written = append(c.written, n.name)
	}
	c.nodes[n.name] = n
}

func (c *changes) remove(n *treeNode) {
	delete(c.nodes, n.name)
	c.gone = append(c.gone, n)
}

// removed are the nodes to be deleted, each before those that it leads to.
func (c *changes) removed() []string {
	slices.SortStableFunc(c.gone, func(a, b *treeNode) int { return cmp.Compare(a.at.len, b.at.len) })
	names := make([]string, len(c.gone))
	for i, n := range c.gone {
		names[i] = n.name
	}
	return names
}

// chains are the nodes to be written, those first that others lead to: they are at longer prefixes.
func (c *changes) chains() []xtables.Chain {
	var nodes []*treeNode
	for _, name := range c.written {
		if n := c.nodes[name]; n != nil {
			nodes = append(nodes, n)
		}
	}
	slices.SortStableFunc(nodes, func(a, b *treeNode) int { return cmp.Compare(b.at.len, a.at.len) })
	chains := make([]xtables.Chain, len(nodes))
	for i, n := range nodes {
		chains[i] = n.chain()
	}
	return chains
}

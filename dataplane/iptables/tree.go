package iptables

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
)

// These constants shape the dispatch tree. A first packet needs the same time for fans of 4 to 16
// chains. A chain that is not in the CPU's caches is expensive, so a longer list in the last chain
// is cheaper than another level. The maximum depth leaves room for the levels below frontends'
// chains (maxLevels), because nft allows 15 chains below a hook.
const (
	// fanOut is the maximum number of nodes to which a new node leads.
	fanOut = 8
	// leafSize is the maximum number of frontends in a new leaf.
	leafSize = 32
	// fullNode is the number of branches at which a node is divided.
	fullNode = 48
	// maxTreeDepth is the maximum number of nodes on the way to a frontend.
	maxTreeDepth = 8
)

// tree finds a packet's frontend by the bits of the packet's destination. It is a level-compressed
// trie, and each node is a chain. It is immutable. A change returns a new tree that shares
// unchanged nodes.
//
// A change only modifies one node, and divides it if it gets full. Other nodes are never
// rearranged.
//
// An address with port ranges has its own node. Its rules for ranges follow the branches for single
// ports. The node jumps to the nodes below it (not goto), because packets must return if no single
// port matches.
type tree struct {
	root *treeNode
	// next is the number of the next new node.
	next int
}

// treeNode is a chain of the tree. The root's name is fixed. Other nodes have numbers, which are
// not reused.
type treeNode struct {
	name string
	at   path
	// branches are sorted by path.
	branches []branch
	// ranges are the frontends with a port range on the node's address, the narrowest first.
	ranges []balancer.Key
}

// branch leads to another node. If node is nil, it leads to the frontend of the path.
type branch struct {
	at   path
	node *treeNode
}

// rule returns the rule for the branch in node n's chain.
func (b branch) rule(n *treeNode) string {
	switch {
	case b.node == nil:
		return b.at.match(n.at) + "-g " + frontChain(b.at.key())
	case len(n.ranges) > 0:
		return b.at.match(n.at) + "-j " + b.node.name
	}
	return b.at.match(n.at) + "-g " + b.node.name
}

// newTree returns a family's tree without frontends.
func newTree(is4 bool) tree {
	at := path{addr: 128}
	if is4 {
		at.addr = 32
	}
	return tree{root: &treeNode{name: rootChain, at: at}}
}

// build returns a tree of keys. Its node numbers continue t's numbers.
func (t tree) build(keys []balancer.Key) tree {
	ranges := rangesOf(keys)
	var branches []branch
	inside := map[path][]branch{} // the single ports on addresses with ranges
	for _, k := range keys {
		b, at := branch{at: pathOf(k)}, addressPath(k)
		switch {
		case k.Port.IsRange():
		case ranges[at] != nil:
			inside[at] = append(inside[at], b)
		default:
			branches = append(branches, b)
		}
	}
	byPath := func(a, b branch) int { return a.at.compare(b.at) }
	for fan := fanOut; ; fan *= 2 {
		next, all := tree{next: t.next}, slices.Clone(branches)
		for _, at := range slices.SortedFunc(maps.Keys(ranges), path.compare) {
			slices.SortFunc(inside[at], byPath)
			all = append(all, branch{at, next.newRangeNode(at, inside[at], ranges[at], fan)})
		}
		slices.SortFunc(all, byPath)
		next.root = next.newRoot(t.root.at, all, fan)
		if next.root.depth() <= maxTreeDepth {
			return next
		}
	}
}

// newRoot returns the root. Its first rule matches the common prefix of all branches, so packets to
// other addresses need a single comparison.
func (t *tree) newRoot(at path, branches []branch, fan int) *treeNode {
	if len(branches) <= leafSize {
		return t.divide(at, rootChain, branches, fan)
	}
	under := branches[0].at.prefix(branches[0].at.common(branches[len(branches)-1].at))
	if under.len == 0 {
		return t.divide(at, rootChain, branches, fan)
	}
	t.next++
	return &treeNode{name: rootChain, at: at, branches: []branch{{at: under, node: t.divide(under, nodeName(t.next), branches, fan)}}}
}

// divide returns the node at a prefix. It adds nodes below it, so that no node has more than fan
// branches.
func (t *tree) divide(at path, name string, branches []branch, fan int) *treeNode {
	n := &treeNode{name: name, at: at, branches: branches}
	if len(branches) <= leafSize {
		return n
	}
	n.branches = nil
	for _, part := range parts(at, branches, fan) {
		if len(part) == 1 {
			n.branches = append(n.branches, part[0])
			continue
		}
		under := part[0].at.prefix(part[0].at.common(part[len(part)-1].at))
		t.next++
		n.branches = append(n.branches, branch{at: under, node: t.divide(under, nodeName(t.next), part, fan)})
	}
	return n
}

func nodeName(number int) string { return nodePrefix + strconv.FormatInt(int64(number), 36) }

// parts divides the sorted branches by their prefixes of some length. It uses the greatest length
// that results in at most fan parts, or else the smallest that results in more than one part.
func parts(at path, branches []branch, fan int) [][]branch {
	alike := make([]int, len(branches)-1) // the number of bits that each branch shares with the next
	longest := branches[0].at.len         // the longest prefix that rules can match
	for i := range alike {
		alike[i] = branches[i].at.common(branches[i+1].at)
		longest = min(longest, branches[i+1].at.len)
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
			all = append(all, branches[start:i+1])
			start = i + 1
		}
	}
	return append(all, branches[start:])
}

func (p path) compare(q path) int {
	return cmp.Or(slices.Compare(p.bits[:], q.bits[:]), cmp.Compare(p.len, q.len))
}

// with returns a copy of t that leads to the frontend k. It records the new and changed nodes, each
// before the nodes that jump to it.
func (t tree) with(k balancer.Key, changed *changes) tree {
	if !k.Port.IsRange() {
		t.root = t.insert(t.root, pathOf(k), changed)
		return t
	}
	at := addressPath(k)
	ranges := t.root.rangesAt(at)
	if i, found := slices.BinarySearchFunc(ranges, k, compareRanges); !found {
		t.root = t.withRanges(t.root, at, slices.Insert(slices.Clone(ranges), i, k), changed)
	}
	return t
}

func (t *tree) insert(n *treeNode, at path, changed *changes) *treeNode {
	i, found := slices.BinarySearchFunc(n.branches, at, func(b branch, at path) int {
		if b.at.covers(at) {
			return 0
		}
		return b.at.compare(at)
	})
	copied := *n
	switch {
	case found && n.branches[i].node == nil: // t already leads to the frontend
		return n
	case found:
		below := t.insert(n.branches[i].node, at, changed)
		if below == n.branches[i].node {
			return n
		}
		copied.branches = slices.Clone(n.branches)
		copied.branches[i].node = below
		return &copied
	}
	copied.branches = slices.Insert(slices.Clone(n.branches), i, branch{at: at})
	return t.dividedIfFull(&copied, changed)
}

// dividedIfFull returns the changed node n, divided if it is full. It records n and the new nodes.
func (t *tree) dividedIfFull(n *treeNode, changed *changes) *treeNode {
	if len(n.branches) > fullNode {
		was, ranges := t.next, n.ranges
		n = t.divide(n.at, n.name, n.branches, fanOut)
		n.ranges = ranges
		n.eachSince(was, changed.write)
	}
	changed.write(n)
	return n
}

// without returns a copy of t that does not lead to the frontend k. It records the changed and the
// removed nodes.
func (t tree) without(k balancer.Key, changed *changes) tree {
	if !k.Port.IsRange() {
		t.root = t.remove(t.root, pathOf(k), changed)
		return t
	}
	at := addressPath(k)
	ranges := t.root.rangesAt(at)
	if left := slices.DeleteFunc(slices.Clone(ranges), func(r balancer.Key) bool { return r == k }); len(left) < len(ranges) {
		t.root = t.withRanges(t.root, at, left, changed)
	}
	return t
}

// remove removes a frontend below n. It returns nil if n becomes empty, unless n is the root.
func (t *tree) remove(n *treeNode, at path, changed *changes) *treeNode {
	for i, b := range n.branches {
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
				copied.branches = slices.Clone(n.branches)
				copied.branches[i].node = below
				return &copied
			}
		}
		copied.branches = slices.Delete(slices.Clone(n.branches), i, i+1)
		return copied.unlessEmpty(n, changed)
	}
	return n
}

// unlessEmpty returns n, which replaces the node was, and records the write. If n is empty and not
// the root, it records the removal of was and returns nil.
func (n *treeNode) unlessEmpty(was *treeNode, changed *changes) *treeNode {
	if len(n.branches)+len(n.ranges) == 0 && n.name != rootChain {
		changed.remove(was)
		return nil
	}
	changed.write(n)
	return n
}

// depth returns the number of nodes on the longest path.
func (n *treeNode) depth() int {
	most := 0
	for _, b := range n.branches {
		if b.node != nil {
			most = max(most, b.node.depth())
		}
	}
	return most + 1
}

// each calls visit for n and all nodes below it. A node precedes the nodes that lead to it.
func (n *treeNode) each(visit func(*treeNode)) {
	for _, b := range n.branches {
		if b.node != nil {
			b.node.each(visit)
		}
	}
	visit(n)
}

// eachSince calls visit for each node, n or below it, whose number is greater than was.
func (n *treeNode) eachSince(was int, visit func(*treeNode)) {
	n.each(func(m *treeNode) {
		if m.number() > was {
			visit(m)
		}
	})
}

func (n *treeNode) number() int {
	if n.name == rootChain {
		return -1
	}
	number, _ := strconv.ParseInt(n.name[len(nodePrefix):], 36, 64)
	return int(number)
}

// keeper returns the root's last rule. It matches no packets, but uses conntrack. Without it,
// established connections would lose their translation when the last service is removed, because
// the kernel removes conntrack's hooks with the last rule that uses conntrack.
func keeper(is4 bool) string {
	if is4 {
		return "-d 0.0.0.0/32 -m conntrack --ctstate INVALID -j RETURN"
	}
	return "-d ::/128 -m conntrack --ctstate INVALID -j RETURN"
}

func (n *treeNode) chain() xtables.Chain {
	c := xtables.Chain{Name: n.name}
	for _, b := range n.branches {
		c.Rules = append(c.Rules, b.rule(n))
	}
	for _, k := range n.ranges {
		c.Rules = append(c.Rules, rangeRule(k))
	}
	if n.name == rootChain {
		c.Rules = append(c.Rules, keeper(n.at.addr == 32))
	}
	return c
}

// changes holds the nodes that a change to the tree writes and deletes.
type changes struct {
	// written holds the nodes' names in the order in which they were first recorded, and nodes
	// holds their newest versions.
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

// removed returns the nodes to delete, each before the nodes that it leads to.
func (c *changes) removed() []string {
	slices.SortStableFunc(c.gone, func(a, b *treeNode) int { return cmp.Compare(a.at.len, b.at.len) })
	names := make([]string, len(c.gone))
	for i, n := range c.gone {
		names[i] = n.name
	}
	return names
}

// chains returns the nodes to write, in order of decreasing prefix length. So a node precedes the
// nodes that lead to it.
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

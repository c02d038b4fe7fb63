package iptables

import (
	"fmt"
	"slices"

	"vipd/balancer"
)

// findTree follows the rules that were read, starting at the root. If they lead to every frontend
// and nowhere else, they become the family's tree. Otherwise the tree stays unsure, and findTree
// describes the error.
func (s *survey) findTree() string {
	y := s.y
	for chain := range s.rules {
		if isNode(chain) {
			n := &treeNode{name: chain}
			y.tree.next = max(y.tree.next, n.number())
		}
	}
	rules, ok := s.rules[rootChain]
	last := keeper(y.is4())
	switch {
	case (!ok || len(rules) == 0) && len(y.fronts) == 0:
		return ""
	case !ok:
		return "chain " + rootChain + " is missing"
	case len(rules) == 0 || rules[len(rules)-1] != last:
		return "the last rule of " + rootChain + " is missing"
	}
	t := treeReader{survey: s, fronts: map[string]balancer.Key{}, seen: map[string]bool{}}
	for k, f := range y.fronts {
		t.fronts[f.chain] = k
	}
	root, wrong := t.node(rootChain, y.tree.root.at, rules[:len(rules)-1])
	switch {
	case wrong != "":
		return "rules of chain " + wrong + " were changed"
	case t.reached != len(t.fronts):
		return fmt.Sprintf("the rules below %s lead to %d of %d frontends", rootChain, t.reached, len(t.fronts))
	case root.depth() > maxTreeDepth:
		return fmt.Sprintf("the chains below %s are %d levels deep", rootChain, root.depth())
	}
	changed := ""
	root.each(func(n *treeNode) {
		if !y.alike(y.chains[n.name], y.state(n.chain())) {
			changed = "rules of chain " + n.name + " were changed"
		}
	})
	if changed == "" {
		y.tree.root, y.unsure = root, false
	}
	return changed
}

// treeReader converts rules to nodes.
type treeReader struct {
	*survey
	// fronts maps the names of chains to their frontends.
	fronts map[string]balancer.Key
	// seen holds the chains to which rules lead, and reached is the number of frontends among these
	// chains.
	seen    map[string]bool
	reached int
}

// node reads the rules of a chain and the chains below it. wrong is the first chain whose rules do
// not have the form of a tree node, or "".
func (t *treeReader) node(name string, at path, rules []string) (n *treeNode, wrong string) {
	n = &treeNode{name: name, at: at}
	for _, rule := range rules { // first, because the form of the other rules depends on n.ranges
		if k, ok := t.fronts[targetOf(rule)]; ok && k.Port.IsRange() {
			n.ranges = append(n.ranges, k)
		}
	}
	for _, rule := range rules {
		to := targetOf(rule)
		b := branch{at: t.below(to)}
		if t.seen[to] {
			return nil, name
		}
		t.seen[to] = true
		if k, ok := t.fronts[to]; ok && k.Port.IsRange() {
			if b.at != at || rule != rangeRule(k) {
				return nil, name
			}
			t.reached++
			continue
		}
		if b.at.len <= at.len {
			return nil, name
		}
		if isNode(to) {
			b.node = &treeNode{name: to}
			for whole, bits := b.at, at.len+1; bits <= whole.len; bits++ { // try each prefix length, because only the rule shows it
				if b.at = whole.prefix(bits); b.rule(n) == rule {
					break
				}
			}
		}
		switch {
		case b.rule(n) != rule:
			return nil, name
		case b.node == nil:
			t.reached++
		default:
			if b.node, wrong = t.node(to, b.at, t.rules[to]); wrong != "" {
				return nil, wrong
			}
		}
		n.branches = append(n.branches, b)
	}
	slices.SortFunc(n.branches, func(a, b branch) int { return a.at.compare(b.at) })
	return n, ""
}

// below returns the path of the frontend to which a chain belongs. For a node, it returns the path
// of any frontend below the node, or the zero path if there is none.
func (t *treeReader) below(chain string) path {
	for range maxTreeDepth + 1 {
		if k, ok := t.fronts[chain]; ok && k.Port.IsRange() {
			return addressPath(k)
		} else if ok {
			return pathOf(k)
		}
		rules := t.rules[chain]
		if !isNode(chain) || len(rules) == 0 {
			break
		}
		chain = targetOf(rules[0])
	}
	return path{}
}

package iptables

import (
	"context"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
)

// plan lists the writes that turn the kernel's state into the state after a batch: first the chains
// of frontends, then the tree that leads to them, then deletions of unused chains.
type plan struct {
	groups []xtables.Group
	// owners holds the key of each group's frontend, or the zero key for the groups of the tree.
	owners []balancer.Key
	// treeFrom and treeTo are the bounds of the tree's part of groups.
	treeFrom, treeTo int
	tree             tree
	fronts           map[balancer.Key]*front // nil means that the frontend is removed
	// clear maps a slot to the frontends whose clients in the slot's sticky set belong to a
	// previous backend.
	clear map[int][]balancer.Key
	// slots is the number of required sticky sets.
	slots int
	// counts holds the counters of chains that the plan replaces or deletes, as read before the
	// write, if known.
	counts map[string][]uint64
}

func (y *familyRules) planLocked(batch []dataplane.Change, bad map[balancer.Key]error) *plan {
	p := &plan{tree: y.tree, fronts: map[balancer.Key]*front{}, clear: map[int][]balancer.Key{}}
	var added, gone []balancer.Key
	for _, c := range batch {
		if bad[c.Key] != nil {
			continue
		}
		was := y.fronts[c.Key]
		switch {
		case c.New == nil:
			gone = append(gone, c.Key)
			p.fronts[c.Key] = nil
		case was == nil:
			added = append(added, c.Key)
			fallthrough
		default:
			y.planFrontLocked(p, c.New, was)
		}
	}
	p.treeFrom = len(p.groups)
	y.planTreeLocked(p, added, gone)
	p.treeTo = len(p.groups)
	for _, k := range gone {
		if f := y.fronts[k]; f != nil {
			p.add(k, xtables.Group{Delete: append([]string{f.chain}, f.below...)})
		}
	}
	return p
}

func (p *plan) add(owner balancer.Key, g xtables.Group) {
	p.groups = append(p.groups, g)
	p.owners = append(p.owners, owner)
}

// planFrontLocked plans a frontend's changed chains, in one transaction.
func (y *familyRules) planFrontLocked(p *plan, f *balancer.Frontend, was *front) {
	next := &front{digest: digest(f, y.mark), service: f.Service, port: f.Port, first: firstTarget(f), proved: true}
	same := was != nil && was.digest == next.digest && y.chains[was.chain].rules > 0
	if same && (was.proved || y.prove(f, was)) {
		return
	}
	slots, used, fresh := y.assign(f)
	next.slots, next.used = slots, used
	for _, slot := range fresh {
		p.clear[slot] = append(p.clear[slot], f.Key)
	}
	p.slots = max(p.slots, used)
	made := render(f, slots, y.mark)
	next.chain = made.front.Name
	var g xtables.Group
	for _, c := range append(made.below, made.front) {
		if c.Name != made.front.Name {
			next.below = append(next.below, c.Name)
		}
		if !y.same(c) {
			g.Write = append(g.Write, c)
		}
	}
	if was != nil {
		for _, name := range was.below {
			if !slices.Contains(next.below, name) {
				g.Delete = append(g.Delete, name)
			}
		}
	}
	p.fronts[f.Key] = next
	p.add(f.Key, g)
}

// rebuildFrom is the minimum number of added frontends for which the tree is rebuilt instead of
// extended. They must also be at least as many as the existing frontends.
const rebuildFrom = 64

// planTreeLocked plans the changed nodes of the tree. If the tree in the kernel is unknown, or
// would become too deep, it plans a new tree with new names, and then makes the root jump to that
// tree.
func (y *familyRules) planTreeLocked(p *plan, added, gone []balancer.Key) {
	var c changes
	if !y.unsure && (len(added) < rebuildFrom || len(added) < len(y.fronts)) {
		for _, k := range gone {
			p.tree = p.tree.without(k, &c)
		}
		for _, k := range added {
			p.tree = p.tree.with(k, &c)
		}
		if p.tree.root.depth() <= maxTreeDepth {
			for _, chain := range c.chains() {
				p.add(balancer.Key{}, xtables.Group{Write: []xtables.Chain{chain}})
			}
			for _, name := range c.removed() {
				p.add(balancer.Key{}, xtables.Group{Delete: []string{name}})
			}
			return
		}
	}
	without := map[balancer.Key]bool{}
	for _, k := range gone {
		without[k] = true
	}
	p.tree = y.tree.build(append(y.keys(without), added...))
	p.tree.root.each(func(n *treeNode) {
		p.add(balancer.Key{}, xtables.Group{Write: []xtables.Chain{n.chain()}})
	})
	old := slices.DeleteFunc(slices.Sorted(maps.Keys(y.chains)), func(name string) bool { return !isNode(name) })
	for _, g := range deletion(old) {
		p.add(balancer.Key{}, g)
	}
}

// noteLocked records that the kernel has accepted the first done groups of p.
func (y *familyRules) noteLocked(p *plan, done int) {
	y.epoch++
	for i, g := range p.groups[:done] {
		f := y.fronts[p.owners[i]]
		end := func(name string) {
			if counts, ok := p.counts[name]; ok && f != nil {
				y.endLocked(f, name, counts)
			}
		}
		for _, c := range g.Write {
			end(c.Name)
			next := y.state(c)
			next.epoch = y.epoch
			if last := y.hashes[c.Name]; last.text != 0 && last.text != next.text {
				y.broken[c.Name] = last.hash
			} else if last.text != 0 {
				delete(y.broken, c.Name)
			}
			y.chains[c.Name] = next
		}
		for _, name := range g.Delete {
			end(name)
			delete(y.chains, name)
		}
	}
	switch {
	case done >= p.treeTo:
		y.tree, y.unsure = p.tree, false
	case done > p.treeFrom:
		y.unsure = true // the tree was partly written
		y.tree.next = max(y.tree.next, p.tree.next)
	}
	for i, k := range p.owners[:done] {
		next, planned := p.fronts[k]
		switch {
		case !k.Addr.IsValid() || !planned:
		case next != nil && i < p.treeFrom:
			y.fronts[k] = next
		case next == nil && i >= p.treeTo:
			delete(y.fronts, k)
		}
	}
}

// prove reports whether the chains that an earlier process left for a frontend equal the desired
// chains.
func (y *familyRules) prove(f *balancer.Frontend, was *front) bool {
	slots, _, fresh := y.assign(f)
	if len(fresh) > 0 {
		return false
	}
	made := render(f, slots, y.mark)
	if len(made.below) != len(was.below) {
		return false
	}
	for _, c := range append(made.below, made.front) {
		if have, ok := y.chains[c.Name]; !ok || !y.alike(have, y.state(c)) {
			return false
		}
	}
	was.proved = true
	return true
}

// orphansLocked returns vipd's chains in the kernel that belong neither to a frontend nor to the
// tree.
func (y *familyRules) orphansLocked() (names []string) {
	wanted := y.chainOwners()
	nodes := map[string]bool{rootChain: true}
	y.tree.root.each(func(n *treeNode) { nodes[n.name] = true })
	for name := range y.chains {
		if wanted[name] == nil && !nodes[name] {
			names = append(names, name)
		}
	}
	return names
}

// removeOrphansLocked deletes orphans, which a killed process may leave. If another program's rule
// jumps to an orphan, it can't be deleted, which is not an error.
func (y *familyRules) removeOrphansLocked(ctx context.Context) {
	if y.unsure && len(y.fronts) > 0 { // the chains may lead to frontends
		return
	}
	orphans := y.orphansLocked()
	if len(orphans) == 0 {
		return
	}
	defer y.look.Writing(y.tool, table)()
	groups := deletion(orphans)
	for len(groups) > 0 && ctx.Err() == nil {
		done, err := y.tool.Write(ctx, table, groups)
		if err == nil {
			break
		}
		y.log.Warn("a chain that an earlier process left can't be deleted", "family", y.name, "err", err)
		groups = groups[min(done+1, len(groups)):]
	}
	for _, name := range orphans {
		delete(y.chains, name)
	}
}

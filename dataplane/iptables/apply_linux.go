package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// Apply makes the kernel's rules match the changes of a batch. It writes changed chains in few
// transactions, and all of a frontend's chains in the same transaction. Then it removes the flows
// that conntrack still sends to removed backends.
func (d *Dataplane) Apply(ctx context.Context, batch []dataplane.Change) error {
	parts := map[inet.Family][]dataplane.Change{}
	for _, c := range batch {
		parts[inet.Of(c.Key.Addr)] = append(parts[inet.Of(c.Key.Addr)], c)
	}
	failed := dataplane.KeyErrors{}
	var all error
	for _, name := range inet.Families() {
		part := parts[name]
		y := d.families[name]
		switch {
		case len(part) == 0:
		case y == nil:
			for _, c := range part {
				if c.New != nil {
					failed[c.Key] = d.missing[name]
				}
			}
		default:
			if err := y.apply(ctx, part, failed); err != nil {
				all = errors.Join(all, fmt.Errorf("writing %s rules: %w", name, err))
			}
		}
	}
	if all != nil {
		return all
	}
	d.Tracker.Applied(ctx, batch, failed)
	return failed.Err()
}

// maxRefused is the maximum number of refused frontends in a batch. If the kernel refuses more, the
// whole batch fails.
const maxRefused = 8

func (y *familyRules) apply(ctx context.Context, batch []dataplane.Change, failed dataplane.KeyErrors) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	wrote := y.look.Writing(y.tool, table)
	defer func() { wrote() }()
	if err := y.ensureJumps(ctx); err != nil {
		return err
	}
	bad := map[balancer.Key]error{}
	for {
		p := y.planLocked(batch, bad)
		if err := y.prepareSets(p); err != nil {
			return err
		}
		done, counts, err := y.tool.WriteCounted(ctx, table, p.groups, y.countedLocked(p))
		p.counts = counts
		y.noteLocked(p, done)
		if err := y.proveLocked(ctx, p.groups[:done]); err != nil {
			y.markUnprovedLocked(p, done)
			return err
		}
		if err == nil {
			break
		}
		_, ok := errors.AsType[*xtables.OpError](err)
		if done >= len(p.groups) || !p.owners[done].Addr.IsValid() || !ok || xtables.IsBusy(err) || len(bad) == maxRefused {
			return err
		}
		bad[p.owners[done]] = err
	}
	maps.Copy(failed, bad)
	y.removeOrphansLocked(ctx)
	for _, c := range batch {
		if bad[c.Key] == nil {
			delete(y.formerly, c.Key)
		}
	}
	return y.removeFormer(ctx)
}

// proveLocked checks that the kernel has the written chains, and records their hashes.
func (y *familyRules) proveLocked(ctx context.Context, written []xtables.Group) error {
	names, gone := hooks(), map[string]bool{}
	for _, g := range written {
		for _, c := range g.Write {
			names = append(names, c.Name)
		}
		for _, name := range g.Delete {
			names, gone[name] = append(names, name), true
		}
	}
	prints, err := y.tool.ChainHashes(ctx, table, rootChain, names)
	if err != nil {
		return err
	}
	for _, name := range names {
		c, ours := y.chains[name]
		got, there := prints[name]
		broken, known := y.broken[name]
		switch {
		case ours && (got.Rules != c.rules || known && got == broken):
			y.chains[name] = chainState{rules: got.Rules, epoch: c.epoch} // without a text hash, so the next plan writes it again
			err = xtables.NotWritten(table, name, got)
		case !ours && there && gone[name]:
			y.chains[name] = chainState{rules: got.Rules, epoch: y.epoch} // the chain is an orphan: it belongs to no frontend
			err = xtables.NotWritten(table, name, got)
		case ours || isHook(name):
			y.hashes[name] = knownHash{got, c.text}
			delete(y.broken, name)
		}
	}
	return err
}

// markUnprovedLocked makes the next plan rewrite the groups in p that were written, because the
// kernel's chains could not be verified.
func (y *familyRules) markUnprovedLocked(p *plan, done int) {
	for i, g := range p.groups[:done] {
		y.unsure = y.unsure || i >= p.treeFrom && i < p.treeTo
		for _, c := range g.Write {
			state := y.chains[c.Name]
			state.text = 0
			y.chains[c.Name] = state
		}
		if f := y.fronts[p.owners[i]]; f != nil {
			f.digest, f.proved = 0, false
		}
	}
}

func isHook(chain string) bool { return slices.Contains(hooks(), chain) }

// ensureJumps adds the jumps to the root chain, which it creates if necessary. It runs before the
// first rules are written, because reading the kernel's chains is slower when the table is full.
func (y *familyRules) ensureJumps(ctx context.Context) error {
	if y.jumps > 0 {
		return nil
	}
	exists, err := y.tool.ChainExists(ctx, table, rootChain)
	if err != nil {
		return err
	}
	var lines []string
	if !exists {
		lines = append(lines, "-N "+rootChain)
	}
	if err := replaceJumps(ctx, y.tool, "-j "+rootChain, y.strayChains, lines); err != nil {
		return err
	}
	y.jumps, y.strayChains = len(hooks()), nil // if stray chains still have jumps, the next comparison finds them
	return nil
}

// replaceJumps replaces all jumps to the root chain. Each hook gets rule as its only jump, or no
// jump if rule is "". The chains in astray get no jump. The commands in lines precede these changes
// in the same transaction.
func replaceJumps(ctx context.Context, tool *xtables.Tool, rule string, astray, lines []string) error {
	for _, base := range slices.Concat(hooks(), astray) {
		rules, err := tool.Rules(ctx, table, base)
		if err != nil {
			return err
		}
		want := ""
		if isHook(base) {
			want = rule
		}
		lines = append(lines, xtables.Join(rules, base, want, rootChain)...)
	}
	if len(lines) == 0 {
		return nil
	}
	return tool.Restore(ctx, xtables.Input(table, nil, lines...))
}

// prepareSets creates the sticky sets that a plan needs. It removes the clients of a slot's
// previous backend, because all of them would get the same new backend.
func (y *familyRules) prepareSets(p *plan) error {
	for ; y.slots < p.slots; y.slots++ {
		if err := createSet(y.sets, stickySet(y.slots, y.name), y.name); err != nil {
			return err
		}
	}
	for slot, keys := range p.clear {
		if err := y.clear(stickySet(slot, y.name), keys); err != nil {
			return err
		}
	}
	return nil
}

// createSet creates a sticky set. It replaces an unused set of another type.
func createSet(sets *ipset.Conn, name string, family inet.Family) error {
	err := sets.CreateTimed(name, ipset.HashIPPortIP, family)
	if !errors.Is(err, ipset.ErrDifferent) {
		return err
	}
	if err := sets.Destroy(name); err != nil {
		return fmt.Errorf("affinity needs the name of an existing ipset: %w: remove the rules that use it, then run ipset destroy %s", err, name)
	}
	return sets.CreateTimed(name, ipset.HashIPPortIP, family)
}

// clear removes these frontends' entries from a sticky set.
func (y *familyRules) clear(set string, keys []balancer.Key) error {
	header, err := y.sets.Header(set)
	if err != nil || header.Elements == 0 {
		return err
	}
	entries, err := y.sets.List(set)
	if err != nil {
		return err
	}
	of := map[ipset.Element]bool{}
	for _, k := range keys {
		of[ipset.Element{Addr: k.Addr, Proto: ipset.ProtocolOf(k.Proto), Port: k.Port.First()}] = true
	}
	theirs := slices.DeleteFunc(entries, func(e ipset.Element) bool { return !of[ipset.Element{Addr: e.Addr, Proto: e.Proto, Port: e.Port}] })
	return y.sets.Delete(set, theirs)
}

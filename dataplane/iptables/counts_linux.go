package iptables

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/inet"
)

// counterState is vipd's record of the kernel's counters. A rule counts the first packets of
// connections. When the rule's chain is rewritten, the counter restarts at zero, and readings keeps
// the old count.
type counterState struct {
	readings *counters.Readings
	// last maps each chain to its rules' counts at the last reading. The family's lock guards it.
	last map[string][]uint64
}

// chainOwners maps each chain to its frontend.
func (y *familyRules) chainOwners() map[string]*front {
	owners := make(map[string]*front, len(y.chains))
	for _, f := range y.fronts {
		owners[f.chain] = f
		for _, name := range f.below {
			owners[name] = f
		}
	}
	return owners
}

// countedLocked returns the names of counting chains that a plan replaces or deletes.
func (y *familyRules) countedLocked(p *plan) (names []string) {
	take := func(name string) {
		if c, ok := y.chains[name]; ok && slices.ContainsFunc(c.targets, netip.AddrPort.IsValid) {
			names = append(names, name)
		}
	}
	for i, g := range p.groups {
		if i >= p.treeFrom && i < p.treeTo {
			continue
		}
		for _, c := range g.Write {
			take(c.Name)
		}
		for _, name := range g.Delete {
			take(name)
		}
	}
	return names
}

func (y *familyRules) endLocked(f *front, name string, counts []uint64) {
	last := y.last[name]
	delete(y.last, name)
	for i, target := range y.chains[name].targets {
		var n uint64
		if i < len(counts) {
			n = counts[i]
		}
		if i < len(last) && n < last[i] { // another program has reset the chain since the last reading
			n += last[i]
		}
		if target.IsValid() {
			y.readings.End(f.total(target), n)
		}
	}
}

// countLastLocked saves the counts of all chains. Call it after the jumps to the chains are
// removed, and before the chains are deleted. If the counters can't be read, it uses the last
// reading.
func (y *familyRules) countLastLocked(ctx context.Context) {
	counts, _ := y.tool.FullCounts(ctx, table, frontPrefix)
	owners := y.chainOwners()
	for name := range y.chains {
		if f := owners[name]; f != nil {
			y.endLocked(f, name, counts[name])
		}
	}
	y.readings.Read(map[counters.BackendKey]counters.Count{}, time.Now()) // later calls to counts return this result
}

func (f *front) total(backend netip.AddrPort) counters.BackendKey {
	return counters.BackendKey{Port: counters.Port{Service: f.service, Name: f.port}, Addr: onPort(backend, f.first)}
}

// counts returns all counts, or the result of the last reading while the table is written or was
// read just now. The result is immutable.
func (y *familyRules) counts(ctx context.Context) map[counters.BackendKey]counters.Count {
	started := time.Now()
	shown, due := y.readings.Shown()
	if !due || !y.mu.TryLock() {
		return shown
	}
	epoch := y.epoch
	y.mu.Unlock()
	counts, err := y.tool.FullCounts(ctx, table, frontPrefix)
	if err != nil || !y.mu.TryLock() {
		return shown
	}
	defer y.mu.Unlock()
	return y.readings.Read(y.liveLocked(counts, epoch), started)
}

// liveLocked returns the counts of existing rules. It omits chains that were written after epoch,
// when counts was read, because readings already contains their previous counts.
func (y *familyRules) liveLocked(counts map[string][]uint64, epoch uint64) map[counters.BackendKey]counters.Count {
	owners := y.chainOwners()
	all := make(map[counters.BackendKey]counters.Count, len(y.chains))
	for name, c := range y.chains {
		f := owners[name]
		if f == nil || c.epoch > epoch {
			continue
		}
		now, before := counts[name], y.last[name]
		for i, target := range c.targets {
			if !target.IsValid() || i >= len(now) {
				continue
			}
			if i < len(before) && now[i] < before[i] { // another program has written the chain
				y.readings.End(f.total(target), before[i])
			}
			at := f.total(target)
			all[at] = all[at].Plus(counters.Count{All: now[i], Kept: now[i]})
		}
		if len(now) > 0 {
			y.last[name] = now
		}
	}
	return all
}

// Counters implements [dataplane.Dataplane]. It returns each backend's total and live connections,
// and bytes if conntrack accounts for them.
func (d *Dataplane) Counters() []dataplane.FrontendCount {
	ctx, cancel := context.WithTimeout(context.Background(), countTime)
	defer cancel()
	var counts []map[counters.BackendKey]counters.Count
	for _, name := range inet.Families() {
		if y := d.families[name]; y != nil {
			counts = append(counts, y.counts(ctx))
		}
	}
	return d.Tracker.Counters(ctx, counts...)
}

// countTime limits a reading of all counters.
const countTime = 10 * time.Second

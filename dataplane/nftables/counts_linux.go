package nftables

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/nft"
)

// counterState is vipd's record of the kernel's counters. An element counts the first packets of
// connections. When an element is replaced, the new element starts at zero, and readings keeps the
// old count.
type counterState struct {
	// counter is a separate connection to the kernel, because changes must not wait for a large
	// dump.
	counter *nft.Conn

	// reading is held while all counters are read. It guards vain, which counts consecutive
	// readings that were invalidated by changes.
	reading  sync.Mutex
	vain     int
	readings *counters.Readings
}

// countTime limits a reading of the existing flows.
const countTime = 10 * time.Second

// Counters implements dataplane.Dataplane.
func (d *Dataplane) Counters() []dataplane.FrontendCount {
	ctx, cancel := context.WithTimeout(context.Background(), countTime)
	defer cancel()
	var all []map[counters.BackendKey]counters.Count
	for _, y := range d.families {
		all = append(all, y.counted())
	}
	if d.direct != nil {
		all = merged(append(all, d.direct.Counted()))
	}
	return d.Tracker.Counters(ctx, all...)
}

// merged adds the counts in all, and returns the sums in a single map. For a dr backend, the NAT
// tables also count connections from programs on this host. The last map in all has the dr counts;
// if it is empty, merged returns the other maps unchanged.
func merged(all []map[counters.BackendKey]counters.Count) []map[counters.BackendKey]counters.Count {
	if len(all[len(all)-1]) == 0 {
		return all[:len(all)-1]
	}
	sums := map[counters.BackendKey]counters.Count{}
	for _, counts := range all {
		for k, n := range counts {
			sums[k] = sums[k].Plus(n)
		}
	}
	return []map[counters.BackendKey]counters.Count{sums}
}

// total returns the key under which the connections to a backend of a frontend are counted.
func total(label string, backend netip.AddrPort) counters.BackendKey {
	service, port, _ := strings.Cut(label, "/")
	return counters.BackendKey{Port: counters.Port{Service: balancer.Name(service), Name: port}, Addr: backend}
}

// maxDiscardedReads is the maximum number of consecutive readings that changes to frontends may
// invalidate. The next reading then blocks changes.
const maxDiscardedReads = 3

// counted returns all counts, or the result of the last reading while frontends are changing or the
// kernel was read just now. The result is immutable.
func (y *familyTable) counted() map[counters.BackendKey]counters.Count {
	began := time.Now()
	shown, due := y.readings.Shown()
	if !due || !y.reading.TryLock() {
		return shown
	}
	defer y.reading.Unlock()
	if y.vain++; y.vain > maxDiscardedReads {
		y.mu.Lock()
		defer y.mu.Unlock()
		live, err := y.readCounts(y.countersLocked())
		if err != nil {
			return shown
		}
		y.vain = 0
		return y.readings.Read(live, began)
	}
	if !y.mu.TryLock() {
		return shown
	}
	names, epoch := y.countersLocked(), y.epoch
	y.mu.Unlock()
	live, err := y.readCounts(names)
	if err != nil || !y.mu.TryLock() {
		return shown
	}
	defer y.mu.Unlock()
	if y.epoch != epoch { // the dump contains deleted elements, and may lack new ones
		return shown
	}
	y.vain = 0
	return y.readings.Read(live, began)
}

// counterName is the part of a [counters.BackendKey] that a frontend's elements do not contain.
type counterName struct {
	label       string
	firstTarget uint16
}

// countersLocked returns the names under which the connections of each frontend are counted.
func (y *familyTable) countersLocked() map[balancer.Key]counterName {
	names := make(map[balancer.Key]counterName, len(y.fronts))
	for k, f := range y.fronts {
		names[k] = counterName{f.label, f.firstTarget}
	}
	return names
}

func (s *schema) counted() []*nft.Set {
	return []*nft.Set{s.single.eps, s.single.backends, s.ranged.eps, s.ranged.backends}
}

func (y *familyTable) readCounts(names map[balancer.Key]counterName) (map[counters.BackendKey]counters.Count, error) {
	live := map[counters.BackendKey]counters.Count{}
	for _, set := range y.schema.counted() {
		elems, err := y.counter.Elements(y.schema.table, set.Name)
		if err != nil {
			return nil, err
		}
		for _, e := range elems {
			if k, _, ok := keyOf(e.Key, y.schema.table.Family); ok {
				name := names[k]
				at := total(name.label, backendOf(k, e.Data, name.firstTarget))
				live[at] = live[at].Plus(counters.Count{All: e.Packets, Kept: e.Packets})
			}
		}
	}
	return live, nil
}

func (y *familyTable) endLocked(gone []nft.FoundElem) {
	for _, x := range gone {
		k, _, ok := keyOf(x.Key, y.schema.table.Family)
		if f := y.fronts[k]; ok && f != nil {
			y.readings.End(total(f.label, backendOf(k, x.Data, f.firstTarget)), x.Packets)
		}
	}
}

// countLastLocked reads and saves the counts of all elements before they are deleted.
func (y *familyTable) countLastLocked() {
	for _, set := range y.schema.counted() {
		elems, _ := y.table.Elements(y.schema.table, set.Name)
		y.endLocked(elems)
	}
	y.readings.Read(map[counters.BackendKey]counters.Count{}, time.Now()) // later calls to counted return this result
}

package direct

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/nft"
)

// maxBatchElements limits the number of elements in a transaction.
const maxBatchElements = 10_000

// Table manages the table in the kernel. Its methods are safe for concurrent use.
type Table struct {
	families []*family // IPv4 and IPv6
	table    *nft.Maintained
	network  *network
	readings *counters.Readings

	mu sync.Mutex // guards the fields below
	// fronts holds the frontends that the table should have. datagrams holds all UDP frontends on
	// each address. A frontend that NAT serves is nil.
	fronts    map[balancer.Key]*front
	datagrams map[netip.Addr]map[balancer.Key]*front
	// found holds the kernel's elements of each frontend whose elements differ from fronts.
	found map[balancer.Key]group
	// layout and chains are the layout and the chain names after the last transaction.
	layout layout
	chains map[string]bool
	// sound reports whether the table has been read since the last failure and has vipd's chains
	// and sets.
	sound bool
	read  bool
	// damage describes the first damage that was found since the last transaction.
	damage string
	// unreported reports whether the last call to Apply failed without returning an error.
	unreported bool
}

// Open tests with a trial table whether the kernel can forward frames. It returns a table that
// adopts an earlier process's elements.
func Open() (*Table, error) {
	conn, err := nft.Open()
	if err != nil {
		return nil, err
	}
	t := &Table{
		families: []*family{newFamily(nft.IPv4, "4"), newFamily(nft.IPv6, "6")},
		table:    &nft.Maintained{Conn: conn, Table: nft.Table{Family: nft.Netdev, Name: tableName}},
		readings: counters.NewReadings(),
		fronts:   map[balancer.Key]*front{}, datagrams: map[netip.Addr]map[balancer.Key]*front{}, found: map[balancer.Key]group{}, chains: map[string]bool{},
	}
	if err = t.try(); err == nil {
		err = conn.Listen()
	}
	if err == nil {
		t.network, err = openNetwork()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("forwarding frames: %w", err), conn.Close())
	}
	return t, nil
}

// try creates a trial table with a rule of each kind, and deletes it.
func (t *Table) try() error {
	x, tx := nft.Table{Family: nft.Netdev, Name: trialName}, &nft.Tx{}
	tx.AddTable(x)
	trial := device{name: "lo", index: 1}
	addChains(tx, x, t.families, layout{arriving: []device{trial}, leaving: []device{trial}}, []chain{{family: nft.IPv4, proto: balancer.TCP, byPort: true}, {family: nft.IPv6, proto: balancer.UDP}})
	return (&nft.Maintained{Conn: t.table.Conn, Table: x}).Try(tx)
}

// Close closes the connections to the kernel. Unless keep is set, it first deletes the table.
// Counted still works afterwards.
func (t *Table) Close(keep bool) error {
	t.readings.Renew()
	t.Counted()
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	if !keep {
		t.countLast()
		t.fronts = map[balancer.Key]*front{}
		err = t.table.Remove()
	}
	return errors.Join(err, t.network.close(), t.table.Close())
}

// Apply adds or updates the batch's frontends with forward = "dr", and removes the batch's other
// frontends from the table. If the table can't be written, it returns an error for each frontend in
// the batch that affects the table. If none does, Follow retries the write and returns the error.
func (t *Table) Apply(ctx context.Context, batch []dataplane.Change) dataplane.KeyErrors {
	failed := dataplane.KeyErrors{}
	t.mu.Lock()
	defer t.mu.Unlock()
	changed, now := map[balancer.Key]*front{}, time.Now()
	touched := map[netip.Addr]bool{}
	for _, c := range batch {
		next := newFront(c.New, t.current(c.Key), now)
		if next != nil || t.fronts[c.Key] != nil || t.found[c.Key] != nil {
			changed[c.Key] = next
		}
		if c.Key.Proto == balancer.UDP {
			t.noteDatagrams(c, next)
			touched[c.Key.Addr] = true
		}
	}
	t.changeFragments(touched, changed)
	if t.read && len(changed) == 0 && len(t.found) == 0 && (t.sound || len(t.fronts) == 0) {
		return failed
	}
	if err := t.reconcile(ctx, changed); err != nil {
		for _, c := range batch {
			_, concerned := changed[c.Key]
			_, fragments := changed[balancer.Key{Addr: c.Key.Addr, Proto: c.Key.Proto}]
			if concerned || fragments {
				failed[c.Key] = err
			}
		}
		t.unreported = len(failed) == 0
	}
	return failed
}

// current returns a frontend's current front, or nil. If an earlier process left the frontend, the
// front has only slots.
func (t *Table) current(k balancer.Key) *front {
	if f := t.fronts[k]; f != nil {
		return f
	}
	if g := t.found[k]; g != nil {
		return &front{slots: t.family(k).slotsIn(g)}
	}
	return nil
}

func (t *Table) family(k balancer.Key) *family {
	if k.Addr.Is4() {
		return t.families[0]
	}
	return t.families[1]
}

// noteDatagrams updates datagrams after the change c to a UDP frontend, whose new front is next.
func (t *Table) noteDatagrams(c dataplane.Change, next *front) {
	on := t.datagrams[c.Key.Addr]
	if c.New == nil {
		delete(on, c.Key)
		if len(on) == 0 {
			delete(t.datagrams, c.Key.Addr)
		}
		return
	}
	if on == nil {
		on = map[balancer.Key]*front{}
		t.datagrams[c.Key.Addr] = on
	}
	on[c.Key] = next
}

// changeFragments adds to changed the fronts for fragments to the addresses in touched.
func (t *Table) changeFragments(touched map[netip.Addr]bool, changed map[balancer.Key]*front) {
	for a := range touched {
		k := balancer.Key{Addr: a, Proto: balancer.UDP}
		if next := fragmentsOf(t.datagrams[a]); next != nil || t.fronts[k] != nil || t.found[k] != nil {
			changed[k] = next
		}
	}
}

// reconcile writes the changed frontends, and repairs other parts of the table. After a failure, it
// reads the table and retries.
func (t *Table) reconcile(ctx context.Context, changed map[balancer.Key]*front) (err error) {
	for range nft.Tries {
		if !t.sound {
			if err = t.readLocked(); err != nil {
				return err
			}
		}
		if err = t.write(ctx, changed); err == nil {
			t.unreported = false
			return nil
		}
		t.sound = false
	}
	return fmt.Errorf("writing the table %s: %w", t.table.Table, err)
}

func (t *Table) write(ctx context.Context, changed map[balancer.Key]*front) error {
	wanted := maps.Clone(t.fronts)
	for k, f := range changed {
		if wanted[k] = f; f == nil {
			delete(wanted, k)
		}
	}
	if len(wanted) == 0 && !t.awaits(changed) {
		return t.removeLocked()
	}
	endpoints, needed := partsOf(wanted)
	if _, err := t.network.hasMoved(); err != nil { // read before the layout, so that no later event is lost
		return err
	}
	next, err := retryInterrupted(func() (layout, error) { return layoutOf(t.network.nl, endpoints, t.layout.via) })
	if err != nil {
		return err
	}
	keys := t.differing(wanted, changed, next)
	names := map[string]bool{arriving: true}
	for _, c := range needed {
		names[c.String()] = true
	}
	for _, d := range next.arriving {
		names[chainOf(d)] = true
	}
	var tx nft.Tx
	if !t.sound || !maps.Equal(names, t.chains) || !slices.Equal(next.arriving, t.layout.arriving) || !slices.Equal(next.leaving, t.layout.leaving) {
		tx.AddTable(t.table.Table)
		addChains(&tx, t.table.Table, t.families, next, needed)
	}
	if err := t.writeElements(ctx, &tx, keys, wanted, next); err != nil {
		return err
	}
	t.layout, t.sound, t.damage, t.network.moved = next, true, "", false
	if t.awaits(nil) {
		return nil
	}
	return t.dropChains(ctx, names)
}

// partsOf returns the frontends' endpoints, and the chains that they need.
func partsOf(wanted map[balancer.Key]*front) (endpoints map[netip.Addr]bool, needed []chain) {
	endpoints = map[netip.Addr]bool{}
	chains := map[chain]bool{}
	for _, f := range wanted {
		for _, a := range f.endpoints {
			endpoints[a] = true
		}
		if f.frontend != nil {
			for _, c := range f.chain.needs() {
				chains[c] = true
			}
		}
	}
	return endpoints, slices.SortedFunc(maps.Keys(chains), func(a, b chain) int { return strings.Compare(a.String(), b.String()) })
}

// awaits reports whether an earlier process has left elements that lead to chains, for frontends
// that are not in changed. A later batch will adopt or delete these elements.
func (t *Table) awaits(changed map[balancer.Key]*front) bool {
	for k, g := range t.found {
		if _, now := changed[k]; now || t.fronts[k] != nil {
			continue
		}
		for _, v := range g {
			if v.to != "" {
				return true
			}
		}
	}
	return false
}

// differing returns the keys of the frontends whose elements may have to change in the kernel.
func (t *Table) differing(wanted, changed map[balancer.Key]*front, next layout) []balancer.Key {
	keys := map[balancer.Key]bool{}
	for k := range changed {
		keys[k] = true
	}
	for k := range t.found {
		if wanted[k] != nil {
			keys[k] = true
		}
	}
	for k, f := range wanted {
		if slices.ContainsFunc(f.endpoints, func(a netip.Addr) bool { return next.via[a] != t.layout.via[a] }) {
			keys[k] = true
		}
	}
	return slices.SortedFunc(maps.Keys(keys), balancer.Key.Compare)
}

// writeElements adds the changes to these frontends' elements to tx, and commits it. If there are
// many elements, it uses several transactions.
func (t *Table) writeElements(ctx context.Context, tx *nft.Tx, keys []balancer.Key, wanted map[balancer.Key]*front, next layout) error {
	for len(keys) > 0 || tx.Len() > 0 {
		e, size, n := changes{map[*nft.Set][]nft.Elem{}, map[*nft.Set][]nft.Elem{}}, 0, 0
		for ; n < len(keys) && size < maxBatchElements; n++ {
			y := t.family(keys[n])
			was, read := t.found[keys[n]]
			if !read {
				was = y.elems(keys[n], t.fronts[keys[n]], t.layout.via)
			}
			size += e.diff(was, y.elems(keys[n], wanted[keys[n]], next.via))
		}
		for _, y := range t.families {
			for _, s := range y.sets() {
				tx.Delete(t.table.Table, s, e.remove[s]...)
				tx.Create(t.table.Table, s, e.add[s]...)
			}
		}
		if err := t.commit(ctx, tx); err != nil {
			return err
		}
		for _, k := range keys[:n] {
			delete(t.found, k)
			if t.fronts[k] = wanted[k]; wanted[k] == nil {
				delete(t.fronts, k)
			}
		}
		*tx, keys = nft.Tx{}, keys[n:]
	}
	return nil
}

// dropChains deletes the chains that are not in names. The kernel itself deletes a chain whose
// device is removed.
func (t *Table) dropChains(ctx context.Context, names map[string]bool) error {
	if maps.Equal(t.chains, names) {
		return nil
	}
	there, err := t.table.Chains(t.table.Table)
	if err != nil {
		return err
	}
	var tx nft.Tx
	var unneeded []string
	for _, c := range there {
		if !names[c.Name] {
			tx.FlushChain(t.table.Table, c.Name)
			unneeded = append(unneeded, c.Name)
		}
	}
	for _, name := range unneeded {
		tx.DeleteChain(t.table.Table, name)
	}
	err = t.commit(ctx, &tx)
	if err == nil {
		t.chains = names
	}
	return err
}

func (t *Table) commit(ctx context.Context, tx *nft.Tx) error {
	err := t.table.Commit(tx)
	if tx.Len() > 0 {
		dataplane.Wrote(ctx, tx.Bytes)
	}
	t.count(tx.Deleted)
	return err
}

// removeLocked deletes the table when no frontend needs it, and saves its counts.
func (t *Table) removeLocked() error {
	t.countLast()
	err := t.table.Remove()
	if err == nil {
		t.fronts, t.found, t.chains, t.layout, t.sound, t.damage = map[balancer.Key]*front{}, map[balancer.Key]group{}, map[string]bool{}, layout{}, false, ""
	}
	return err
}

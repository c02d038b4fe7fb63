package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/dnat"
	"vipd/dataplane/internal/nft"
)

// settleTime is the maximum time between the first and the last lookup of a packet in a chain. A
// transaction that deletes elements waits this long after the transaction that stops chains from
// using them. A packet passes a chain within microseconds, with interrupts off or in a softirq.
const settleTime = time.Millisecond

// maxBatchElements limits the number of elements in a transaction. When a transaction reaches the
// limit, the remaining frontends are left to the next transaction. While any program listens to
// nf_tables events, the kernel keeps 4 KiB for each element until the transaction ends, and memory
// that does not fit into the CPU's caches is slow. A single transaction with 100,000 frontends of
// 10 backends would need 4 GB, and with 1,000 frontends that choose by hash 2 GB.
const maxBatchElements = 10_000

// Apply makes the kernel's tables match the changes of a batch. Some changes need two transactions:
// the first creates new objects and sends packets to them, and the second deletes unused objects.
// Then Apply removes the flows that conntrack still sends to removed backends.
func (d *Dataplane) Apply(ctx context.Context, batch []dataplane.Change) error {
	failed := dataplane.KeyErrors{}
	if d.direct != nil {
		failed = d.direct.Apply(ctx, batch)
	}
	for _, y := range d.families {
		own := slices.DeleteFunc(slices.Clone(batch), func(c dataplane.Change) bool { return d.family(c.Key) != y })
		for len(own) > 0 {
			done, err := y.apply(ctx, own)
			if err != nil {
				return fmt.Errorf("writing the table %s: %w", y.schema.table, err)
			}
			own = own[done:]
		}
	}
	d.Tracker.Applied(ctx, batch, failed)
	return failed.Err()
}

// edit is a batch of changes, as two transactions.
type edit struct {
	first, then nft.Tx
	// These maps hold the elements to change in each set. The first transaction deletes the
	// elements in replace, and then adds the elements in add. The second deletes the elements in
	// remove.
	add, replace, remove map[*nft.Set][]nft.Elem
	// next holds the frontends after the changes. nil means that the frontend is removed.
	next map[balancer.Key]*front
	// users is the change to each chain's number of users (frontends). made holds the chains that
	// the first transaction writes.
	users  map[string]int
	made   map[string]chain
	unused []string
}

// size returns the total number of elements that the two transactions add and delete.
func (e *edit) size() (n int) {
	for _, sets := range []map[*nft.Set][]nft.Elem{e.add, e.replace, e.remove} {
		for _, elems := range sets {
			n += len(elems)
		}
	}
	return n
}

// apply makes the first changes in a batch, and returns their number. It retries if another program
// changes the table at the same time. It also retries if the table differs from what was last read,
// because a dump may lack elements while the kernel enlarges a map.
func (y *familyTable) apply(ctx context.Context, batch []dataplane.Change) (done int, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	reread := false
	for range nft.Tries {
		done, err = y.applyLocked(ctx, batch)
		differs := errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT)
		if !errors.Is(err, nft.ErrBusy) && (reread || !differs) {
			break
		}
		reread = reread || differs
	}
	return done, err
}

func (y *familyTable) applyLocked(ctx context.Context, batch []dataplane.Change) (done int, err error) {
	if !y.sound {
		if _, err := y.readLocked(); err != nil {
			return 0, err
		}
	}
	e := &edit{
		add: map[*nft.Set][]nft.Elem{}, replace: map[*nft.Set][]nft.Elem{}, remove: map[*nft.Set][]nft.Elem{},
		next: map[balancer.Key]*front{}, users: map[string]int{}, made: map[string]chain{},
	}
	if !y.sound {
		y.schema.writeBase(&e.first, y.mark)
		for name, c := range y.chains {
			if c.number > unservedNumber {
				e.first.Create(y.schema.table, y.schema.choices, choiceElem(c.number, name))
			}
		}
		y.table.Shape = nil
	}
	for ; done < len(batch) && e.size() < maxBatchElements; done++ {
		y.addChange(e, batch[done])
	}
	y.finish(e)
	if err := y.commit(ctx, &e.first); err != nil {
		return 0, err
	}
	y.sound, y.damage = true, ""
	y.noteMade(e)
	if e.then.Len() > 0 {
		time.Sleep(settleTime)
		if err := y.commit(ctx, &e.then); err != nil {
			y.markUnknownLocked(err) // only the first transaction has taken effect
			return 0, err
		}
	}
	y.noteLocked(e)
	return done, nil
}

// addChange adds the elements and chains of a changed frontend to the edit.
func (y *familyTable) addChange(e *edit, c dataplane.Change) {
	was, next := y.fronts[c.Key], &front{}
	if was == nil {
		was = &front{}
	}
	e.countUses(was, -1)
	if c.New != nil {
		next = y.newFront(c.New, was)
		e.countUses(next, 1)
		y.addChains(e, c.Key, was, next)
		e.next[c.Key] = next
	} else {
		e.next[c.Key] = nil
		if was.number != 0 {
			e.remove[y.schema.frontends] = append(e.remove[y.schema.frontends], nft.Elem{Key: key(c.Key)})
		}
	}
	if c.Key.Port.IsRange() {
		y.addRange(e, c.Key, was, next)
	}
	id := func(n uint32) []byte { return nft.Bytes{}.Number(n) }
	backend := func(a netip.AddrPort) []byte { return data(c.Key, a) }
	maps := y.schema.placesOf(c.Key)
	setElement(e, maps.digests, key(c.Key), was.stored, next.stored, func(d dataplane.Digest) []byte {
		return nft.Bytes{}.Number(uint32(d >> 32)).Number(uint32(d))
	})
	setNumbered(e, maps.eps, c.Key, was.eps, next.eps, backend)
	setNumbered(e, maps.slots, c.Key, was.slots, next.slots, id)
	for n, is := range next.ids {
		setElement(e, maps.backends, key(c.Key).Number(n), was.ids[n], is, backend)
	}
	for n := range was.ids {
		if _, stays := next.ids[n]; !stays {
			e.remove[maps.backends] = append(e.remove[maps.backends], nft.Elem{Key: key(c.Key).Number(n)})
		}
	}
}

// addRange changes the elements that send packets to a frontend with a port range. The first
// transaction also deletes obsolete elements, because another range may replace them.
func (y *familyTable) addRange(e *edit, k balancer.Key, was, next *front) {
	s := y.schema
	obsolete, missing := was.open, next.open
	if was.label == next.label {
		obsolete, missing = without(was.open, next.open), without(next.open, was.open)
	}
	e.replace[s.ranges] = append(e.replace[s.ranges], rangeElems(k, was.label, obsolete)...)
	e.add[s.ranges] = append(e.add[s.ranges], rangeElems(k, next.label, missing)...)
	for port := range was.targets {
		setElement(e, s.ranged.targets, targetKey(k, port), was.targets[port], next.targets[port], targetData)
	}
	for port := range next.targets {
		if _, ok := was.targets[port]; !ok {
			setElement(e, s.ranged.targets, targetKey(k, port), 0, next.targets[port], targetData)
		}
	}
	if was.chain == next.chain {
		return
	}
	if was.chain != "" {
		e.replace[s.rangeChoices] = append(e.replace[s.rangeChoices], rangeChoice(k, was.chain))
	}
	if next.chain != "" {
		e.add[s.rangeChoices] = append(e.add[s.rangeChoices], rangeChoice(k, next.chain))
	}
}

func without(a, b []balancer.PortRange) []balancer.PortRange {
	return slices.DeleteFunc(slices.Clone(a), func(p balancer.PortRange) bool { return slices.Contains(b, p) })
}

// countUses adds the argument by to the number of users of each chain that a frontend needs.
func (e *edit) countUses(f *front, by int) {
	for _, name := range f.uses() {
		e.users[name] += by
	}
}

// newFront returns the kernel's form of f. It orders the slots so that most existing elements stay.
func (y *familyTable) newFront(f *balancer.Frontend, was *front) *front {
	form := render(f)
	next := &front{digest: dnat.Digest(f), stored: dnat.Digest(f), choice: form.choice, label: form.label, chain: form.choice.chain(f.Key), open: f.Open, targets: form.targets}
	next.firstTarget = firstTargetOf(f.Key, form.targets)
	if f.Key.Port.IsRange() && len(f.Open) == 0 {
		next.label = "" // no element has the label
	}
	if !form.choice.indirect() {
		next.eps = arrange(was.eps, form.slots, form.fixed)
		return next
	}
	next.ids = make(map[uint32]netip.AddrPort, len(form.ids))
	for a, id := range form.ids {
		next.ids[id] = a
	}
	slots := make([]uint32, len(form.slots))
	for i, a := range form.slots {
		slots[i] = form.ids[a]
	}
	next.slots = arrange(was.slots, slots, form.fixed)
	return next
}

// setNumbered updates a frontend's numbered elements in a map: it replaces the old values (was)
// with the new values (next). The zero value means a missing element.
func setNumbered[V comparable](e *edit, set *nft.Set, k balancer.Key, was, next []V, write func(V) []byte) {
	at := func(all []V, i int) (v V) {
		if i < len(all) {
			v = all[i]
		}
		return v
	}
	for i := range max(len(was), len(next)) {
		setElement(e, set, key(k).Number(uint32(i)), at(was, i), at(next, i), write)
	}
}

// setElement replaces an element's value was with next. The zero value means a missing element. The
// second transaction deletes obsolete elements.
func setElement[V comparable](e *edit, set *nft.Set, at []byte, was, next V, write func(V) []byte) {
	var none V
	switch {
	case was == next:
	case next == none:
		e.remove[set] = append(e.remove[set], nft.Elem{Key: at})
	case was == none:
		e.add[set] = append(e.add[set], nft.Elem{Key: at, Data: write(next)})
	default:
		e.replace[set] = append(e.replace[set], nft.Elem{Key: at})
		e.add[set] = append(e.add[set], nft.Elem{Key: at, Data: write(next)})
	}
}

// addChains adds the chains that a frontend needs, and its element in the map called frontends.
func (y *familyTable) addChains(e *edit, k balancer.Key, was, next *front) {
	for _, name := range next.uses() {
		switch name {
		case clearing:
			y.ensureChain(e, name, choice{method: byNone})
		case unserved:
			next.number = unservedNumber
		case next.choice.ownChain:
			y.ensureChain(e, name, next.choice.withOwn())
		default:
			next.number = y.ensureChain(e, name, next.choice)
		}
	}
	if k.Port.IsRange() {
		next.number = 0
		return
	}
	frontends := y.schema.frontends
	if was.number == next.number && was.label == next.label {
		return
	}
	if was.number != 0 {
		e.replace[frontends] = append(e.replace[frontends], nft.Elem{Key: key(k)})
	}
	e.add[frontends] = append(e.add[frontends], nft.Elem{Key: key(k), Data: nft.Bytes{}.Number(next.number), Comment: next.label})
}

// ensureChain writes the chain for choice c, unless the existing chain is the same. It returns the
// chain's number, and assigns one if necessary.
func (y *familyTable) ensureChain(e *edit, name string, c choice) uint32 {
	current, made := e.made[name]
	if there := y.chains[name]; there != nil && !made {
		current = chain{number: there.number, choice: there.choice}
	}
	if current.choice != c {
		y.schema.writeChoice(&e.first, name, c, y.mark)
	}
	if current.number == 0 && name != clearing && c.ports == 0 {
		y.last++
		current.number = y.last
		e.add[y.schema.choices] = append(e.add[y.schema.choices], choiceElem(current.number, name))
	}
	current.choice = c
	e.made[name] = current
	return current.number
}

// finish adds the collected elements and unused chains to the transactions. In the first
// transaction, the maps whose elements refer to other objects come last, because these objects must
// already exist.
func (y *familyTable) finish(e *edit) {
	s := y.schema
	for _, set := range append(s.placeSets(), s.choices, s.frontends, s.rangeChoices, s.ranges) {
		e.first.Delete(s.table, set, e.replace[set]...)
		e.first.Create(s.table, set, e.add[set]...)
	}
	e.first.Delete(s.table, s.frontends, e.remove[s.frontends]...) // after the first transaction, no packet needs the elements that the second deletes
	for _, set := range s.placeSets() {
		e.then.Delete(s.table, set, e.remove[set]...)
	}
	for name := range e.users {
		y.dropUnused(e, name)
	}
	for _, name := range y.unused {
		if _, changed := e.users[name]; !changed {
			y.dropUnused(e, name)
		}
	}
	for _, name := range e.unused { // after all of them are empty, because another program may have made them refer to each other
		e.then.DeleteChain(s.table, name)
	}
}

// dropUnused makes the second transaction empty and delete a chain that no frontend uses.
func (y *familyTable) dropUnused(e *edit, name string) {
	c := y.chains[name]
	if c == nil || c.users+e.users[name] != 0 || name == unserved {
		return
	}
	if c.number != 0 {
		e.then.Delete(y.schema.table, y.schema.choices, choiceElem(c.number, ""))
	}
	e.then.FlushChain(y.schema.table, name)
	e.unused = append(e.unused, name)
}

func (y *familyTable) noteMade(e *edit) {
	for name, c := range e.made {
		if y.chains[name] == nil {
			y.chains[name] = &chain{}
		}
		y.chains[name].choice, y.chains[name].number = c.choice, c.number
	}
}

func (y *familyTable) noteLocked(e *edit) {
	for k, next := range e.next {
		if next == nil {
			delete(y.fronts, k)
			continue
		}
		y.fronts[k] = next
	}
	for name, n := range e.users {
		if y.chains[name] == nil {
			y.chains[name] = &chain{}
		}
		if y.chains[name].users += n; y.chains[name].users == 0 {
			delete(y.chains, name)
		}
	}
	for _, name := range e.unused {
		delete(y.chains, name)
	}
	y.unused = nil
}

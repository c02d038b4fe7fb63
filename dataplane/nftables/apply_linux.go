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

// settle is how long packets may be between two lookups of one chain: what a transaction has stopped leading to may be
// deleted after it. A packet passes a chain within microseconds, with interrupts off or in a softirq.
const settle = time.Millisecond

// atOnce is with how many elements no further frontend comes into a transaction. While any program listens to nf_tables, the kernel
// keeps 4 KiB for each element until it ends, which memory in no cache makes slow: all 100,000 frontends of 10 backends at once
// would be 4 GB, and 1,000 that choose by hash 2 GB.
const atOnce = 10_000

// Apply makes each key what its change says, in two transactions for some of them: the first makes what is new and leads
// packets there, the second deletes what nothing leads to any more. Then flows that conntrack still leads to backends that
// are gone are dropped.
func (d *Dataplane) Apply(ctx context.Context, batch []dataplane.Change) error {
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
	failed := dataplane.KeyErrors{}
	d.Tracker.Applied(ctx, batch, failed)
	return failed.Err()
}

// edit is a batch as two transactions.
type edit struct {
	first, then nft.Tx
	// add and replace are elements of the first transaction: what it adds, and what it deletes before; remove are those that
	// the second deletes.
	add, replace, remove map[*nft.Set][]nft.Elem
	// next are the frontends as they are after it; nil means gone.
	next map[balancer.Key]*front
	// users says how many frontends more use each chain, and made what those are that are written.
	users map[string]int
	made  map[string]chain
}

// size is how many elements it adds and deletes.
func (e *edit) size() (n int) {
	for _, sets := range []map[*nft.Set][]nft.Elem{e.add, e.replace, e.remove} {
		for _, elems := range sets {
			n += len(elems)
		}
	}
	return n
}

// apply makes the first changes of a batch, and returns how many; again where another program changes the table meanwhile, and once
// more where the table is not as it was read: a list that the kernel gives while it makes a map larger may lack elements.
func (y *family) apply(ctx context.Context, batch []dataplane.Change) (done int, err error) {
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

func (y *family) applyLocked(ctx context.Context, batch []dataplane.Change) (done int, err error) {
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
		y.schema.skeleton(&e.first, y.mark)
		for name, c := range y.chains {
			if c.number > unservedNumber {
				e.first.Create(y.schema.table, y.schema.choices, leads(c.number, name))
			}
		}
		y.table.Shape = nil
	}
	for ; done < len(batch) && e.size() < atOnce; done++ {
		y.edit(e, batch[done])
	}
	y.finish(e)
	if err := y.commit(ctx, &e.first); err != nil {
		return 0, err
	}
	y.sound, y.damage = true, ""
	y.noteMade(e)
	if e.then.Len() > 0 {
		time.Sleep(settle)
		if err := y.commit(ctx, &e.then); err != nil {
			y.doubtLocked(err) // the first has an effect
			return 0, err
		}
	}
	y.noteLocked(e)
	return done, nil
}

// edit adds one change.
func (y *family) edit(e *edit, c dataplane.Change) {
	was, next := y.fronts[c.Key], &front{}
	if was == nil {
		was = &front{}
	}
	e.use(was, -1)
	if c.New != nil {
		next = y.front(c.New, was)
		e.use(next, 1)
		y.lead(e, c.Key, was, next)
		e.next[c.Key] = next
	} else {
		e.next[c.Key] = nil
		if was.number != 0 {
			e.remove[y.schema.frontends] = append(e.remove[y.schema.frontends], nft.Elem{Key: key(c.Key)})
		}
	}
	id := func(n uint32) []byte { return nft.Bytes{}.Number(n) }
	backend := func(a netip.AddrPort) []byte { return data(a) }
	element(e, y.schema.digests, key(c.Key), was.stored, next.stored, func(d dataplane.Digest) []byte {
		return nft.Bytes{}.Number(uint32(d >> 32)).Number(uint32(d))
	})
	numbered(e, y.schema.eps, c.Key, was.eps, next.eps, backend)
	numbered(e, y.schema.slots, c.Key, was.slots, next.slots, id)
	for n, is := range next.ids {
		element(e, y.schema.backends, key(c.Key).Number(n), was.ids[n], is, backend)
	}
	for n := range was.ids {
		if _, stays := next.ids[n]; !stays {
			e.remove[y.schema.backends] = append(e.remove[y.schema.backends], nft.Elem{Key: key(c.Key).Number(n)})
		}
	}
}

// use counts the chains that a frontend needs.
func (e *edit) use(f *front, by int) {
	for _, name := range f.uses() {
		e.users[name] += by
	}
}

// front is what f comes to, with the slots in an order that keeps most of what is there.
func (y *family) front(f *balancer.Frontend, was *front) *front {
	form := render(f)
	next := &front{digest: dnat.Digest(f), stored: dnat.Digest(f), choice: form.choice, label: form.label, chain: form.choice.chain(f.Key)}
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

// numbered makes the numbered elements of a frontend what is wanted; the zero value stands for an element that is missing.
func numbered[V comparable](e *edit, set *nft.Set, k balancer.Key, was, is []V, write func(V) []byte) {
	at := func(all []V, i int) (v V) {
		if i < len(all) {
			v = all[i]
		}
		return v
	}
	for i := range max(len(was), len(is)) {
		element(e, set, key(k).Number(uint32(i)), at(was, i), at(is, i), write)
	}
}

// element makes one element what is wanted. What is not wanted any more goes with the second transaction.
func element[V comparable](e *edit, set *nft.Set, at []byte, was, is V, write func(V) []byte) {
	var none V
	switch {
	case was == is:
	case is == none:
		e.remove[set] = append(e.remove[set], nft.Elem{Key: at})
	case was == none:
		e.add[set] = append(e.add[set], nft.Elem{Key: at, Data: write(is)})
	default:
		e.replace[set] = append(e.replace[set], nft.Elem{Key: at})
		e.add[set] = append(e.add[set], nft.Elem{Key: at, Data: write(is)})
	}
}

// lead makes the chains of a frontend, and its element of frontends, where they are not there.
func (y *family) lead(e *edit, k balancer.Key, was, next *front) {
	for _, name := range next.uses() {
		switch name {
		case clearing:
			y.need(e, name, choice{by: byNone})
		case unserved:
			next.number = unservedNumber
		default:
			next.number = y.need(e, name, next.choice)
		}
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

// need makes a chain choose as c says, unless it does, and returns its number.
func (y *family) need(e *edit, name string, c choice) uint32 {
	is, made := e.made[name]
	if there := y.chains[name]; there != nil && !made {
		is = chain{number: there.number, choice: there.choice}
	}
	if is.choice != c {
		y.schema.writeChosen(&e.first, name, c, y.mark)
	}
	if is.number == 0 && name != clearing {
		y.last++
		is.number = y.last
		e.add[y.schema.choices] = append(e.add[y.schema.choices], leads(is.number, name))
	}
	is.choice = c
	e.made[name] = is
	return is.number
}

// finish writes what was gathered. Elements of frontends come last: what they lead to is there by then.
func (y *family) finish(e *edit) {
	s := y.schema
	for _, set := range []*nft.Set{s.digests, s.eps, s.backends, s.slots, s.choices, s.frontends} {
		e.first.Delete(s.table, set, e.replace[set]...)
		e.first.Create(s.table, set, e.add[set]...)
	}
	e.first.Delete(s.table, s.frontends, e.remove[s.frontends]...) // from then on nothing leads to what goes with it
	for _, set := range []*nft.Set{s.digests, s.eps, s.backends, s.slots} {
		e.then.Delete(s.table, set, e.remove[set]...)
	}
	var gone []string
	for name, c := range y.chains {
		if c.users+e.users[name] == 0 && name != unserved {
			if c.number != 0 {
				e.then.Delete(s.table, s.choices, leads(c.number, ""))
			}
			e.then.FlushChain(s.table, name)
			gone = append(gone, name)
		}
	}
	for _, name := range gone { // all are empty by now: those that another program has made may lead to one another
		e.then.DeleteChain(s.table, name)
	}
}

// noteMade takes in the chains that the first transaction has made.
func (y *family) noteMade(e *edit) {
	for name, c := range e.made {
		if y.chains[name] == nil {
			y.chains[name] = &chain{}
		}
		y.chains[name].choice, y.chains[name].number = c.choice, c.number
	}
}

// noteLocked takes in what both transactions have left.
func (y *family) noteLocked(e *edit) {
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
		y.chains[name].users += n
	}
	for name, c := range y.chains {
		if c.users == 0 {
			delete(y.chains, name)
		}
	}
}

package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/nft"
)

// native is the guard of one family in nf_tables: one table, of which each change is one transaction. It follows the same
// order as legacy: what restricts comes in with prepare, and what opens with finish.
type native struct {
	*wanted
	layout *layout
	conn   *nft.Conn
	// accept is what lets our connections through the filters of iptables.
	accept *acceptor
	// earlier is a guard in iptables and ipsets that another version may have left.
	earlier func(ctx context.Context) error

	// tx is what is put off until the next commit.
	tx nft.Tx
	// stale: the chains are to be written, as mode, or what they are for, is another; pairs: the interfaces are.
	stale, pairs bool
	// ready: the table is there, and was compared; looked: it is known whether the kernel has anything of the guard.
	ready, looked bool
	// directed: the chains are written for direct frontends too.
	directed bool
	// failed is why nothing can be had here, and fault why the last change was not made; nil: all is well.
	failed, fault error

	// rules are the handles of the rules of each chain as they were written, and generation is that of the last commit or look.
	rules      map[string][]uint64
	generation uint32
	// next is when the table may be read again after a change by others.
	next time.Time
}

// newNative is a guard of which nothing is in the kernel.
func newNative(w *wanted, conn *nft.Conn, accept *acceptor, earlier func(ctx context.Context) error) *native {
	t := &native{wanted: w, layout: newLayout(w.family), conn: conn, accept: accept, earlier: earlier}
	w.on(t, nftName)
	w.set(allowedSet).disjoint = true
	return t
}

// trialSuffix ends the name of the table that a trial makes and deletes.
const trialSuffix = "-trial"

// try makes a table with all chains, and deletes it: an error says what the kernel can't do.
func (t *native) try() error {
	l := newLayout(t.family)
	l.table.Name += trialSuffix
	var tx, away nft.Tx
	l.write(&tx, l.chains(dataplane.Needs{Forward: true}, t.bits, true))
	away.DeleteTable(l.table)
	there, err := t.conn.HasTable(l.table)
	if err != nil {
		return err
	}
	if there { // of a trial that was cut short
		if err := t.conn.Commit(&away); err != nil {
			return err
		}
	}
	if err := t.conn.Commit(&tx); err != nil {
		return err
	}
	return t.conn.Commit(&away)
}

// has reports whether the table has the set.
func (t *native) has(m *members) bool { return t.layout.sets[m.def.name] != nil }

// obey implements form.
func (t *native) obey() { t.stale, t.pairs = true, true }

// prepare implements form.
func (t *native) prepare(ctx context.Context) error {
	if !t.needed() {
		return nil
	}
	err := t.note(t.establish(ctx))
	if err == nil && t.failed == nil {
		_ = t.accept.establish(ctx, t.directed) // finish tries again, and says why it can't
	}
	return err
}

// finish implements form.
func (t *native) finish(ctx context.Context) error {
	if !t.needed() {
		return t.note(t.leave(ctx))
	}
	if err := t.note(t.establish(ctx)); err != nil || t.failed != nil {
		return err
	}
	return errors.Join(t.note(t.settle()), t.accept.establish(ctx, t.directed))
}

// note keeps what trying again won't mend for problems, and has all else compared in full the next time.
func (t *native) note(err error) error {
	t.fault = err
	switch {
	case err == nil:
		return nil
	case isDenied(err):
		t.failed = err
		return nil
	}
	t.forget()
	return fmt.Errorf("putting up the guard (%s): %w", t.family, err)
}

func (t *native) forget() {
	t.tx, t.ready, t.looked, t.rules = nft.Tx{}, false, false, nil
	for _, m := range t.members {
		m.state = unseen
	}
}

// establish makes the table, and puts in what restricts.
func (t *native) establish(ctx context.Context) error {
	if t.failed != nil {
		return nil
	}
	if !t.ready {
		if err := t.read(); err != nil {
			return err
		}
	}
	if err := t.restrict(); err != nil {
		return err
	}
	directed := t.mode.LocalIn && len(t.direct.count)+len(t.direct.have) > 0
	written := t.stale || !t.ready || directed != t.directed
	if written {
		var tx nft.Tx
		t.layout.write(&tx, t.layout.chains(t.mode, t.bits, directed))
		tx.Append(&t.tx)
		t.tx = tx
	}
	if t.pairs || !t.ready {
		t.tx.FlushSet(t.layout.table, t.layout.oneArm.Name)
		t.tx.Add(t.layout.table, t.layout.oneArm, oneArms(t.mode, t.interfaces)...)
	}
	err := t.commit()
	var refused *nft.Error
	if !t.ready && errors.As(err, &refused) && !isDenied(err) {
		err = t.renew(directed, err)
	}
	if err != nil {
		return err
	}
	if written {
		if err := t.learn(); err != nil {
			return err
		}
	}
	t.directed, t.ready, t.stale, t.pairs = directed, true, false, false
	if !t.looked {
		if err := t.earlier(ctx); err != nil {
			return err
		}
		t.looked = true
	}
	return nil
}

// read takes in what the sets hold. Where the table is not there, held addresses are silent until what was applied is open:
// clients try again after silence, but not after a refusal.
func (t *native) read() error {
	there, err := t.conn.HasTable(t.layout.table)
	if err != nil {
		return err
	}
	for _, m := range t.members {
		if !t.has(m) {
			continue
		}
		if err := m.create(); err != nil {
			return err
		}
	}
	if !there {
		t.silence()
	}
	return nil
}

// silence puts off that all held addresses are pending, until settle.
func (t *native) silence() {
	for e := range t.held.count {
		if !t.pending.have[e] {
			t.pending.have[e], t.pending.dirty[e] = true, true
			_ = t.Add(t.pending.name, []ipset.Entry{e})
		}
	}
}

// renew replaces a table that the kernel does not change into ours: another version made it, or another program changed it.
func (t *native) renew(directed bool, cause error) error {
	t.tx = nft.Tx{}
	for _, m := range t.members {
		clear(m.have)
		m.touch()
	}
	t.ready = false
	t.silence()
	if err := t.restrict(); err != nil {
		return err
	}
	var tx nft.Tx
	tx.AddTable(t.layout.table) // or else there may be none to delete
	tx.DeleteTable(t.layout.table)
	t.layout.write(&tx, t.layout.chains(t.mode, t.bits, directed))
	tx.Add(t.layout.table, t.layout.oneArm, oneArms(t.mode, t.interfaces)...)
	tx.Append(&t.tx)
	t.tx = tx
	if err := t.commit(); err != nil {
		return errors.Join(cause, err)
	}
	return nil
}

// restrict puts off what must not be there when others are applied, and then what restricts.
func (t *native) restrict() error {
	for _, m := range t.members {
		if !t.has(m) || len(m.dirty) == 0 {
			continue
		}
		if err := m.withdraw(); err != nil {
			return err
		}
		if m.def.early || !t.ready { // a table that is made anew has all at once
			if err := m.fill(); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle takes out what nobody wants, and puts in what was applied.
func (t *native) settle() error {
	for _, m := range t.members {
		if !t.has(m) || len(m.dirty) == 0 {
			continue
		}
		if err := errors.Join(m.trim(), m.fill()); err != nil {
			return err
		}
	}
	for _, c := range []*cover{t.vips, t.specials, t.directs, t.holds} {
		c.fresh = c.fresh[:0] // no rule has networks here
	}
	return t.commit()
}

// commit carries out what was put off, and notes whether others have committed since the last look.
func (t *native) commit() error {
	if t.tx.Len() == 0 {
		return nil
	}
	tx := t.tx
	t.tx = nft.Tx{}
	before, err := t.conn.Generation()
	if err != nil {
		return err
	}
	if err := t.conn.Commit(&tx); err != nil {
		return err
	}
	after, err := t.conn.Generation()
	if err == nil && before == t.generation && after == before+1 {
		t.generation = after
	}
	return err
}

// learn notes the handles of the rules that were written.
func (t *native) learn() error {
	rules, err := t.handles()
	if err == nil {
		t.rules = rules
	}
	return err
}

func (t *native) handles() (map[string][]uint64, error) {
	found, err := t.conn.Rules(t.layout.table)
	all := map[string][]uint64{}
	for _, r := range found {
		all[r.Chain] = append(all[r.Chain], r.Handle)
	}
	return all, err
}

// leave removes the guard if any of it may be there.
func (t *native) leave(ctx context.Context) error {
	if t.failed != nil || t.looked && !t.ready {
		return nil
	}
	there, err := t.conn.HasTable(t.layout.table)
	if err != nil {
		return err
	}
	if there {
		t.tx = nft.Tx{}
		t.tx.DeleteTable(t.layout.table)
		if err := t.commit(); err != nil {
			return err
		}
	}
	if err := errors.Join(t.accept.leave(ctx), t.earlier(ctx)); err != nil {
		return err
	}
	t.forget()
	for _, m := range t.members {
		clear(m.have)
		m.touch()
	}
	t.looked = true
	return nil
}

// refresh implements form.
func (t *native) refresh(ctx context.Context) error {
	if !t.stale && !t.pairs || !t.ready || t.failed != nil {
		return nil
	}
	return t.note(t.establish(ctx))
}

// retry implements form. What nf_tables takes once it takes always; iptables' filters may not.
func (t *native) retry(ctx context.Context) bool { return t.ready && t.accept.retry(ctx) }

// The table is read at most one part in lookShare of the time, and after lookPause at the latest: every change of a mode
// raises the generation too.
const (
	lookShare = 100
	lookPause = 2 * time.Second
)

// intact implements form: it asks for the number of the last transaction, and compares the table where that is another
// program's.
func (t *native) intact(ctx context.Context) (string, error) {
	if !t.ready || t.failed != nil {
		return "", nil
	}
	if reason, err := t.accept.intact(ctx); reason != "" || err != nil {
		return reason, err
	}
	now, err := t.conn.Generation()
	if err != nil || now == t.generation || time.Now().Before(t.next) {
		return "", err
	}
	began := time.Now()
	reason, err := t.compare()
	t.next = time.Now().Add(min(lookShare*time.Since(began), lookPause))
	if err == nil && reason == "" {
		t.generation = now
	}
	return reason, err
}

// compare says in what the table is not as it was left.
func (t *native) compare() (string, error) {
	rules, err := t.handles()
	if err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(maps.Keys(t.rules)) {
		if !slices.Equal(rules[name], t.rules[name]) {
			return fmt.Sprintf("table %s: rules of chain %s were changed", t.layout.table, name), nil
		}
	}
	chains, err := t.conn.Chains(t.layout.table)
	if err != nil {
		return "", err
	}
	if len(chains) < len(t.rules) {
		return fmt.Sprintf("table %s: chains are gone", t.layout.table), nil
	}
	for _, m := range t.members {
		if !t.has(m) {
			continue
		}
		entries, err := t.List(m.name)
		if err != nil {
			return "", err
		}
		same := len(entries) == len(m.have)
		for _, e := range entries {
			same = same && m.have[e]
		}
		if !same {
			return fmt.Sprintf("table %s: elements of set %s were changed", t.layout.table, m.name), nil
		}
	}
	pairs, err := t.conn.Elements(t.layout.table, t.layout.oneArm.Name)
	if err == nil && len(pairs) != len(oneArms(t.mode, t.interfaces)) && !t.pairs {
		return fmt.Sprintf("table %s: elements of set %s were changed", t.layout.table, t.layout.oneArm.Name), nil
	}
	return "", err
}

// restricts implements form.
func (t *native) restricts(f *balancer.Frontend, enforced bool) error {
	if t.failed != nil {
		return unenforceable(t.failed, enforced)
	}
	if t.ready && t.inForce(f, t.has) {
		return nil
	}
	return notInForce(t.fault)
}

// problems implements form.
func (t *native) problems() []balancer.Problem {
	return t.lost(func(l loss) error {
		if l.filters && t.failed == nil {
			return t.accept.failed()
		}
		return t.failed
	})
}

// resync implements form.
func (t *native) resync() {
	t.failed, t.next = nil, time.Time{}
	t.accept.resync()
	t.forget()
}

// Create implements setKernel: all sets come with the table.
func (t *native) Create(string, ipset.Kind, ipset.Family) error { return nil }

// CreatePassing implements setKernel.
func (t *native) CreatePassing(string, ipset.Kind, ipset.Family, ipset.Passing) error { return nil }

// Destroy implements setKernel: all sets go with the table.
func (t *native) Destroy(string) error { return nil }

// Add implements setKernel.
func (t *native) Add(set string, entries []ipset.Entry) error {
	t.tx.Add(t.layout.table, t.named(set), elements(entries)...)
	return nil
}

// Delete implements setKernel.
func (t *native) Delete(set string, entries []ipset.Entry) error {
	t.tx.Delete(t.layout.table, t.named(set), elements(entries)...)
	return nil
}

// named is the set of a name in the table.
func (t *native) named(name string) *nft.Set {
	for _, s := range t.layout.sets {
		if s.Name == name {
			return s
		}
	}
	return nil // members has no other names
}

// Header implements setKernel; what a set says of itself shows nothing that comparing does not.
func (t *native) Header(string) (ipset.Header, error) { return ipset.Header{}, ipset.ErrNotFound }

// List implements setKernel.
func (t *native) List(set string) ([]ipset.Entry, error) {
	found, err := t.conn.Elements(t.layout.table, set)
	if err != nil {
		return nil, fmt.Errorf("reading set %s of table %s: %w", set, t.layout.table, err)
	}
	entries := make([]ipset.Entry, 0, len(found))
	for _, e := range found {
		entries = append(entries, entryOf(&e.Elem, t.family))
	}
	return entries, nil
}

// entryOf reads an element. One that is none of ours becomes an entry that nobody wants.
func entryOf(e *nft.Elem, of ipset.Family) (entry ipset.Entry) {
	size := 4
	if of == ipset.IPv6 {
		size = 16
	}
	key := e.Key
	if len(key) < size {
		return entry
	}
	entry.Addr, _ = netip.AddrFromSlice(key[:size])
	if len(key) >= size+8 {
		entry.Proto = ipset.Protocol(key[size])
		entry.Port = uint16(key[size+4])<<8 | uint16(key[size+5])
	}
	if len(key) >= 2*size+8 && len(e.KeyEnd) == len(key) {
		first, _ := netip.AddrFromSlice(key[size+8:])
		last, _ := netip.AddrFromSlice(e.KeyEnd[size+8:])
		entry.Net = netip.PrefixFrom(first, commonBits(first, last))
	}
	return entry
}

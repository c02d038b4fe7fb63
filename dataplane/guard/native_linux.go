package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	// table is layout's in the kernel.
	table *nft.Owned
	// accept is what lets our connections through the filters of iptables.
	accept *acceptor
	// dead is called with whether frontends have dead endpoints.
	dead func(some bool)
	// earlier is a guard in iptables and ipsets that another version may have left.
	earlier func(ctx context.Context) error

	// tx is what is put off until the next commit.
	tx nft.Tx
	// stale: the chains are to be written, as mode, or what they are for, is another; pairs: the interfaces are.
	stale, pairs bool
	// ready: the table is there, and was compared; looked: it is known whether the kernel has anything of the guard.
	ready, looked bool
	// written is what the chains are written for.
	written concerns
	// failed is why nothing can be had here, and fault why the last change was not made; nil means all is well.
	failed, fault error
}

// newNative is a guard of which nothing is in the kernel.
func newNative(w *wanted, conn *nft.Conn, accept *acceptor, earlier func(ctx context.Context) error) *native {
	l := newLayout(w.family)
	t := &native{dead: func(bool) {}, wanted: w, layout: l, table: &nft.Owned{Conn: conn, Table: l.table}, accept: accept, earlier: earlier}
	w.on(t, func(name string) string { return name })
	w.set(allowedSet).disjoint = true
	return t
}

// trialSuffix ends the name of the table that a trial makes and deletes.
const trialSuffix = "-trial"

// try makes a table with all chains, and deletes it: an error says what the kernel can't do.
func (t *native) try() error {
	l := newLayout(t.family)
	l.table.Name += trialSuffix
	var tx nft.Tx
	l.write(&tx, l.chains(dataplane.Needs{Forward: true}, t.bits, concerns{special: true, restricted: true, silent: true, always: true, never: true, direct: true, clamps: true, dead: true, quiet: true}))
	return (&nft.Owned{Conn: t.table.Conn, Table: l.table}).Try(&tx)
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
		_ = t.accept.establish(ctx, t.written.direct) // finish tries again, and says why it can't
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
	return errors.Join(t.note(t.syncSets(ctx)), t.accept.establish(ctx, t.written.direct))
}

// note keeps what trying again won't mend for problems, and has all else compared in full the next time.
func (t *native) note(err error) error {
	t.fault = err
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		t.failed = err
		return nil
	}
	t.forget()
	return fmt.Errorf("putting up the guard (%s): %w", t.family, err)
}

func (t *native) forget() {
	t.tx, t.ready, t.looked, t.table.Shape = nft.Tx{}, false, false, nil
	for _, m := range t.members {
		m.state = unseen
	}
}

// establish makes the table, and puts in what restricts, again where another program changes it meanwhile.
func (t *native) establish(ctx context.Context) (err error) {
	if t.failed != nil {
		return nil
	}
	for range nft.Tries {
		if err = t.put(ctx); !errors.Is(err, nft.ErrBusy) {
			return err
		}
		t.forget()
	}
	return err
}

// put is establish, once.
func (t *native) put(ctx context.Context) error {
	if !t.ready {
		if err := t.table.Steady(t.read); err != nil {
			return err
		}
	}
	if err := t.restrict(); err != nil {
		return err
	}
	with := t.concerns()
	write := t.stale || !t.ready || with != t.written
	if write {
		var tx nft.Tx
		t.layout.write(&tx, t.layout.chains(t.mode, t.bits, with))
		tx.Append(&t.tx)
		t.tx = tx
	}
	if t.pairs || !t.ready {
		t.tx.FlushSet(t.layout.table, t.layout.oneArm)
		t.tx.Add(t.layout.table, t.layout.oneArm, oneArms(t.mode, t.interfaces)...)
	}
	err := t.commit(ctx)
	var refused *nft.Error
	if !t.ready && errors.As(err, &refused) && !errors.Is(err, fs.ErrPermission) {
		err = t.renew(ctx, with, err)
	}
	if err != nil {
		return err
	}
	t.written, t.ready, t.stale, t.pairs = with, true, false, false
	t.dead(with.dead)
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
	there, err := t.table.HasTable(t.layout.table)
	if err != nil {
		return err
	}
	for _, m := range t.members {
		if !t.has(m) {
			continue
		}
		if err := m.compare(); err != nil {
			return err
		}
	}
	if !there {
		t.silence()
	}
	return nil
}

// silence puts off that all held addresses are pending, until syncSets.
func (t *native) silence() {
	for e := range t.held.count {
		if !t.pending.have[e] {
			t.pending.have[e], t.pending.dirty[e] = true, true
			_ = t.Add(t.pending.name, []ipset.Entry{e})
		}
	}
}

// renew replaces a table that the kernel does not change into ours: another version made it, or another program changed it.
func (t *native) renew(ctx context.Context, with concerns, cause error) error {
	t.tx = nft.Tx{}
	for _, m := range t.members {
		m.lose()
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
	t.layout.write(&tx, t.layout.chains(t.mode, t.bits, with))
	tx.Add(t.layout.table, t.layout.oneArm, oneArms(t.mode, t.interfaces)...)
	tx.Append(&t.tx)
	t.tx = tx
	if err := t.commit(ctx); err != nil {
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

// syncSets deletes what is not wanted, and adds what was applied.
func (t *native) syncSets(ctx context.Context) error {
	for _, m := range t.members {
		if !t.has(m) || len(m.dirty) == 0 {
			continue
		}
		if err := errors.Join(m.trim(), m.fill()); err != nil {
			return err
		}
	}
	return t.commit(ctx)
}

// commit makes what was put off.
func (t *native) commit(ctx context.Context) error {
	tx := t.tx
	t.tx = nft.Tx{}
	err := t.table.Commit(&tx)
	if tx.Len() > 0 {
		dataplane.Wrote(ctx, tx.Bytes)
	}
	return err
}

// leave removes the guard if any of it may be there.
func (t *native) leave(ctx context.Context) error {
	if t.failed != nil || t.looked && !t.ready {
		return nil
	}
	if err := t.table.Remove(); err != nil {
		return err
	}
	if err := errors.Join(t.accept.leave(ctx), t.earlier(ctx)); err != nil {
		return err
	}
	t.forget()
	t.dead(false)
	for _, m := range t.members {
		m.lose()
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

// intact implements form.
func (t *native) intact(ctx context.Context) (string, error) {
	if !t.ready || t.failed != nil {
		return "", nil
	}
	reason, err := t.accept.intact(ctx)
	if reason != "" {
		return reason, err
	}
	reason, also := t.table.Look(t.compare)
	return reason, errors.Join(err, also)
}

// compare says in what the table is not as it was left.
func (t *native) compare() (string, error) {
	if reason, err := t.table.Changed(); reason != "" || err != nil {
		return reason, err
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
			return fmt.Sprintf("elements of set %s were changed", t.layout.sets[m.name].Name), nil
		}
	}
	pairs, err := t.table.Elements(t.layout.table, t.layout.oneArm.Name)
	if err == nil && len(pairs) != len(oneArms(t.mode, t.interfaces)) && !t.pairs {
		return fmt.Sprintf("elements of set %s were changed", t.layout.oneArm.Name), nil
	}
	return "", err
}

// restricts implements form.
func (t *native) restricts(f *balancer.Frontend, enforced bool) error {
	if t.failed != nil {
		return unenforceable(f, t.failed, enforced)
	}
	if t.ready && t.inForce(f, t.has) {
		return nil
	}
	return notInForce(f, t.fault)
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
	t.failed, t.table.Next = nil, time.Time{}
	t.accept.resync()
	t.forget()
}

package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
)

// familyGuard is one family's guard: an nf_tables table. Each change is one transaction. prepare
// adds restrictions, and finish opens ports.
type familyGuard struct {
	*wanted
	layout *layout
	// table is the layout's table in the kernel. Its connection is nil until open.
	table *nft.Maintained
	// accept makes iptables filters accept our connections.
	accept *acceptor
	// dead is called after each write. Its argument some reports whether there are dead endpoints.
	dead func(some bool)

	tx nft.Tx
	// stale reports whether the chains must be written again because the mode or the interfaces
	// have changed, and pairs whether the interface pairs must be.
	stale, pairs bool
	// ready reports whether the table exists and its contents are known. formerChecked reports
	// whether an earlier version's guard is known not to exist.
	ready, formerChecked bool
	// written holds the features for which the chains were written.
	written features
	// failed is the reason why the guard is unavailable, until the next resync. fault is the error
	// from the last change, or nil.
	failed, fault error
}

// newFamily returns a guard that has not read the kernel's state yet.
func newFamily(w *wanted, accept *acceptor) *familyGuard {
	l := newLayout(w.family)
	y := &familyGuard{dead: func(bool) {}, wanted: w, layout: l, table: &nft.Maintained{Table: l.table}, accept: accept}
	for _, m := range w.members {
		m.store = y
	}
	return y
}

// open connects to nf_tables, and proves with a trial that the guard works.
func (y *familyGuard) open() error {
	if y.table.Conn != nil {
		return nil
	}
	conn, err := nft.Open()
	if err != nil {
		return unusable(y.family, err)
	}
	if err = try(conn, y.family); err == nil {
		err = conn.Listen()
	}
	if err != nil {
		return unusable(y.family, errors.Join(err, conn.Close()))
	}
	y.table.Conn, y.accept.conn = conn, conn
	return nil
}

func (y *familyGuard) close() {
	if y.table.Conn != nil {
		_ = y.table.Close() // an error of Close is harmless
	}
}

// markStale makes the next prepare write the chains, the interface pairs and the fast path.
func (y *familyGuard) markStale() { y.stale, y.pairs, y.fast.due = true, true, true }

// prepare adds restrictions, and closes ports that the desired frontends do not open.
func (y *familyGuard) prepare(ctx context.Context) error {
	if !y.needed() { // finish removes the guard
		return nil
	}
	err := y.noteOutcome(y.establish(ctx))
	if err == nil && y.failed == nil {
		_ = y.accept.establish(ctx, y.mode.LocalIn, y.written.direct) // finish tries again and returns the error
	}
	return err
}

// finish opens the applied ports, and removes unused objects.
func (y *familyGuard) finish(ctx context.Context) error {
	if !y.needed() {
		return y.noteOutcome(y.leave(ctx))
	}
	if err := y.noteOutcome(y.establish(ctx)); err != nil {
		return err
	}
	if y.failed != nil {
		return y.dropFormer(ctx)
	}
	y.queueSync()
	return errors.Join(y.noteOutcome(y.commit(ctx)), y.accept.establish(ctx, y.mode.LocalIn, y.written.direct))
}

// dropFormer removes an earlier version's guard once all desired frontends that serve are applied.
func (y *familyGuard) dropFormer(ctx context.Context) error {
	if y.formerChecked || !y.allApplied() {
		return nil
	}
	err := removeFormer(ctx, y.family, y.log)
	y.formerChecked = err == nil
	return err
}

// noteOutcome records the result of a change. If a privilege is missing, the guard counts as
// unavailable, and problems reports this instead of an error. After any other error, the next round
// compares everything.
func (y *familyGuard) noteOutcome(err error) error {
	y.fault = err
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		y.failed = err
		return nil
	}
	y.forget()
	return fmt.Errorf("installing the guard (%s): %w", y.family, err)
}

func (y *familyGuard) forget() {
	y.tx, y.ready, y.formerChecked, y.table.Shape, y.fast.due = nft.Tx{}, false, false, nil, true
}

// establish creates the table and adds restrictions. It retries if another program changes the
// table at the same time.
func (y *familyGuard) establish(ctx context.Context) (err error) {
	if y.failed == nil {
		y.failed = y.open()
	}
	if y.failed != nil {
		return nil
	}
	for range nft.Tries {
		if err = y.tryEstablish(ctx); !errors.Is(err, nft.ErrBusy) {
			return err
		}
		y.forget()
	}
	return err
}

func (y *familyGuard) tryEstablish(ctx context.Context) error {
	if !y.ready {
		if err := y.table.ReadConsistent(y.read); err != nil {
			return err
		}
	}
	y.proveLimits()
	y.queueRestrictions()
	with := y.concerns()
	write := y.stale || !y.ready || with != y.written
	if write {
		var tx nft.Tx
		y.layout.write(&tx, y.mode, y.bits, with)
		tx.Append(&y.tx)
		y.tx = tx
	}
	if y.pairs || !y.ready {
		y.tx.FlushSet(y.layout.table, y.layout.oneArm)
		y.tx.Add(y.layout.table, y.layout.oneArm, oneArmPairs(y.mode, y.interfaces)...)
	}
	y.ranges.write(&y.tx, y.layout)
	y.queueLimits(with)
	err := y.commit(ctx)
	var refused *nft.Error
	if !y.ready && errors.As(err, &refused) && !errors.Is(err, fs.ErrPermission) {
		err = y.recreate(ctx, with, err)
	}
	if err != nil {
		return err
	}
	y.written, y.ready, y.stale, y.pairs = with, true, false, false
	y.dead(with.dead)
	if err := y.syncFastPath(); err != nil {
		return err
	}
	if !y.formerChecked {
		if err := removeFormer(ctx, y.family, y.log); err != nil {
			return err
		}
		y.formerChecked = true
	}
	return nil
}

// read reads the kernel's sets. If the table is missing, held addresses (VIPs that vipd added) stay
// silent until the applied ports are open, because clients retry after silence but not after a
// refusal.
func (y *familyGuard) read() error {
	there, err := y.table.HasTable(y.layout.table)
	if err != nil {
		return err
	}
	for _, m := range y.members {
		if err := m.compare(); err != nil {
			return err
		}
	}
	if !there {
		y.queuePending()
	}
	ranges, err := y.readRanges()
	if err != nil {
		return err
	}
	y.ranges.found(ranges)
	return y.readLimits()
}

// queuePending queues the addition of all held addresses to the "pending" set. queueSync removes
// them again.
func (y *familyGuard) queuePending() {
	for e := range y.held.count {
		if !y.pending.have[e] {
			y.pending.have[e], y.pending.dirty[e] = true, true
			y.Add(pendingSet, []setEntry{e})
		}
	}
}

// recreate replaces a table that the kernel can't convert into ours, because an earlier version
// created the table or another program changed it.
func (y *familyGuard) recreate(ctx context.Context, with features, cause error) error {
	y.tx = nft.Tx{}
	for _, m := range y.members {
		m.forgetKernel()
		m.markAll()
	}
	y.ready = false
	y.queuePending()
	y.queueRestrictions()
	var tx nft.Tx
	tx.AddTable(y.layout.table) // deleting a missing table would fail
	tx.DeleteTable(y.layout.table)
	y.layout.write(&tx, y.mode, y.bits, with)
	tx.Add(y.layout.table, y.layout.oneArm, oneArmPairs(y.mode, y.interfaces)...)
	tx.Append(&y.tx)
	y.tx = tx
	y.ranges.found(map[netip.Addr]rangeElements{})
	y.ranges.write(&y.tx, y.layout)
	y.limits.forget()
	y.queueLimits(with)
	if err := y.commit(ctx); err != nil {
		return errors.Join(cause, err)
	}
	return nil
}

// queueRestrictions queues the removal of entries that must not exist while other frontends are
// being applied, and then the addition of restrictions.
func (y *familyGuard) queueRestrictions() {
	for _, m := range y.members {
		m.withdraw()
		if m.def.early || !y.ready { // a new table gets all entries in its first transaction
			m.fill()
		}
	}
}

// queueSync queues the removal of unwanted entries and the addition of applied entries.
func (y *familyGuard) queueSync() {
	for _, m := range y.members {
		m.trim()
		m.fill()
	}
}

func (y *familyGuard) commit(ctx context.Context) error {
	tx := y.tx
	y.tx = nft.Tx{}
	err := y.table.Commit(&tx)
	if tx.Len() > 0 {
		dataplane.Wrote(ctx, tx.Bytes)
	}
	return err
}

// leave removes the guard if any part of it may exist.
func (y *familyGuard) leave(ctx context.Context) error {
	if y.formerChecked && !y.ready {
		return nil
	}
	if y.failed == nil {
		y.failed = y.open()
	}
	if y.failed != nil {
		return y.dropFormer(ctx)
	}
	if err := y.table.Remove(); err != nil {
		return err
	}
	if err := errors.Join(y.accept.leave(ctx), removeFormer(ctx, y.family, y.log)); err != nil {
		return err
	}
	y.forget()
	y.dead(false)
	for _, m := range y.members {
		m.forgetKernel()
		m.markAll()
	}
	y.formerChecked = true
	return nil
}

// refresh writes the chains and the interface pairs if they are stale and the table exists.
func (y *familyGuard) refresh(ctx context.Context) error {
	if !y.stale && !y.pairs || !y.ready || y.failed != nil {
		return nil
	}
	return y.noteOutcome(y.establish(ctx))
}

// retry makes the acceptor retry its rules if the table exists.
func (y *familyGuard) retry(ctx context.Context) bool {
	return y.ready && y.failed == nil && y.accept.retry(ctx)
}

func (y *familyGuard) intact(ctx context.Context) (string, error) {
	if !y.ready || y.failed != nil {
		return "", nil
	}
	reason, err := y.accept.intact(ctx)
	if reason != "" {
		return reason, err
	}
	reason, also := y.table.Look(y.compare)
	return reason, errors.Join(err, also)
}

// compare describes a difference between the table and what was last written, or returns "".
func (y *familyGuard) compare() (string, error) {
	if reason, err := y.table.Changed(); reason != "" || err != nil {
		return reason, err
	}
	for _, m := range y.members {
		entries, err := y.List(m.def.name)
		if err != nil {
			return "", err
		}
		same := len(entries) == len(m.have)
		for _, e := range entries {
			same = same && m.have[e]
		}
		if !same {
			return fmt.Sprintf("elements of set %s were changed", y.layout.sets[m.def.name].Name), nil
		}
	}
	if ranges, err := y.readRanges(); err != nil {
		return "", err
	} else if !sameRanges(ranges, y.ranges.have) {
		return fmt.Sprintf("elements of map %s were changed", y.layout.ranges.Name), nil
	}
	if places, err := y.readPlaces(); err != nil {
		return "", err
	} else if !maps.Equal(places, y.limits.places) {
		return "elements of the maps for limits were changed", nil
	}
	if reason, err := y.fastPathChanged(); reason != "" || err != nil {
		return reason, err
	}
	pairs, err := y.table.Elements(y.layout.table, y.layout.oneArm.Name)
	if err == nil && len(pairs) != len(oneArmPairs(y.mode, y.interfaces)) && !y.pairs {
		return fmt.Sprintf("elements of set %s were changed", y.layout.oneArm.Name), nil
	}
	return "", err
}

// restricts returns the reason why the restrictions of f are not in force. It returns nil if they
// are in force. It also returns nil if the guard is unavailable and the dataplane enforces the
// restrictions.
func (y *familyGuard) restricts(f *balancer.Frontend, enforced bool) error {
	if y.failed != nil {
		return unenforceable(f, y.failed, enforced)
	}
	if y.ready && y.inForce(f) {
		return nil
	}
	return notInForce(f, y.fault)
}

// problems returns a problem for each required part that is unavailable.
func (y *familyGuard) problems() []balancer.Problem {
	if y.failed != nil {
		return y.lost(y.failed)
	}
	all := append(y.lostLimits(), y.fastPathProblems()...)
	if y.accept.fault != nil && y.needed() {
		all = append(all, y.problem(balancer.SeverityWarning, "services do not work if the policy of FORWARD or INPUT is DROP", y.accept.fault))
	}
	return all
}

// resync makes the next prepare and finish compare everything, and retry unavailable parts.
func (y *familyGuard) resync() {
	y.failed, y.fast.fault, y.table.Next = nil, nil, time.Time{}
	y.limits.tried = y.limits.tried && y.limits.fault == nil
	y.accept.resync()
	y.forget()
}

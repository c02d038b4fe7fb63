package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// family is the guard of one family: a table of nf_tables, of which each change is one transaction. What restricts is added by
// prepare, and what opens by finish.
type family struct {
	*wanted
	layout *layout
	// table is layout's in the kernel. Its connection is nil until open.
	table *nft.Owned
	// accept lets our connections through the filters of iptables.
	accept *acceptor
	// dead is called with whether frontends have dead endpoints.
	dead func(some bool)

	// tx is put off until the next commit.
	tx nft.Tx
	// stale reports whether the chains have to be written, because the mode or what they are for has changed; pairs, whether
	// the interfaces have.
	stale, pairs bool
	// ready reports whether the table exists and was compared; looked, whether it is known that nothing else of the guard is
	// in the kernel, such as that of an earlier version.
	ready, looked bool
	// written is what the chains are written for.
	written concerns
	// failed is why the guard is unavailable, until the next resync, and fault why the last change was not made.
	failed, fault error
}

// newFamily returns a guard that knows nothing of the kernel.
func newFamily(w *wanted, accept *acceptor) *family {
	l := newLayout(w.family)
	y := &family{dead: func(bool) {}, wanted: w, layout: l, table: &nft.Owned{Table: l.table}, accept: accept}
	for _, m := range w.members {
		m.kernel = y
	}
	return y
}

// trialSuffix ends the name of the table that a trial makes and deletes.
const trialSuffix = "-trial"

// try makes a table with all chains, and deletes it. The error says what the kernel lacks. What hold = "one" alone needs is
// left out: package failover tries it.
func try(conn *nft.Conn, of inet.Family) error {
	l := newLayout(of)
	l.table.Name += trialSuffix
	var tx nft.Tx
	l.write(&tx, l.chains(dataplane.Needs{Forward: true, LocalIn: true, TranslatesAll: true, Resets: true}, newMarkBits(0), concerns{
		special: true, restricted: true, silent: true, rejected: true, always: true, never: true, direct: true, clamps: true,
		roaming: true, dead: true, quiet: true,
	}))
	return (&nft.Owned{Conn: conn, Table: l.table}).Try(&tx)
}

// Try proves by a trial that the guard of a mode that forwards can be had here. The error says what the kernel refuses.
// IPv6 counts only if the kernel has it.
func Try() error {
	for _, of := range inet.Families() {
		if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil && of == inet.IPv6 {
			continue
		}
		conn, err := nft.Open()
		if err == nil {
			err = errors.Join(try(conn, of), conn.Close())
		}
		if err != nil {
			return unusable(of, err)
		}
	}
	return nil
}

// unusable names what can't be used, the reason, and what helps.
func unusable(of inet.Family, reason error) error {
	need := "they need the nf_tables of Linux 5.9"
	if errors.Is(reason, fs.ErrPermission) {
		need = "that takes CAP_NET_ADMIN: run as root"
	}
	return fmt.Errorf("nf_tables can't hold vipd's rules of %s here: %w: %s", of, reason, need)
}

// open connects to nf_tables, and proves by a trial that it works.
func (y *family) open() error {
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

// close ends the connection to nf_tables.
func (y *family) close() {
	if y.table.Conn != nil {
		_ = y.table.Close() // nothing depends on it any longer
	}
}

// obey makes the next prepare follow the mode and the interfaces.
func (y *family) obey() { y.stale, y.pairs = true, true }

// prepare puts in force what restricts, and closes what must not be open any longer.
func (y *family) prepare(ctx context.Context) error {
	if !y.needed() { // what is applied may still need it
		return nil
	}
	err := y.note(y.establish(ctx))
	if err == nil && y.failed == nil {
		_ = y.accept.establish(ctx, y.mode.LocalIn, y.written.direct) // finish tries again, and returns the reason
	}
	return err
}

// finish opens what was applied, and removes what is not needed.
func (y *family) finish(ctx context.Context) error {
	if !y.needed() {
		return y.note(y.leave(ctx))
	}
	if err := y.note(y.establish(ctx)); err != nil {
		return err
	}
	if y.failed != nil {
		return y.giveUp(ctx)
	}
	y.syncSets()
	return errors.Join(y.note(y.commit(ctx)), y.accept.establish(ctx, y.mode.LocalIn, y.written.direct))
}

// giveUp removes what an earlier version has left, once all that serves is applied without it.
func (y *family) giveUp(ctx context.Context) error {
	if y.looked || !y.carried() {
		return nil
	}
	err := removeFormer(ctx, y.family, y.log)
	y.looked = err == nil
	return err
}

// note keeps a missing privilege for problems, and has all compared in full the next time after other errors.
func (y *family) note(err error) error {
	y.fault = err
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		y.failed = err
		return nil
	}
	y.forget()
	return fmt.Errorf("putting up the guard (%s): %w", y.family, err)
}

func (y *family) forget() {
	y.tx, y.ready, y.looked, y.table.Shape = nft.Tx{}, false, false, nil
}

// establish makes the table, and adds what restricts. It tries again if another program changes the table at the same time.
func (y *family) establish(ctx context.Context) (err error) {
	if y.failed == nil {
		y.failed = y.open()
	}
	if y.failed != nil {
		return nil
	}
	for range nft.Tries {
		if err = y.put(ctx); !errors.Is(err, nft.ErrBusy) {
			return err
		}
		y.forget()
	}
	return err
}

// put is establish, once.
func (y *family) put(ctx context.Context) error {
	if !y.ready {
		if err := y.table.Steady(y.read); err != nil {
			return err
		}
	}
	y.restrict()
	with := y.concerns()
	write := y.stale || !y.ready || with != y.written
	if write {
		var tx nft.Tx
		y.layout.write(&tx, y.layout.chains(y.mode, y.bits, with))
		tx.Append(&y.tx)
		y.tx = tx
	}
	if y.pairs || !y.ready {
		y.tx.FlushSet(y.layout.table, y.layout.oneArm)
		y.tx.Add(y.layout.table, y.layout.oneArm, oneArms(y.mode, y.interfaces)...)
	}
	err := y.commit(ctx)
	var refused *nft.Error
	if !y.ready && errors.As(err, &refused) && !errors.Is(err, fs.ErrPermission) {
		err = y.renew(ctx, with, err)
	}
	if err != nil {
		return err
	}
	y.written, y.ready, y.stale, y.pairs = with, true, false, false
	y.dead(with.dead)
	if !y.looked {
		if err := removeFormer(ctx, y.family, y.log); err != nil {
			return err
		}
		y.looked = true
	}
	return nil
}

// read takes in what the sets hold. Where the table is not there, held addresses are silent until what was applied is open:
// clients try again after silence, but not after a refusal.
func (y *family) read() error {
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
		y.silence()
	}
	return nil
}

// silence puts off that all held addresses are pending, until syncSets.
func (y *family) silence() {
	for e := range y.held.count {
		if !y.pending.have[e] {
			y.pending.have[e], y.pending.dirty[e] = true, true
			y.Add(pendingSet, []entry{e})
		}
	}
}

// renew replaces a table that the kernel does not change into ours: another version made it, or another program changed it.
func (y *family) renew(ctx context.Context, with concerns, cause error) error {
	y.tx = nft.Tx{}
	for _, m := range y.members {
		m.lose()
		m.touch()
	}
	y.ready = false
	y.silence()
	y.restrict()
	var tx nft.Tx
	tx.AddTable(y.layout.table) // or else there may be none to delete
	tx.DeleteTable(y.layout.table)
	y.layout.write(&tx, y.layout.chains(y.mode, y.bits, with))
	tx.Add(y.layout.table, y.layout.oneArm, oneArms(y.mode, y.interfaces)...)
	tx.Append(&y.tx)
	y.tx = tx
	if err := y.commit(ctx); err != nil {
		return errors.Join(cause, err)
	}
	return nil
}

// restrict puts off the removal of what must not exist when others are applied, and then the addition of what restricts.
func (y *family) restrict() {
	for _, m := range y.members {
		m.withdraw()
		if m.def.early || !y.ready { // a table that is made from scratch gets all at once
			m.fill()
		}
	}
}

// syncSets puts off the removal of what is not wanted, and the addition of what was applied.
func (y *family) syncSets() {
	for _, m := range y.members {
		m.trim()
		m.fill()
	}
}

// commit makes what was put off.
func (y *family) commit(ctx context.Context) error {
	tx := y.tx
	y.tx = nft.Tx{}
	err := y.table.Commit(&tx)
	if tx.Len() > 0 {
		dataplane.Wrote(ctx, tx.Bytes)
	}
	return err
}

// leave removes the guard if any of it may exist.
func (y *family) leave(ctx context.Context) error {
	if y.looked && !y.ready {
		return nil
	}
	if y.failed == nil {
		y.failed = y.open()
	}
	if y.failed != nil {
		return y.giveUp(ctx)
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
		m.lose()
		m.touch()
	}
	y.looked = true
	return nil
}

// refresh follows the mode and the interfaces if the guard stands.
func (y *family) refresh(ctx context.Context) error {
	if !y.stale && !y.pairs || !y.ready || y.failed != nil {
		return nil
	}
	return y.note(y.establish(ctx))
}

// retry tries again what iptables has refused and is due, and reports whether it was accepted.
func (y *family) retry(ctx context.Context) bool {
	return y.ready && y.failed == nil && y.accept.retry(ctx)
}

// intact returns what other programs have changed.
func (y *family) intact(ctx context.Context) (string, error) {
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

// compare says in what the table is not as it was left.
func (y *family) compare() (string, error) {
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
	pairs, err := y.table.Elements(y.layout.table, y.layout.oneArm.Name)
	if err == nil && len(pairs) != len(oneArms(y.mode, y.interfaces)) && !y.pairs {
		return fmt.Sprintf("elements of set %s were changed", y.layout.oneArm.Name), nil
	}
	return "", err
}

// restricts returns why what restricts f is not in force. It returns nil if it is, or if it is unavailable and the
// dataplane enforces it by itself.
func (y *family) restricts(f *balancer.Frontend, enforced bool) error {
	if y.failed != nil {
		return unenforceable(f, y.failed, enforced)
	}
	if y.ready && y.inForce(f) {
		return nil
	}
	return notInForce(f, y.fault)
}

// problems returns what is needed and unavailable.
func (y *family) problems() []balancer.Problem {
	if y.failed != nil {
		return y.lost(y.failed)
	}
	if y.accept.fault != nil && y.needed() {
		return []balancer.Problem{y.problem(balancer.SeverityWarning, "services do not work where the policy of FORWARD or INPUT is DROP", y.accept.fault)}
	}
	return nil
}

// resync makes the next prepare and finish compare in full, and try again what was unavailable.
func (y *family) resync() {
	y.failed, y.table.Next = nil, time.Time{}
	y.accept.resync()
	y.forget()
}

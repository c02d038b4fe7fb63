package nft

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Maintained is a table that this process writes. A single request reveals whether there have been
// transactions since the last check. The kernel's events reveal whether other programs have changed
// the table. Maintained records the chains and rules that this process has written.
type Maintained struct {
	*Conn
	Table Table
	// Shape is the table's last known shape. It is nil if the table must be read.
	Shape Shape
	// seen is the generation at the last check. foreign is the number of other programs' changes up
	// to then.
	seen    uint32
	foreign uint64
	// Next is the earliest time at which the table is read again after a change by another program.
	Next time.Time
}

// Shape describes a table without its elements. It maps each chain to its policy and rules, and the
// empty name to the state of the table itself.
type Shape map[string]string

// Remove deletes the table if it exists.
func (o *Maintained) Remove() error {
	there, err := o.HasTable(o.Table)
	if err != nil || !there {
		return err
	}
	o.Shape = nil
	var tx Tx
	tx.DeleteTable(o.Table)
	if err := o.Conn.Commit(&tx); err != nil && !errors.Is(err, unix.ENOENT) { // another trial may have deleted the table
		return fmt.Errorf("deleting the table %s: %w", o.Table, err)
	}
	return nil
}

// Try commits a transaction that creates the table, and then deletes the table. An error names the
// feature that the kernel does not support. Try first deletes any table that an interrupted trial
// left.
func (o *Maintained) Try(tx *Tx) error {
	if err := o.Remove(); err != nil {
		return err
	}
	if err := o.Conn.Commit(tx); err != nil {
		return err
	}
	return o.Remove()
}

// Read returns the current shape of the table.
func (o *Maintained) Read() (Shape, error) {
	state, err := o.tableState(o.Table)
	if err != nil || state == "" {
		return nil, err
	}
	all := Shape{"": state}
	chains, err := o.Chains(o.Table)
	if err != nil {
		return nil, err
	}
	rules, err := o.Rules(o.Table, "")
	all.add(chains, rules)
	return all, err
}

// add adds the states of chains and their rules to the shape.
func (s Shape) add(chains []Found, rules []FoundRule) {
	for _, c := range chains {
		s[c.Name] = fmt.Sprint(c.Policy)
	}
	for _, r := range rules {
		s[r.Chain] += fmt.Sprintf(" %d:%x", r.Handle, r.Content)
	}
}

// Commit commits a transaction, and records the new state of the written chains, or of the whole
// table if Shape is nil. It returns ErrBusy if another program has changed the table since the last
// Look or ReadConsistent, because the recorded state might include that program's changes.
func (o *Maintained) Commit(tx *Tx) error {
	if err := o.Conn.Commit(tx); err != nil {
		return err
	}
	if tx.deletesTable() {
		o.Shape = nil
	}
	var written []string
	for name, there := range tx.chains() {
		if delete(o.Shape, name); there {
			written = append(written, name)
		}
	}
	if len(written) == 0 {
		return nil
	}
	learned, err := o.learn(written)
	if err != nil {
		return err
	}
	now, err := o.Generation()
	if err != nil {
		return err
	}
	if o.Foreign(o.Table, now) != o.foreign {
		return ErrBusy
	}
	if o.Shape == nil {
		o.Shape = learned
	} else {
		maps.Copy(o.Shape, learned)
	}
	return nil
}

// learn reads the state of the named chains, or of the whole table if its state is unknown.
func (o *Maintained) learn(written []string) (Shape, error) {
	if o.Shape == nil {
		return o.Read()
	}
	all := Shape{}
	for _, name := range written {
		chains, err := o.chain(o.Table, name)
		if err != nil {
			return nil, err
		}
		rules, err := o.Rules(o.Table, name)
		if err != nil {
			return nil, err
		}
		all.add(chains, rules)
	}
	return all, nil
}

// Changed describes a difference between the table and its recorded state, or returns "". It
// ignores additional chains that other programs have added.
func (o *Maintained) Changed() (string, error) {
	now, err := o.Read()
	if err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Shape)) {
		_, there := now[name]
		switch {
		case now[name] == o.Shape[name]:
		case name == "":
			return "it was deleted, or its dormant flag is set", nil
		case !there:
			return fmt.Sprintf("chain %s is missing", name), nil
		default:
			return fmt.Sprintf("chain %s was changed", name), nil
		}
	}
	return "", nil
}

// Reading a table takes at most 1/lookShare of the time. The pause is at most longestPause, because
// checks run once a second and a change must be found within two seconds.
const (
	lookShare    = 100
	longestPause = time.Second
)

// Look calls compare and returns its result if another program has changed the table since the last
// Look. It does not call compare if the table was read very recently.
func (o *Maintained) Look(compare func() (reason string, err error)) (reason string, err error) {
	now, err := o.Generation()
	if err != nil || now == o.seen {
		return "", err
	}
	foreign := o.Foreign(o.Table, now)
	if foreign == o.foreign && o.seen != 0 {
		o.seen = now
		return "", nil
	}
	if time.Now().Before(o.Next) {
		return "", nil
	}
	began := time.Now()
	reason, err = compare()
	o.Next = time.Now().Add(min(lookShare*time.Since(began), longestPause))
	if err == nil && reason == "" {
		o.seen, o.foreign = now, foreign
	}
	if reason != "" {
		reason = fmt.Sprintf("table %s: %s", o.Table, reason)
	}
	return reason, err
}

// ErrBusy means that another program changed the table while it was being read or written.
var ErrBusy = errors.New("another program is changing it at the same time")

// Tries is the maximum number of attempts that may fail with ErrBusy.
const Tries = 10

// ReadConsistent calls the function read, and records that the table was read. If another program
// changes the table during the call, it repeats the call. After too many attempts, it returns
// ErrBusy.
func (o *Maintained) ReadConsistent(read func() error) error {
	for range Tries {
		before, err := o.Generation()
		if err != nil {
			return err
		}
		foreign := o.Foreign(o.Table, before)
		if err := read(); err != nil {
			return err
		}
		after, err := o.Generation()
		if err != nil {
			return err
		}
		if o.Foreign(o.Table, after) == foreign {
			o.seen, o.foreign = after, foreign
			return nil
		}
	}
	return ErrBusy
}

// Cleanup deletes the named tables in all families. It returns a description of each step. A dry
// run changes nothing.
func Cleanup(dry bool, names ...string) (done []string, failed error) {
	c, err := Open()
	if err != nil {
		return nil, nil //nolint:nilerr // a kernel without nf_tables has no tables of vipd
	}
	for _, f := range []TableFamily{IPv4, IPv6, Netdev} {
		for _, name := range names {
			o := Maintained{Conn: c, Table: Table{f, name}}
			if there, err := c.HasTable(o.Table); err != nil || !there {
				continue
			}
			if !dry {
				if err := o.Remove(); err != nil {
					failed = errors.Join(failed, err)
					continue
				}
			}
			done = append(done, "delete the nftables table "+o.Table.String())
		}
	}
	return done, errors.Join(failed, c.Close())
}

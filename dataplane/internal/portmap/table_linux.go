package portmap

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// Table is one family's table. Calls to its methods must not overlap.
type Table struct {
	nft.Maintained
	kind    Kind
	numbers *nft.Set
	// keep reports whether Observe must not remove an existing table, because an earlier process or
	// an interrupted write may have left it.
	keep bool
	// have holds the kernel's entries. It is nil if they are unknown.
	have map[balancer.Key]uint32
}

// New returns the table for a kind and family. The kernel has no table before the first Set.
func New(conn *nft.Conn, family inet.Family, kind Kind) *Table {
	table, numbers := kind.tableOf(family)
	return &Table{kind: kind, numbers: numbers, Maintained: nft.Maintained{Conn: conn, Table: table}}
}

// trialSuffix is appended to the name of a table that a trial creates and deletes.
const trialSuffix = "-trial"

// Works returns an error if a trial reveals that the kernel does not support the table.
func (t *Table) Works() error {
	trial := nft.Maintained{Conn: t.Conn, Table: nft.Table{Family: t.Table.Family, Name: t.Table.Name + trialSuffix}}
	var tx nft.Tx
	t.kind.define(&tx, trial.Table, t.numbers)
	if err := trial.Try(&tx); err != nil {
		return fmt.Errorf("mapping port ranges with nf_tables: %w", err)
	}
	return nil
}

// Adopt makes Observe keep an earlier process's table until Set replaces it.
func (t *Table) Adopt() { t.keep = true }

// Set replaces the entries. The keys' ports must not overlap.
func (t *Table) Set(ctx context.Context, want map[balancer.Key]uint32) error {
	switch {
	case t.have != nil && maps.Equal(t.have, want), len(want) == 0 && t.have == nil && !t.keep:
		return nil
	case len(want) == 0:
		return t.Remove()
	}
	if t.have != nil {
		if err := t.write(ctx, want); err == nil {
			return nil
		}
		t.have = nil // the transaction may have failed because another program changed the table
	}
	t.keep = true // an interrupted write leaves a table
	err := nft.ErrBusy
	for tries := 0; tries < nft.Tries && errors.Is(err, nft.ErrBusy); tries++ {
		if err = t.ReadConsistent(func() error { return nil }); err == nil {
			err = t.write(ctx, want)
		}
	}
	return err
}

// write changes the table from have to want. If have is nil, it writes everything.
func (t *Table) write(ctx context.Context, want map[balancer.Key]uint32) error {
	var tx nft.Tx
	if t.have == nil {
		t.kind.define(&tx, t.Table, t.numbers)
	}
	var removed, added []nft.Elem
	for k, number := range t.have {
		if n, ok := want[k]; !ok || n != number {
			removed = append(removed, t.kind.element(k, number))
		}
	}
	for k, number := range want {
		if n, ok := t.have[k]; !ok || n != number {
			added = append(added, t.kind.element(k, number))
		}
	}
	tx.Delete(t.Table, t.numbers, removed...)
	tx.Create(t.Table, t.numbers, added...)
	err := t.Commit(&tx)
	dataplane.Wrote(ctx, tx.Bytes)
	if err == nil {
		t.have = maps.Clone(want)
	}
	return err
}

// Remove deletes the table.
func (t *Table) Remove() error {
	t.have = nil
	if err := t.Maintained.Remove(); err != nil {
		return err
	}
	t.keep = false
	return nil
}

// Leave closes the connection, and keeps the table.
func (t *Table) Leave() {
	_ = t.Conn.Close() // an error of Close is harmless
}

// Close deletes the table if this process created it.
func (t *Table) Close() error {
	if t.have != nil || t.keep {
		if err := t.Remove(); err != nil {
			return err
		}
	}
	t.Leave()
	return nil
}

// Observe removes an earlier process's table before the first Set. After Set, it describes a
// difference between the kernel's entries and the entries that were set, until Set writes them
// again.
func (t *Table) Observe() (damage string, err error) {
	switch {
	case t.have == nil && !t.keep:
		return "", t.Remove()
	case t.have == nil:
		return "the port range map's content is unknown until it is written again", nil
	}
	if damage, err = t.compare(); damage != "" || err != nil {
		t.have = nil
	}
	return damage, err
}

// Intact describes changes by other programs that a cheap check reveals, or returns "".
func (t *Table) Intact() (string, error) {
	if t.have == nil {
		return "", nil
	}
	return t.Look(t.compare)
}

// compare describes a difference between the table and what was last written, or returns "".
func (t *Table) compare() (string, error) {
	if reason, err := t.Changed(); reason != "" || err != nil {
		return reason, err
	}
	found, err := t.Elements(t.Table, t.numbers.Name)
	if err != nil {
		return "", err
	}
	numbers := make(map[string]string, len(found))
	for _, e := range found {
		numbers[string(e.Key)+string(e.KeyEnd)] = string(e.Data)
	}
	same := len(numbers) == len(t.have)
	for k, number := range t.have {
		e := t.kind.element(k, number)
		size := 4
		if t.kind.Data == nft.Dport {
			size = 2
		}
		same = same && numbers[string(e.Key)+string(e.KeyEnd)] == string(e.Data[:size])
	}
	if !same {
		return "elements of the port range map were changed", nil
	}
	return "", nil
}

// Cleanup deletes the table with this name, and its trial's table, in both families. It returns a
// description of each step. A dry run changes nothing.
func Cleanup(dry bool, name string) ([]string, error) {
	return nft.Cleanup(dry, name, name+trialSuffix)
}

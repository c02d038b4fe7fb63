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

// Kind describes a table, and how its rules use the numbers of its map.
type Kind struct {
	// Name is the name of the table.
	Name string
	// Chains are the base chains. Each of them has the rules that Rules returns.
	Chains []nft.Chain
	// Data is the type of the numbers, and Rules returns the rules that look them up.
	Data  nft.Field
	Rules func(number nft.Lookup) []nft.Rule
}

// Table is the table of one family. Calls of its methods must not overlap.
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

// New returns the table of a kind and family. The kernel has no table before the first Set.
func New(conn *nft.Conn, family inet.Family, kind Kind) *Table {
	t := &Table{kind: kind, Maintained: nft.Maintained{Conn: conn, Table: nft.Table{Family: nft.IPv4, Name: kind.Name}}}
	if family == inet.IPv6 {
		t.Table.Family = nft.IPv6
	}
	t.numbers = &nft.Set{Name: "numbers", Key: nft.Concat{nft.Daddr, nft.L4proto, nft.Dport}, Data: kind.Data, Interval: true}
	return t
}

// trialSuffix is the suffix of the name of the table that a trial creates and deletes.
const trialSuffix = "-trial"

// Works returns an error if a trial reveals that the kernel does not support the table.
func (t *Table) Works() error {
	trial := nft.Maintained{Conn: t.Conn, Table: nft.Table{Family: t.Table.Family, Name: t.Table.Name + trialSuffix}}
	var tx nft.Tx
	t.define(&tx, trial.Table)
	if err := trial.Try(&tx); err != nil {
		return fmt.Errorf("mapping ranges of ports by nf_tables: %w", err)
	}
	return nil
}

// define adds steps to a transaction that create an empty table and replace an existing table.
func (t *Table) define(tx *nft.Tx, at nft.Table) {
	tx.AddTable(at) // deleting a missing table would fail
	tx.DeleteTable(at)
	tx.AddTable(at)
	tx.AddSet(at, t.numbers)
	for _, c := range t.kind.Chains {
		tx.AddChain(at, &c)
		for _, r := range t.kind.Rules(nft.Lookup{Key: t.numbers.Key, In: t.numbers}) {
			tx.AddRule(at, c.Name, r)
		}
	}
}

// Adopt makes Observe keep the table of an earlier process until Set replaces it.
func (t *Table) Adopt() { t.keep = true }

// Set replaces the entries. The ports of the keys must not overlap.
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
		if err = t.Steady(func() error { return nil }); err == nil {
			err = t.write(ctx, want)
		}
	}
	return err
}

// write changes the table from have to want. If have is nil, it writes everything.
func (t *Table) write(ctx context.Context, want map[balancer.Key]uint32) error {
	var tx nft.Tx
	if t.have == nil {
		t.define(&tx, t.Table)
	}
	var removed, added []nft.Elem
	for k, number := range t.have {
		if n, ok := want[k]; !ok || n != number {
			removed = append(removed, t.element(k, number))
		}
	}
	for k, number := range want {
		if n, ok := t.have[k]; !ok || n != number {
			added = append(added, t.element(k, number))
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

// element returns the element that maps the ports of k to a number.
func (t *Table) element(k balancer.Key, number uint32) nft.Elem {
	place := func(port uint16) nft.Bytes { return nft.Bytes{}.Addr(k.Addr).Proto(k.Proto.Number()).Port(port) }
	e := nft.Elem{Key: place(k.Port.First()), KeyEnd: place(k.Port.Last()), Data: nft.Bytes{}.Number(number)}
	if t.kind.Data == nft.Dport {
		e.Data = nft.Bytes{}.Port(uint16(number))
	}
	return e
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

// Close deletes the table if this process created it.
func (t *Table) Close() error {
	if t.have != nil || t.keep {
		if err := t.Remove(); err != nil {
			return err
		}
	}
	_ = t.Conn.Close() // an error of Close is harmless
	return nil
}

// Observe removes the table of an earlier process before the first Set. After Set, it describes a
// difference between the kernel's entries and the entries that were set. It continues to do so
// until Set writes them again.
func (t *Table) Observe() (damage string, err error) {
	switch {
	case t.have == nil && !t.keep:
		return "", t.Remove()
	case t.have == nil:
		return "unknown until they are written again", nil
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

// compare describes a difference between the table and its last written state, or returns "".
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
		e := t.element(k, number)
		size := 4
		if t.kind.Data == nft.Dport {
			size = 2
		}
		same = same && numbers[string(e.Key)+string(e.KeyEnd)] == string(e.Data[:size])
	}
	if !same {
		return "elements of the map of ranges of ports were changed", nil
	}
	return "", nil
}

// Cleanup deletes the table with this name, and the table of its trial, in both families. It
// returns a description of each step. A dry run changes nothing.
func Cleanup(dry bool, name string) ([]string, error) {
	return nft.Cleanup(dry, name, name+trialSuffix)
}

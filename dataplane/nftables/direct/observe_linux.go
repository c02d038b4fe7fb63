package direct

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
)

// Observe reads the table. In seen, it sets a frontend's digest to 0 if the frontend is damaged, or
// if only this table contains it.
func (t *Table) Observe(seen *dataplane.Observation) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.readLocked(); err != nil {
		return fmt.Errorf("reading the table %s: %w", t.table.Table, err)
	}
	for k, g := range t.found {
		switch _, known := seen.Digests[k]; {
		case k.Port == 0 && t.fronts[k] != nil && t.damage == "":
			t.damage = "the elements for fragments were changed"
		case k.Port != 0 && (t.fronts[k] != nil || !known && len(g) > 0):
			seen.Digests[k] = 0
		}
	}
	if t.damage != "" {
		seen.Damage = append(seen.Damage, fmt.Sprintf("table %s: %s", t.table.Table, t.damage))
	}
	return nil
}

// Intact describes another program's change to the table, or returns "".
func (t *Table) Intact() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.fronts) == 0 || !t.sound {
		return t.damage, nil
	}
	return t.table.Look(func() (string, error) {
		if err := t.readLocked(); err != nil {
			return "", err
		}
		if t.damage == "" && len(t.found) > 0 {
			return fmt.Sprintf("the elements of %d frontends were changed", len(t.found)), nil
		}
		return t.damage, nil
	})
}

// readLocked reads the table, and stores the elements that differ from fronts in found.
func (t *Table) readLocked() error {
	var shape nft.Shape
	var sets []nft.Found
	elems := map[*nft.Set][]nft.FoundElem{}
	read := func() error {
		var failed, err error
		note := func(err error) { failed = errors.Join(failed, err) }
		shape, err = t.table.Read()
		note(err)
		if shape == nil {
			return failed
		}
		sets, err = t.table.Sets(t.table.Table)
		note(err)
		for _, y := range t.families {
			for _, s := range y.sets() {
				elems[s], err = t.table.Elements(t.table.Table, s.Name)
				note(err)
			}
		}
		return failed
	}
	if err := t.table.ReadConsistent(read); err != nil {
		return err
	}
	if shape != nil && t.foreignSets(sets) {
		return errors.Join(t.table.Remove(), t.readLocked()) // an earlier version created the table
	}
	t.compare(shape, len(sets))
	t.read = true
	t.found = map[balancer.Key]group{}
	for _, y := range t.families {
		for _, s := range y.sets() {
			for _, e := range elems[s] {
				if k, _, ok := y.keyOf(s, e.Key); ok {
					if t.found[k] == nil {
						t.found[k] = group{}
					}
					t.found[k].add(s, e.Elem)
				}
			}
		}
	}
	for k, f := range t.fronts {
		want := t.family(k).elems(k, f, t.layout.via)
		switch found := t.found[k]; {
		case found == nil && len(want) > 0:
			t.found[k] = group{}
		case maps.Equal(found, want):
			delete(t.found, k)
		}
	}
	return nil
}

// compare compares the chains and the number of sets with the expected state, and records the first
// difference as damage.
func (t *Table) compare(shape nft.Shape, sets int) {
	find := func(format string, args ...any) {
		if t.sound && t.damage == "" {
			t.damage = fmt.Sprintf(format, args...)
		}
		t.sound = false
	}
	if len(t.fronts) > 0 && (shape == nil || sets < len(t.families)*len(t.families[0].sets())) {
		find("it is missing or incomplete")
	}
	for _, name := range slices.Sorted(maps.Keys(t.chains)) {
		if shape[name] != t.table.Shape[name] {
			find("the rules of chain %s were changed", name)
		}
	}
	if t.table.Shape != nil && shape[""] != t.table.Shape[""] {
		find("its dormant flag is set")
	}
	if !t.sound {
		t.table.Shape = nil
	}
}

// foreignSets reports whether the table contains unknown sets.
func (t *Table) foreignSets(sets []nft.Found) bool {
	return slices.ContainsFunc(sets, func(found nft.Found) bool {
		return !slices.ContainsFunc(t.families, func(y *family) bool {
			return slices.ContainsFunc(y.sets(), func(s *nft.Set) bool { return s.Name == found.Name })
		})
	})
}

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
)

// Observe reads vipd's tables.
func (d *Dataplane) Observe(context.Context) (dataplane.Observation, error) {
	seen := dataplane.Observation{Digests: map[balancer.Key]dataplane.Digest{}, ReapplyAll: !d.reapplied}
	for _, y := range d.families {
		if err := y.observe(&seen); err != nil {
			return dataplane.Observation{}, fmt.Errorf("reading the table %s: %w", y.schema.table, err)
		}
	}
	if d.direct != nil {
		if err := d.direct.Observe(&seen); err != nil {
			return dataplane.Observation{}, err
		}
	}
	d.reapplied = true
	d.Tracker.Found(seen.Digests)
	return seen, nil
}

func (y *familyTable) observe(seen *dataplane.Observation) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if _, err := y.readLocked(); err != nil {
		return err
	}
	y.doubt = ""
	for k, f := range y.fronts {
		seen.Digests[k] = f.digest
	}
	if y.damage != "" {
		seen.Damage = append(seen.Damage, fmt.Sprintf("table %s: %s", y.schema.table, y.damage))
	}
	return nil
}

// Intact checks the number of the last transaction, and reads vipd's tables if another program has
// committed a transaction since the last check.
func (d *Dataplane) Intact(ctx context.Context) (reason string, failed error) {
	for _, y := range d.families {
		found, err := y.intact()
		if failed = errors.Join(failed, err); found != "" {
			return found, failed
		}
	}
	if d.direct == nil {
		return "", failed
	}
	reason, err := d.direct.Intact()
	if reason == "" && err == nil {
		err = d.direct.Follow(ctx)
	}
	return reason, errors.Join(failed, err)
}

func (y *familyTable) intact() (string, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.doubt != "" || !y.sound {
		return y.doubt, nil
	}
	return y.table.Look(y.readLocked)
}

// brokenLocked reports whether a chain that frontends need is missing, or its rules have changed.
// If the table is not sound, all frontends are applied anyway.
func (y *familyTable) brokenLocked(name string) bool {
	c := y.chains[name]
	return c == nil || y.sound && name != unserved && c.choice == choice{}
}

// tableDump is the content of a table, as read from the kernel.
type tableDump struct {
	shape nft.Shape
	sets  []nft.Found
	elems map[*nft.Set][]nft.FoundElem
}

// of returns the elements of two corresponding maps, for single ports and for ranges.
func (k *tableDump) of(single, ranged *nft.Set) []nft.FoundElem {
	return append(k.elems[single], k.elems[ranged]...)
}

func (y *familyTable) readAll() (k tableDump, err error) {
	return k, y.table.ReadConsistent(func() error {
		x, c := y.schema.table, y.table
		var failed error
		note := func(err error) { failed = errors.Join(failed, err) }
		k.shape, err = c.Read()
		note(err)
		k.sets, err = c.Sets(x)
		note(err)
		k.elems = map[*nft.Set][]nft.FoundElem{}
		for _, set := range y.schema.sets() {
			if set != y.schema.sticky {
				k.elems[set], err = c.Elements(x, set.Name)
				note(err)
			}
		}
		return failed
	})
}

// readLocked reads the table, adopts its content, and returns how it differs from what was last
// written. A changed frontend gets the digest 0 and keeps its elements, so the next Apply writes
// only the difference.
func (y *familyTable) readLocked() (damage string, err error) {
	k, err := y.readAll()
	if err == nil && len(y.chains) == 0 && y.otherVersion(&k) {
		if err = y.table.Remove(); err == nil {
			k, err = y.readAll()
		}
	}
	if err != nil {
		return "", err
	}
	if damage = y.compareRules(&k); damage != "" && !y.sound {
		y.damage = damage
	}
	found := y.frontsOf(&k)
	broken := 0
	for key, f := range found {
		last := y.fronts[key]
		switch {
		case slices.ContainsFunc(f.uses(), y.brokenLocked):
			f.digest = 0
		case last == nil && !y.sound && f.chain != "":
			f.digest = f.stored // an earlier process wrote the frontend
			continue
		case last != nil && last.same(f):
			found[key] = last
			continue
		}
		broken++
	}
	missing := 0
	for key := range y.fronts {
		if found[key] == nil {
			missing++
		}
	}
	if y.sound && damage == "" && broken+missing > 0 {
		damage = fmt.Sprintf("elements of %d frontends were changed, and elements of %d frontends were deleted", broken, missing)
	}
	y.fronts = found
	for _, c := range y.chains {
		c.users = 0
	}
	for _, f := range found {
		for _, name := range f.uses() {
			if c := y.chains[name]; c != nil {
				c.users++
			}
		}
	}
	y.unused = nil
	for name, c := range y.chains {
		if c.users == 0 {
			y.unused = append(y.unused, name)
		}
	}
	return damage, nil
}

// same reports whether the frontend read from the kernel equals f, which was last written.
func (f *front) same(read *front) bool {
	return f.number == read.number && f.chain == read.chain && f.stored == read.stored && f.label == read.label &&
		slices.Equal(f.eps, read.eps) && slices.Equal(f.slots, read.slots) && maps.Equal(f.ids, read.ids) && slices.Equal(f.open, read.open) && maps.Equal(f.targets, read.targets)
}

// otherVersion reports whether the table contains unknown maps. If so, an earlier version created
// the table, and it must be replaced.
func (y *familyTable) otherVersion(k *tableDump) bool {
	return slices.ContainsFunc(k.sets, func(found nft.Found) bool {
		return !slices.ContainsFunc(y.schema.sets(), func(s *nft.Set) bool { return s.Name == found.Name })
	})
}

// foreignNumber is never a chain's number, because numbers are assigned in sequence.
const foreignNumber = math.MaxUint32

// adoptNumbers keeps known chains' numbers, and reads other chains' numbers from the map choices.
// It reports whether the map still matches the last known chains. If not, the map is written again
// with these numbers, so frontends can stay unchanged.
func (y *familyTable) adoptNumbers(k *tableDump, last map[string]*chain) bool {
	want := map[uint32]string{unservedNumber: unserved}
	for name, c := range last {
		if c.number != 0 {
			want[c.number] = name
		}
		if there := y.chains[name]; there != nil {
			there.number = c.number
		}
	}
	choices := k.elems[y.schema.choices]
	same := len(choices) == len(want)
	y.last = max(y.last, unservedNumber)
	slices.SortFunc(choices, func(a, b nft.FoundElem) int { return slices.Compare(a.Key, b.Key) })
	for _, e := range choices {
		n := numberIn(e.Key)
		same = same && want[n] == e.Goto
		y.reserveNumbers(n)
		if c := y.chains[e.Goto]; c != nil && c.number == 0 && n != foreignNumber && e.Goto != unserved && want[n] == "" {
			c.number = n
		}
	}
	return same
}

// reserveNumbers makes new chains' numbers start above n, unless another program's number is so
// high that numbers would run out.
func (y *familyTable) reserveNumbers(n uint32) {
	if n < foreignNumber/2 {
		y.last = max(y.last, n)
	}
}

// numberIn decodes a chain's number or a backend's id. It returns foreignNumber for an invalid
// value, so that the value is replaced.
func numberIn(b []byte) uint32 {
	if len(b) < 4 { // the catch-all element has no key
		return foreignNumber
	}
	if n := binary.NativeEndian.Uint32(b); n > 0 {
		return n
	}
	return foreignNumber
}

// compareRules adopts the existing chains, and describes how they differ from what was last
// written. A chain with changed rules has an unknown choice, and is written again. If a base chain
// has changed, the table is not sound.
func (y *familyTable) compareRules(k *tableDump) (damage string) {
	last, sound := y.chains, y.sound
	find := func(format string, args ...any) {
		if sound && damage == "" {
			damage = fmt.Sprintf(format, args...)
		}
	}
	missing := map[string]bool{} // chains and maps that always exist
	for _, b := range y.schema.baseChains(y.mark) {
		missing[b.Name] = true
	}
	y.chains = map[string]*chain{}
	for name, state := range k.shape {
		same := y.table.Shape[name] == state
		if name == "" {
			if !same {
				find("its dormant flag is set")
				y.sound = false
			}
			continue
		}
		if !same {
			find("chain %s was changed", name)
			y.sound = y.sound && !missing[name]
		}
		if !missing[name] || name == unserved {
			y.chains[name] = &chain{}
			if was := last[name]; was != nil && same {
				y.chains[name].choice = was.choice
			}
		}
		delete(missing, name)
	}
	for name := range last {
		if y.chains[name] == nil {
			find("chain %s is missing", name)
		}
	}
	if !y.adoptNumbers(k, last) {
		find("the elements of map %s were changed", y.schema.choices.Name)
		y.sound = false
	}
	if len(missing) > 0 || len(k.sets) < len(y.schema.sets()) {
		find("chains or maps are missing")
		y.sound = false
	}
	return damage
}

package guard

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"vipd/dataplane"
)

// setStore reads and writes the elements of sets.
type setStore interface {
	Add(set string, entries []setEntry)
	Delete(set string, entries []setEntry)
	List(set string) ([]setEntry, error)
}

// members holds the wanted entries of a set, and the entries that the kernel is known to have.
type members struct {
	def   setDef
	store setStore
	// count is the number of frontends that want each entry; unwanted entries are omitted. In early
	// sets, count includes desired and applied frontends. In other sets, it includes only applied
	// frontends, and asked counts the desired frontends.
	count, asked map[setEntry]int
	have         map[setEntry]bool
	// dirty holds the entries whose presence in the kernel may be wrong.
	dirty map[setEntry]bool
	// veto reports whether a wanted entry must not be in the set. It may be nil.
	veto func(setEntry) bool
	// disjoint reports whether the kernel refuses overlapping networks, or several MSS values, at a
	// place (the address, protocol and port of a frontend). The smallest MSS value applies. near
	// holds, for each place, the entries that are wanted, requested or in the kernel. moved holds
	// the places whose entries in near have changed.
	disjoint bool
	near     map[setEntry]map[setEntry]bool
	moved    map[setEntry]bool
	// kept reports whether an entry must remain in the set even though it is not wanted.
	kept func(setEntry) bool
}

func newMembers(def setDef) *members {
	return &members{
		kept:  func(setEntry) bool { return false },
		def:   def,
		count: map[setEntry]int{}, asked: map[setEntry]int{}, have: map[setEntry]bool{}, dirty: map[setEntry]bool{},
		near: map[setEntry]map[setEntry]bool{}, moved: map[setEntry]bool{},
	}
}

// want adds the argument by to the number of frontends that want an entry.
func (m *members) want(e setEntry, by int) { m.add(m.count, e, by) }

// ask adds the argument by to the number of desired frontends that request an entry. It is used for
// sets that are not early.
func (m *members) ask(e setEntry, by int) { m.add(m.asked, e, by) }

func (m *members) add(to map[setEntry]int, e setEntry, by int) {
	to[e] += by
	if to[e] <= 0 {
		delete(to, e)
	}
	m.dirty[e] = true
	m.updateNear(e)
	if m.disjoint && (e.Net.IsValid() || e.MSS > 0) {
		m.moved[placeOnly(e)] = true
	}
}

// updateNear updates near after a change to the counts of e, or to e in the kernel.
func (m *members) updateNear(e setEntry) {
	if !e.Net.IsValid() && e.MSS == 0 {
		return
	}
	place := placeOnly(e)
	if m.count[e] > 0 || m.asked[e] > 0 || m.have[e] {
		if m.near[place] == nil {
			m.near[place] = map[setEntry]bool{}
		}
		m.near[place][e] = true
	} else if delete(m.near[place], e); len(m.near[place]) == 0 {
		delete(m.near, place)
	}
}

// forgetKernel records that the kernel has no entries.
func (m *members) forgetKernel() {
	had := m.have
	m.have = map[setEntry]bool{}
	for e := range had {
		m.updateNear(e)
	}
}

// markMoved marks all entries at changed places as dirty. An entry there may have become redundant,
// or may no longer be redundant.
func (m *members) markMoved() {
	if len(m.moved) == 0 {
		return
	}
	for place := range m.moved {
		maps.Copy(m.dirty, m.near[place])
	}
	m.moved = map[setEntry]bool{}
}

// wider returns the possible entries at e's place whose networks contain e's network.
func wider(e setEntry) iter.Seq[setEntry] {
	return func(yield func(setEntry) bool) {
		for bits := e.Net.Bits() - 1; bits > 0; bits-- {
			w := placeOnly(e)
			if w.Net = netip.PrefixFrom(e.Net.Addr(), bits).Masked(); !yield(w) {
				return
			}
		}
	}
}

// contained reports whether another wanted or kept entry at the same place makes this entry
// redundant. The other entry has a larger network or a smaller MSS.
func (m *members) contained(e setEntry) bool {
	stays := func(x setEntry) bool { return m.count[x] > 0 || m.have[x] && m.kept(x) }
	if e.MSS > 0 {
		for x := range m.near[placeOnly(e)] {
			if x.MSS < e.MSS && stays(x) {
				return true
			}
		}
	}
	for w := range wider(e) {
		if stays(w) {
			return true
		}
	}
	return false
}

func (m *members) markAll() {
	for e := range m.count {
		m.dirty[e] = true
	}
	for e := range m.have {
		m.dirty[e] = true
	}
}

// wants reports whether the kernel's set should have the entry.
func (m *members) wants(e setEntry) bool {
	return m.count[e] > 0 && (m.def.early || m.asked[e] > 0) && !m.vetoed(e)
}

// displaced returns the unwanted dirty entries that conflict with a wanted entry at their place.
func (m *members) displaced() map[setEntry]bool {
	out, places, unwanted := map[setEntry]bool{}, map[setEntry]bool{}, map[setEntry]bool{}
	for e := range m.dirty {
		if m.disjoint && m.have[e] && m.count[e] == 0 && !m.kept(e) {
			places[placeOnly(e)], unwanted[e] = true, true
		}
	}
	for place := range places {
		for x := range m.near[place] {
			if m.count[x] == 0 {
				continue
			}
			for w := range wider(x) {
				if unwanted[w] {
					out[w] = true
				}
			}
			if x.MSS == 0 {
				continue
			}
			for e := range m.near[place] {
				if e.MSS < x.MSS && unwanted[e] {
					out[e] = true
				}
			}
		}
	}
	return out
}

func (m *members) vetoed(e setEntry) bool {
	return m.veto != nil && m.veto(e) || m.disjoint && m.contained(e)
}

// compare reads the kernel's entries, and marks all entries as dirty.
func (m *members) compare() error {
	entries, err := m.store.List(m.def.name)
	if err != nil {
		return err
	}
	m.forgetKernel()
	for _, e := range entries {
		m.have[e], m.dirty[e] = true, true
		m.updateNear(e)
	}
	for e := range m.count {
		m.dirty[e] = true
	}
	return nil
}

func (m *members) fill() { m.flush(m.store.Add, true) }

func (m *members) trim() { m.flush(m.store.Delete, false) }

// withdraw deletes vetoed and displaced entries, which must not exist while other frontends are
// being applied. In sets that are not early, it also deletes entries that no desired frontend
// requests.
func (m *members) withdraw() {
	m.markMoved()
	if len(m.dirty) == 0 {
		return
	}
	displaced := m.displaced()
	var change []setEntry
	for e := range m.dirty {
		if m.have[e] && (m.vetoed(e) || !m.def.early && m.asked[e] == 0 || displaced[e]) {
			change = append(change, e)
		}
	}
	m.change(m.store.Delete, change, false)
}

func (m *members) flush(apply func(string, []setEntry), present bool) {
	m.markMoved()
	if len(m.dirty) == 0 {
		return
	}
	var change []setEntry
	for e := range m.dirty {
		wanted := m.wants(e)
		switch {
		case wanted == m.have[e]:
			delete(m.dirty, e)
		case wanted == present && (present || m.count[e] > 0 || !m.kept(e)):
			change = append(change, e)
		}
	}
	m.change(apply, change, present)
	m.dirty = dataplane.Shrink(m.dirty)
}

func (m *members) change(apply func(string, []setEntry), change []setEntry, present bool) {
	if len(change) == 0 {
		return
	}
	slices.SortFunc(change, setEntry.compare)
	apply(m.def.name, change)
	for _, e := range change {
		delete(m.dirty, e)
		if present {
			m.have[e] = true
		} else {
			delete(m.have, e)
		}
		m.updateNear(e)
	}
}

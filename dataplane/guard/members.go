package guard

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"vipd/dataplane"
)

// setKernel is what changes what is in sets.
type setKernel interface {
	Add(set string, entries []entry)
	Delete(set string, entries []entry)
	List(set string) ([]entry, error)
}

// members is one set: what shall be in it, and what the kernel is known to have.
type members struct {
	def    setDef
	kernel setKernel
	// count says how many frontends want each entry; unwanted ones are not in it. In sets that are not early it counts
	// applied frontends, and asked wanted ones.
	count, asked map[entry]int
	have         map[entry]bool
	// dirty are the entries of which count and have may differ.
	dirty map[entry]bool
	// veto, unless nil, says which entries stay out even if they are wanted.
	veto func(entry) bool
	// disjoint: the kernel takes no network beside one that contains it, and no second MSS, of which the least counts. near has
	// those at each place that are wanted, asked for or there, and moved the places where that has changed.
	disjoint bool
	near     map[entry]map[entry]bool
	moved    map[entry]bool
	// kept says which unwanted entries stay in.
	kept func(entry) bool
}

func newMembers(def setDef) *members {
	return &members{
		kept:  func(entry) bool { return false },
		def:   def,
		count: map[entry]int{}, asked: map[entry]int{}, have: map[entry]bool{}, dirty: map[entry]bool{},
		near: map[entry]map[entry]bool{}, moved: map[entry]bool{},
	}
}

// want changes by how many an entry is wanted.
func (m *members) want(e entry, by int) { m.add(m.count, e, by) }

// ask changes how many wanted frontends ask for an entry of a set that is not early.
func (m *members) ask(e entry, by int) { m.add(m.asked, e, by) }

func (m *members) add(to map[entry]int, e entry, by int) {
	to[e] += by
	if to[e] <= 0 {
		delete(to, e)
	}
	m.dirty[e] = true
	m.settle(e)
	if m.disjoint && (e.Net.IsValid() || e.MSS > 0) {
		m.moved[at(e)] = true
	}
}

// settle has near be right where an entry has changed.
func (m *members) settle(e entry) {
	if !e.Net.IsValid() && e.MSS == 0 {
		return
	}
	place := at(e)
	if m.count[e] > 0 || m.asked[e] > 0 || m.have[e] {
		if m.near[place] == nil {
			m.near[place] = map[entry]bool{}
		}
		m.near[place][e] = true
	} else if delete(m.near[place], e); len(m.near[place]) == 0 {
		delete(m.near, place)
	}
}

// lose takes in that the kernel has none.
func (m *members) lose() {
	had := m.have
	m.have = map[entry]bool{}
	for e := range had {
		m.settle(e)
	}
}

// spread has what is at places that have changed be looked at again: what an entry contained may have to stand for itself, or need not.
func (m *members) spread() {
	if len(m.moved) == 0 {
		return
	}
	for place := range m.moved {
		maps.Copy(m.dirty, m.near[place])
	}
	m.moved = map[entry]bool{}
}

// wider are the networks that contain an entry's, at its place.
func wider(e entry) iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for bits := e.Net.Bits() - 1; bits > 0; bits-- {
			w := at(e)
			if w.Net = netip.PrefixFrom(e.Net.Addr(), bits).Masked(); !yield(w) {
				return
			}
		}
	}
}

// contained reports whether another entry that is wanted, or stays, at the same place does for this one: one whose network
// contains its network, or whose MSS is less.
func (m *members) contained(e entry) bool {
	stays := func(x entry) bool { return m.count[x] > 0 || m.have[x] && m.kept(x) }
	if e.MSS > 0 {
		for x := range m.near[at(e)] {
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

// touch has all entries looked at again.
func (m *members) touch() {
	for e := range m.count {
		m.dirty[e] = true
	}
	for e := range m.have {
		m.dirty[e] = true
	}
}

// wants reports whether the entry shall be there.
func (m *members) wants(e entry) bool {
	return m.count[e] > 0 && (m.def.early || m.asked[e] > 0) && !m.vetoed(e)
}

// displaced are entries among those to look at that nothing wants, and that keep out one that is wanted at their place.
func (m *members) displaced() map[entry]bool {
	out, places, unwanted := map[entry]bool{}, map[entry]bool{}, map[entry]bool{}
	for e := range m.dirty {
		if m.disjoint && m.have[e] && m.count[e] == 0 && !m.kept(e) {
			places[at(e)], unwanted[e] = true, true
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

func (m *members) vetoed(e entry) bool {
	return m.veto != nil && m.veto(e) || m.disjoint && m.contained(e)
}

// compare takes in what the set holds.
func (m *members) compare() error {
	entries, err := m.kernel.List(m.def.name)
	if err != nil {
		return err
	}
	m.lose()
	for _, e := range entries {
		m.have[e], m.dirty[e] = true, true
		m.settle(e)
	}
	for e := range m.count {
		m.dirty[e] = true
	}
	return nil
}

// fill adds what is missing.
func (m *members) fill() { m.flush(m.kernel.Add, true) }

// trim deletes what is too much.
func (m *members) trim() { m.flush(m.kernel.Delete, false) }

// withdraw deletes what must not be there when others are applied: what is vetoed or displaced, or, in a set that is not
// early, what no wanted frontend asks for any more.
func (m *members) withdraw() {
	m.spread()
	if len(m.dirty) == 0 {
		return
	}
	displaced := m.displaced()
	var change []entry
	for e := range m.dirty {
		if m.have[e] && (m.vetoed(e) || !m.def.early && m.asked[e] == 0 || displaced[e]) {
			change = append(change, e)
		}
	}
	m.carryOut(m.kernel.Delete, change, false)
}

func (m *members) flush(apply func(string, []entry), present bool) {
	m.spread()
	if len(m.dirty) == 0 {
		return
	}
	var change []entry
	for e := range m.dirty {
		wanted := m.wants(e)
		switch {
		case wanted == m.have[e]:
			delete(m.dirty, e)
		case wanted == present && (present || m.count[e] > 0 || !m.kept(e)):
			change = append(change, e)
		}
	}
	m.carryOut(apply, change, present)
	m.dirty = dataplane.Shrink(m.dirty)
}

// carryOut has the kernel make the change, and notes it.
func (m *members) carryOut(apply func(string, []entry), change []entry, present bool) {
	if len(change) == 0 {
		return
	}
	slices.SortFunc(change, entry.compare)
	apply(m.def.name, change)
	for _, e := range change {
		delete(m.dirty, e)
		if present {
			m.have[e] = true
		} else {
			delete(m.have, e)
		}
		m.settle(e)
	}
}

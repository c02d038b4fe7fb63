package guard

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
)

// setKernel is what changes what is in sets.
type setKernel interface {
	Add(set string, entries []ipset.Entry) error
	Delete(set string, entries []ipset.Entry) error
	List(set string) ([]ipset.Entry, error)
}

// setMaker makes the sets too, which are no part of a table; *ipset.Conn does it.
type setMaker interface {
	setKernel
	Create(set string, kind ipset.Kind, family inet.Family) error
	CreatePassing(set string, kind ipset.Kind, family inet.Family, p ipset.Passing) error
	Destroy(set string) error
	Header(set string) (ipset.Header, error)
}

// members is one set: what shall be in it, and what the kernel is known to have.
type members struct {
	def    setDef
	kernel setKernel
	family inet.Family
	name   string
	// count says how many frontends want each entry; unwanted ones are not in it. In sets that are not early it counts
	// applied frontends, and asked wanted ones.
	count, asked map[ipset.Entry]int
	have         map[ipset.Entry]bool
	// dirty are the entries of which count and have may differ.
	dirty map[ipset.Entry]bool
	// veto, unless nil, says which entries stay out even if they are wanted.
	veto func(ipset.Entry) bool
	// disjoint: the kernel takes no network beside one that contains it, and no second MSS, of which the least counts. near has
	// those at each place that are wanted, asked for or there, and moved the places where that has changed.
	disjoint bool
	near     map[ipset.Entry]map[ipset.Entry]bool
	moved    map[ipset.Entry]bool
	// kept says which unwanted entries stay in.
	kept func(ipset.Entry) bool
	// state is what is known of the set itself; lacking is why the kernel can't have it.
	state   setState
	lacking error
}

// setState is what is known of a set in the kernel.
type setState string

const (
	unseen  setState = ""        // nothing
	absent  setState = "absent"  // it is not there, or can't be
	present setState = "present" // it is there, and was compared
)

func newMembers(def setDef, family inet.Family) *members {
	return &members{
		kept: func(ipset.Entry) bool { return false },
		def:  def, family: family,
		count: map[ipset.Entry]int{}, asked: map[ipset.Entry]int{}, have: map[ipset.Entry]bool{}, dirty: map[ipset.Entry]bool{},
		near: map[ipset.Entry]map[ipset.Entry]bool{}, moved: map[ipset.Entry]bool{},
	}
}

// want changes by how many an entry is wanted.
func (m *members) want(e ipset.Entry, by int) { m.add(m.count, e, by) }

// ask changes how many wanted frontends ask for an entry of a set that is not early.
func (m *members) ask(e ipset.Entry, by int) { m.add(m.asked, e, by) }

func (m *members) add(to map[ipset.Entry]int, e ipset.Entry, by int) {
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
func (m *members) settle(e ipset.Entry) {
	if !e.Net.IsValid() && e.MSS == 0 {
		return
	}
	place := at(e)
	if m.count[e] > 0 || m.asked[e] > 0 || m.have[e] {
		if m.near[place] == nil {
			m.near[place] = map[ipset.Entry]bool{}
		}
		m.near[place][e] = true
	} else if delete(m.near[place], e); len(m.near[place]) == 0 {
		delete(m.near, place)
	}
}

// lose takes in that the kernel has none.
func (m *members) lose() {
	had := m.have
	m.have = map[ipset.Entry]bool{}
	for e := range had {
		m.settle(e)
	}
}

// spread has what is at places that have changed be looked at again: what an entry contained may have to stand for itself, or need not.
func (m *members) spread() {
	for place := range m.moved {
		maps.Copy(m.dirty, m.near[place])
	}
	m.moved = map[ipset.Entry]bool{}
}

// wider are the networks that contain an entry's, at its place.
func wider(e ipset.Entry) iter.Seq[ipset.Entry] {
	return func(yield func(ipset.Entry) bool) {
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
func (m *members) contained(e ipset.Entry) bool {
	stays := func(x ipset.Entry) bool { return m.count[x] > 0 || m.have[x] && m.kept(x) }
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
func (m *members) wants(e ipset.Entry) bool {
	return m.count[e] > 0 && (m.def.early || m.asked[e] > 0) && !m.vetoed(e)
}

// displaced are entries among those to look at that nothing wants, and that keep out one that is wanted at their place.
func (m *members) displaced() map[ipset.Entry]bool {
	out, places, unwanted := map[ipset.Entry]bool{}, map[ipset.Entry]bool{}, map[ipset.Entry]bool{}
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

func (m *members) vetoed(e ipset.Entry) bool {
	return m.veto != nil && m.veto(e) || m.disjoint && m.contained(e)
}

// create makes sure that the set is there, and compares it in full with what is wanted.
func (m *members) create(sets setMaker) error {
	if p := m.def.passing; p != nil { // what is in it is not ours to say
		if err := sets.CreatePassing(m.name, m.def.kind, m.family, *p); err != nil {
			return err
		}
		m.state = present
		return nil
	}
	if err := sets.Create(m.name, m.def.kind, m.family); err != nil {
		return err
	}
	return m.compare()
}

// compare takes in what the set holds.
func (m *members) compare() error {
	entries, err := m.kernel.List(m.name)
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
	m.state = present
	return nil
}

// destroy removes the set. The kernel frees rules of the nft variant a moment after they are gone, so a set that is in
// use may be free soon.
func (m *members) destroy(ctx context.Context, sets setMaker) error {
	if err := ipset.Soon(ctx, sets.Destroy, m.name); err != nil {
		return err
	}
	m.state = absent
	m.lose()
	clear(m.dirty)
	for e := range m.count {
		m.dirty[e] = true
	}
	return nil
}

// discard is destroy for a set that may not be there, which is asked for first: to destroy nothing many kernels wait for
// all their processors.
func (m *members) discard(ctx context.Context, sets setMaker) error {
	if m.state == unseen {
		_, err := sets.Header(m.name)
		if errors.Is(err, ipset.ErrNotFound) {
			m.state = absent
			m.lose()
		} else if err != nil {
			return err
		}
	}
	if m.state == absent {
		return nil
	}
	return m.destroy(ctx, sets)
}

// fill adds what is missing.
func (m *members) fill() error {
	return m.flush(m.kernel.Add, true)
}

// trim deletes what is too much.
func (m *members) trim() error {
	return m.flush(m.kernel.Delete, false)
}

// withdraw deletes what must not be there when others are applied: what is vetoed or displaced, or, in a set that is not
// early, what no wanted frontend asks for any more.
func (m *members) withdraw() error {
	m.spread()
	displaced := m.displaced()
	var change []ipset.Entry
	for e := range m.dirty {
		if m.have[e] && (m.vetoed(e) || !m.def.early && m.asked[e] == 0 || displaced[e]) {
			change = append(change, e)
		}
	}
	return m.carryOut(m.kernel.Delete, change, false)
}

func (m *members) flush(apply func(string, []ipset.Entry) error, present bool) error {
	m.spread()
	var change []ipset.Entry
	for e := range m.dirty {
		wanted := m.wants(e)
		switch {
		case wanted == m.have[e]:
			delete(m.dirty, e)
		case wanted == present && (present || m.count[e] > 0 || !m.kept(e)):
			change = append(change, e)
		}
	}
	err := m.carryOut(apply, change, present)
	m.dirty = dataplane.Shrink(m.dirty)
	return err
}

// carryOut has the kernel make the change, and notes it.
func (m *members) carryOut(apply func(string, []ipset.Entry) error, change []ipset.Entry, present bool) error {
	if len(change) == 0 {
		return nil
	}
	slices.SortFunc(change, ipset.Entry.Compare)
	if err := apply(m.name, change); err != nil {
		return err
	}
	for _, e := range change {
		delete(m.dirty, e)
		if present {
			m.have[e] = true
		} else {
			delete(m.have, e)
		}
		m.settle(e)
	}
	return nil
}

// intact reports what is wrong with the set as far as its header shows: entries that are gone.
func (m *members) intact(sets setMaker) (string, error) {
	h, err := sets.Header(m.name)
	switch {
	case errors.Is(err, ipset.ErrNotFound):
		return "ipset " + m.name + " is gone", nil
	case err != nil:
		return "", err
	case h.Elements != len(m.have) && m.def.passing == nil:
		return "entries of ipset " + m.name + " were changed", nil
	}
	return "", nil
}

package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane/internal/nft"
)

// Render returns the frontends' tables as input for "nft -f -". mark is Options.Mark.
func Render(frontends []*balancer.Frontend, mark uint32) string {
	text := ""
	for _, family := range []nft.TableFamily{nft.IPv4, nft.IPv6} {
		s := newSchema(family)
		var tx nft.Tx
		s.writeBase(&tx, mark)
		empty := tx.Len()
		made, ids := map[string]uint32{unserved: unservedNumber}, false
		for _, f := range frontends {
			if f.Addr.Is4() == (family == nft.IPv4) {
				ids = s.add(&tx, f, made, mark) || ids
			}
		}
		if ids {
			s.writeChoice(&tx, clearing, choice{method: byNone}, mark)
		}
		if tx.Len() > empty {
			text += tx.Text()
		}
	}
	return text
}

// add adds a new frontend to tx, and reports whether the frontend has backend ids. made maps the
// chains that tx already creates to their numbers.
func (s *schema) add(tx *nft.Tx, f *balancer.Frontend, made map[string]uint32, mark uint32) (hasIDs bool) {
	form := render(f)
	ensure := func(c choice) uint32 {
		chain := c.chain(f.Key)
		if made[chain] == 0 {
			s.writeChoice(tx, chain, c, mark)
			made[chain] = uint32(len(made) + 1)
			if c.ports == 0 {
				tx.Create(s.table, s.choices, choiceElem(made[chain], chain))
			}
		}
		return made[chain]
	}
	if form.choice.foreign != "" {
		ensure(form.choice.withOwn())
	}
	number := ensure(form.choice)
	var eps, slots, ids, targets []nft.Elem
	for i, a := range form.slots {
		at := key(f.Key).Number(uint32(i))
		if form.ids == nil {
			eps = append(eps, nft.Elem{Key: at, Data: data(f.Key, a)})
		} else {
			slots = append(slots, nft.Elem{Key: at, Data: nft.Bytes{}.Number(form.ids[a])})
		}
	}
	backends := make([]netip.AddrPort, 0, len(form.ids))
	for a := range form.ids {
		backends = append(backends, a)
	}
	slices.SortFunc(backends, netip.AddrPort.Compare)
	for _, a := range backends {
		ids = append(ids, nft.Elem{Key: key(f.Key).Number(form.ids[a]), Data: data(f.Key, a)})
	}
	for _, port := range slices.Sorted(maps.Keys(form.targets)) {
		targets = append(targets, nft.Elem{Key: targetKey(f.Key, port), Data: targetData(form.targets[port])})
	}
	in := s.placesOf(f.Key)
	tx.Create(s.table, in.eps, eps...)
	tx.Create(s.table, in.slots, slots...)
	tx.Create(s.table, in.backends, ids...)
	if f.Key.Port.IsRange() {
		tx.Create(s.table, in.targets, targets...)
		tx.Create(s.table, s.rangeChoices, rangeChoice(f.Key, form.choice.chain(f.Key)))
		tx.Create(s.table, s.ranges, rangeElems(f.Key, form.label, f.Open)...)
	} else {
		tx.Create(s.table, s.frontends, nft.Elem{Key: key(f.Key), Data: nft.Bytes{}.Number(number), Comment: form.label})
	}
	return form.ids != nil
}

package pick

import (
	"slices"
	"sync"

	"vipd/balancer/internal/hash"
)

const (
	// maglevSize is the number of slots: a prime, the smaller one of the two in the paper.
	maglevSize = 65537
	// maglevEmpty marks a slot that is not taken. Of more members than this, the last ones get no slots.
	maglevEmpty = 1<<16 - 1
	// maglevWork bounds the visits to members while a table is filled.
	maglevWork = 4 * maglevSize
	// maglevWalk bounds the slots that are looked at past those of skipped members.
	maglevWalk = 64
)

// maglev looks clients up in a table in which each member has slots in proportion to its weight.
type maglev struct {
	members []member
	table   *maglevTable
	// rest chooses where many members in a row are skipped.
	rest rendezvous
}

// maglevTable is filled at the first pick, since most of its time and memory would be lost on services that change
// often or get no traffic. It depends on addresses and weights only, so pickers can share it.
type maglevTable struct {
	fill  sync.Once
	slots []uint16 // positions of members
}

func newMaglev(members []member, old Picker) *maglev {
	m := &maglev{members: members, rest: newRendezvous(members)}
	if o, ok := old.(*maglev); ok && slices.EqualFunc(o.members, members, sameShare) {
		m.table = o.table
	} else {
		m.table = &maglevTable{}
	}
	return m
}

// sameShare reports whether two members are equal but for their index.
func sameShare(a, b member) bool { return a.addr == b.addr && a.weight == b.weight }

// Pick implements Picker. Past skipped members it goes on to the slots that follow.
func (m *maglev) Pick(f Flow, skip func(i int) bool) int {
	if len(m.members) == 0 {
		return -1
	}
	m.table.fill.Do(func() { m.table.slots = maglevSlots(m.members) })
	key := hashAddr(f.Client.Addr())
	slot := key % maglevSize
	for range maglevWalk {
		if i := m.members[m.table.slots[slot]].index; skip == nil || !skip(i) {
			return i
		}
		if slot++; slot == maglevSize {
			slot = 0
		}
	}
	return m.rest.pick(key, skip)
}

// maglevSeat is a member while a table is filled: the next slot of its permutation, the step to the one after, and the
// part of a slot that is due to it.
type maglevSeat struct {
	slot, step  uint32
	due, weight int64
}

// maglevSlots fills a table: in rounds, in which each member takes the next free slots of its permutation, as many as
// are due to it by its weight. In the first round each takes one at least.
func maglevSlots(members []member) []uint16 {
	members = members[:min(len(members), maglevEmpty)]
	slots := slices.Repeat([]uint16{maglevEmpty}, maglevSize)
	price := maglevPrice(members)
	seats := make([]maglevSeat, len(members))
	for i, m := range members {
		h := hashAddrPort(m.addr)
		seats[i] = maglevSeat{uint32(h % maglevSize), uint32(hash.Mix(h+hash.Offset)%(maglevSize-1)) + 1, price / 2, m.weight}
	}
	for left, first := maglevSize, true; ; first = false {
		for i := range seats {
			s := &seats[i]
			s.due += s.weight
			for take := first; take || s.due >= price; take = false {
				s.take(slots, uint16(i))
				s.due -= price
				if left--; left == 0 {
					return slots
				}
			}
		}
	}
}

// take gives the next free slot of the permutation to member i. There must be one.
func (s *maglevSeat) take(slots []uint16, i uint16) {
	for {
		at := s.slot
		if s.slot += s.step; s.slot >= maglevSize {
			s.slot -= maglevSize
		}
		if slots[at] == maglevEmpty {
			slots[at] = i
			return
		}
	}
}

// maglevPrice is the weight that a slot costs. By the greatest weight the heaviest member takes one slot a round, as in
// the paper; where that needs too many rounds, half of it and so on: the heavy ones then take several at once. Halving
// keeps the price, and with it most of the table, where members come and go.
func maglevPrice(members []member) int64 {
	price, sum := int64(1), int64(0)
	for _, m := range members {
		price = max(price, m.weight)
		sum += m.weight
	}
	for price > 1 && maglevSize*price/sum*int64(len(members)) > maglevWork {
		price /= 2
	}
	return price
}

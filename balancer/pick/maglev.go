package pick

import (
	"slices"
	"sync"

	"vipd/balancer/internal/hash"
)

const (
	// maglevSize is the number of slots, which must be a prime. It is the smaller of the two sizes
	// in the paper.
	maglevSize = 65537
	// maglevEmpty marks a free slot. It is also the maximum number of members that get slots.
	maglevEmpty = 1<<16 - 1
	// maglevWork is the maximum number of visits to members while a table is filled.
	maglevWork = 4 * maglevSize
	// maglevWalk is the maximum number of slots that are tried if members are skipped.
	maglevWalk = 64
)

// maglev looks clients up in a table. Each member has slots in proportion to its weight.
type maglev struct {
	members []candidate
	table   *maglevTable
	// fallback picks a member if the slots that were tried all belong to skipped members.
	fallback rendezvous
}

// maglevTable is a table of slots. It is filled only at the first pick, so services that change
// often or get no traffic do not waste time and memory. It depends only on addresses and weights,
// so pickers can share it.
type maglevTable struct {
	fill  sync.Once
	slots []uint16 // positions of members
}

func newMaglev(members []candidate, old Picker) *maglev {
	m := &maglev{members: members, fallback: newRendezvous(members)}
	if o, ok := old.(*maglev); ok && slices.EqualFunc(o.members, members, sameShare) {
		m.table = o.table
	} else {
		m.table = &maglevTable{}
	}
	return m
}

// sameShare reports whether two members are equal except for their index.
func sameShare(a, b candidate) bool { return a.addr == b.addr && a.weight == b.weight }

// Pick implements Picker. If a slot's member is skipped, it tries the next slots.
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
	return m.fallback.pick(key, skip)
}

// maglevSeat is a member's state while a table is filled: the next slot in its permutation, the
// step between slots, and its credit towards its next slot.
type maglevSeat struct {
	slot, step  uint32
	due, weight int64
}

// maglevSlots returns a filled table. In each round, every member gets the next free slots of its
// permutation, in proportion to its weight. In the first round, each member gets at least one slot.
func maglevSlots(members []candidate) []uint16 {
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
			for minimum := first; minimum || s.due >= price; minimum = false {
				s.claimSlot(slots, uint16(i))
				s.due -= price
				if left--; left == 0 {
					return slots
				}
			}
		}
	}
}

// claimSlot gives member i the next free slot in its permutation. A free slot must exist.
func (s *maglevSeat) claimSlot(slots []uint16, i uint16) {
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

// maglevPrice returns the weight that a slot costs. If the price is the greatest weight, the
// heaviest member gets one slot per round, as in the paper. If that needs too many rounds, the
// price is halved until few rounds are enough. Halving keeps the price the same in most cases when
// a member is added or removed, so most of the table rarely changes.
func maglevPrice(members []candidate) int64 {
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

package direct

import (
	"net/netip"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/nft"
)

// Counted returns the number of connections to each endpoint. It counts TCP segments and SCTP
// packets that open connections, and all datagrams. The result is immutable.
func (t *Table) Counted() map[counters.BackendKey]counters.Count {
	began := time.Now()
	shown, due := t.readings.Shown()
	if !due || !t.mu.TryLock() {
		return shown
	}
	defer t.mu.Unlock()
	live := map[counters.BackendKey]counters.Count{}
	if len(t.fronts) > 0 {
		for _, y := range t.families {
			elems, err := t.table.Elements(t.table.Table, y.counted.Name)
			if err != nil {
				return shown
			}
			t.eachCount(elems, func(k counters.BackendKey, n uint64) { live[k] = live[k].Plus(counters.Count{All: n, Kept: n}) })
		}
	}
	return t.readings.Read(live, began)
}

// eachCount calls the function add with each element's backend and count.
func (t *Table) eachCount(elems []nft.FoundElem, add func(counters.BackendKey, uint64)) {
	for _, e := range elems {
		y := t.families[0]
		if len(e.Data) == 16 {
			y = t.families[1]
		}
		a, valid := netip.AddrFromSlice(e.Data)
		if k, _, ok := y.keyOf(y.counted, e.Key); ok && valid {
			service, port, _ := strings.Cut(t.labelOf(k), "/")
			if service != "" {
				add(counters.BackendKey{Port: counters.Port{Service: balancer.Name(service), Name: port}, Addr: netip.AddrPortFrom(a, k.Port.First())}, e.Packets)
			}
		}
	}
}

// labelOf returns a frontend's label: "service/port". For an earlier process's frontend, it returns
// the label in the kernel.
func (t *Table) labelOf(k balancer.Key) string {
	if f := t.fronts[k]; f != nil {
		return f.label
	}
	y := t.family(k)
	return t.found[k][elemKey{y.services, string(place(k))}].comment
}

func (t *Table) count(deleted []nft.FoundElem) { t.eachCount(deleted, t.readings.End) }

// countLast reads and saves the counts of all elements before the table is deleted.
func (t *Table) countLast() {
	for _, y := range t.families {
		elems, _ := t.table.Elements(t.table.Table, y.counted.Name)
		t.count(elems)
	}
	t.readings.Read(map[counters.BackendKey]counters.Count{}, time.Now())
}

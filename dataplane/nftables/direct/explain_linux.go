package direct

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
)

// Explain describes how the table forwards a new connection from client to f. The client's port is
// 0 if it is unknown. rest is the probability that the NAT tables serve the connection. If it is 1,
// Choice is the reason, or "" if f is not in this table.
func (t *Table) Explain(f *balancer.Frontend, client netip.AddrPort) (x dataplane.Explanation, rest float64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	form := t.fronts[f.Key]
	if form == nil || form.chain.closing {
		return x, 1, nil
	}
	if t.network.isOwn(client.Addr()) {
		x.Choice = "this host's own programs use nat"
		return x, 1, nil
	}
	q := query{Table: t, family: t.family(f.Key), form: form, key: f.Key, slots: map[netip.Addr]int{}, opened: map[netip.Addr]uint64{}}
	considered := q.slotsOf(client)
	if a := q.form.slots[considered[0]]; len(considered) == 1 && t.layout.via[a] == 0 {
		x.Choice = fmt.Sprintf("this client uses nat, because %s is not a neighbor of this host", a)
		return x, 1, nil
	}
	if err := q.findService(); err != nil {
		return x, 0, err
	}
	if err := q.findSlots(considered); err != nil {
		return x, 0, err
	}
	q.out.Unchanged = true
	return q.out, q.describe(considered), nil
}

// query looks up a frontend in the table.
type query struct {
	*Table
	*family
	form *front
	key  balancer.Key
	// slots and opened hold each endpoint's number of slots and of opened connections.
	slots  map[netip.Addr]int
	opened map[netip.Addr]uint64
	out    dataplane.Explanation
}

// slotsOf returns the numbers of the slots that a client's packets may have.
func (q *query) slotsOf(client netip.AddrPort) []int {
	hashed := nft.Bytes{}.Addr(client.Addr())
	if q.form.chain.byPort {
		if client.Port() == 0 {
			all := make([]int, slotCount)
			for i := range all {
				all[i] = i
			}
			return all
		}
		hashed = hashed.Port(client.Port())
	}
	return []int{int(nft.Jhash{Mod: slotCount, Seed: hashSeed}.Sum(hashed))}
}

func (q *query) findService() error {
	there, err := q.find(q.services, place(q.key))
	o := dataplane.Object{Name: q.nameOf(q.services), Missing: len(there) == 0}
	if !o.Missing {
		o.Says = "chain " + there[0].Goto
	}
	q.out.Objects = append(q.out.Objects, o)
	return err
}

func (q *query) findSlots(considered []int) error {
	var keys []nft.Bytes
	for _, i := range considered {
		if index := q.layout.via[q.form.slots[i]]; index != 0 {
			keys = append(keys, place(q.key).Number(index*slotCount+uint32(i)))
		}
	}
	found, err := q.find(q.counted, keys...)
	if err != nil {
		return err
	}
	for _, e := range found {
		if a, ok := netip.AddrFromSlice(e.Data); ok {
			q.slots[a]++
			q.opened[a] += e.Packets
		}
	}
	if missing := len(keys) - len(found); missing > 0 {
		q.out.Objects = append(q.out.Objects, dataplane.Object{Name: q.nameOf(q.counted), Says: fmt.Sprintf("only %d of %d slots exist", len(found), len(keys)), Missing: true})
	}
	return nil
}

// describe describe fills in the choice, the shares and the objects from the slots. rest is the
// fraction of the slots that NAT serves.
func (q *query) describe(considered []int) (rest float64) {
	hash := "a hash of the client's address"
	if q.form.chain.byPort {
		hash += " and port"
	}
	if len(considered) == 1 {
		q.out.Choice = fmt.Sprintf("slot %d of %d, by %s", considered[0], slotCount, hash)
	} else {
		q.out.Choice = fmt.Sprintf("one of %d slots, by %s", slotCount, hash)
	}
	natted := 0
	for _, i := range considered {
		if q.layout.via[q.form.slots[i]] == 0 {
			natted++
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(q.slots), netip.Addr.Compare) {
		q.out.Shares = append(q.out.Shares, dataplane.Share{Backend: netip.AddrPortFrom(a, q.key.Port.First()), Part: float64(q.slots[a]) / float64(len(considered))})
		o := dataplane.Object{Name: q.nameOf(q.counted), Says: fmt.Sprintf("%s through %s", a, q.layout.deviceTo(a))}
		q.out.Objects = append(q.out.Objects, o.Counted(q.opened[a]))
	}
	if natted > 0 {
		q.out.Choice += fmt.Sprintf("; the clients of %d slots use nat, because their endpoints are not neighbors of this host", natted)
	}
	return float64(natted) / float64(len(considered))
}

// maxFound is the maximum number of elements in a single request.
const maxFound = 200

// find reads elements of a map by their keys. It omits missing elements.
func (q *query) find(set *nft.Set, keys ...nft.Bytes) (all []nft.FoundElem, err error) {
	for part := range slices.Chunk(keys, maxFound) {
		elems := make([]nft.Elem, len(part))
		for i, k := range part {
			elems[i].Key = k
		}
		found, err := q.table.Find(q.table.Table, set, elems)
		switch {
		case errors.Is(err, unix.ENOENT) && len(part) > 1: // one of the elements is missing
			for _, k := range part {
				one, err := q.find(set, k)
				if err != nil {
					return nil, err
				}
				all = append(all, one...)
			}
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", q.nameOf(set), err)
		default:
			all = append(all, found...)
		}
	}
	return all, nil
}

// nameOf returns nft's name of a map.
func (q *query) nameOf(s *nft.Set) string {
	return "map " + s.Name + " of table " + q.table.Table.String()
}

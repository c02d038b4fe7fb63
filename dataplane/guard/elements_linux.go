package guard

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/nft"
)

// Add implements setKernel.
func (t *native) Add(set string, entries []ipset.Entry) error {
	t.tx.Add(t.layout.table, t.layout.sets[set], elements(entries)...)
	return nil
}

// Delete implements setKernel.
func (t *native) Delete(set string, entries []ipset.Entry) error {
	t.tx.Delete(t.layout.table, t.layout.sets[set], elements(entries)...)
	return nil
}

// List implements setKernel.
func (t *native) List(set string) ([]ipset.Entry, error) {
	found, err := t.table.Elements(t.layout.table, t.layout.sets[set].Name)
	if err != nil {
		return nil, fmt.Errorf("reading set %s of table %s: %w", set, t.layout.table, err)
	}
	entries := make([]ipset.Entry, 0, len(found))
	read := entryOf
	if set == deadSet || set == quietSet {
		read = endpointOf
	}
	for _, e := range found {
		entries = append(entries, read(&e.Elem, t.family))
	}
	return entries, nil
}

// entryOf reads an element. One that is none of ours becomes an entry that is not wanted.
func entryOf(e *nft.Elem, of inet.Family) (entry ipset.Entry) {
	size := addrSize(of)
	key := e.Key
	if len(key) < size {
		return entry
	}
	entry.Addr, _ = netip.AddrFromSlice(key[:size])
	if len(key) >= size+8 {
		entry.Proto = ipset.Protocol(key[size])
		entry.Port = binary.BigEndian.Uint16(key[size+4:])
	}
	if len(e.Data) >= 2 {
		entry.MSS = binary.BigEndian.Uint16(e.Data)
	}
	if len(key) >= 2*size+8 && len(e.KeyEnd) == len(key) {
		first, _ := netip.AddrFromSlice(key[size+8:])
		last, _ := netip.AddrFromSlice(e.KeyEnd[size+8:])
		entry.Net = netip.PrefixFrom(first, inet.CommonBits(first, last))
	}
	return entry
}

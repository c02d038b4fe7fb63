package guard

import (
	"fmt"
	"maps"
	"net/netip"
)

// readRanges returns the elements of the map from open ports to ranges, by address.
func (y *familyGuard) readRanges() (map[netip.Addr]rangeElements, error) {
	found, err := y.table.Elements(y.layout.table, y.layout.ranges.Name)
	if err != nil {
		return nil, fmt.Errorf("reading map %s of table %s: %w", y.layout.ranges.Name, y.layout.table, err)
	}
	all := map[netip.Addr]rangeElements{}
	for _, e := range found {
		a := entryOf(&e.Elem, y.family).Addr
		if all[a] == nil {
			all[a] = rangeElements{}
		}
		all[a].add(e.Elem)
	}
	return all, nil
}

func sameRanges(a, b map[netip.Addr]rangeElements) bool {
	return maps.EqualFunc(a, b, func(a, b rangeElements) bool { return len(a) == len(b) && len(a.without(b)) == 0 })
}

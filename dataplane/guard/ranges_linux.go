package guard

import "fmt"

// queueRanges queues the changes of the open ports of ranges.
func (y *familyGuard) queueRanges() {
	if y.ranges.changed || !y.ready {
		y.ranges.write(&y.tx, y.layout)
	}
}

// readRanges returns the elements of the map from open ports to ranges.
func (y *familyGuard) readRanges() (rangeElements, error) {
	found, err := y.table.Elements(y.layout.table, y.layout.ranges.Name)
	if err != nil {
		return nil, fmt.Errorf("reading map %s of table %s: %w", y.layout.ranges.Name, y.layout.table, err)
	}
	all := rangeElements{}
	for _, e := range found {
		all.add(e.Elem)
	}
	return all, nil
}

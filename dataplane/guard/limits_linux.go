package guard

import (
	"fmt"
	"strings"
)

// readLimits reads the chains, meters and maps of limits from the kernel.
func (y *familyGuard) readLimits() error {
	chains, err := y.table.Chains(y.layout.table)
	if err != nil {
		return fmt.Errorf("reading the chains of table %s: %w", y.layout.table, err)
	}
	sets, err := y.table.Sets(y.layout.table)
	if err != nil {
		return fmt.Errorf("reading the sets of table %s: %w", y.layout.table, err)
	}
	places, err := y.readPlaces()
	if err != nil {
		return err
	}
	y.limits.forget()
	y.limits.places = places
	for _, c := range chains {
		if strings.HasPrefix(c.Name, limitChain) {
			y.limits.chains[c.Name] = limiter{}
		}
	}
	for _, s := range sets {
		if strings.HasPrefix(s.Name, limitMeter) {
			y.limits.sets[s.Name] = true
		}
	}
	return nil
}

// readPlaces returns the elements of the maps of limits.
func (y *familyGuard) readPlaces() (map[setEntry]string, error) {
	places := map[setEntry]string{}
	for _, l := range []*layout{y.layout, y.layout.inRange} {
		found, err := y.table.Elements(l.table, l.limits.Name)
		if err != nil {
			return nil, fmt.Errorf("reading map %s of table %s: %w", l.limits.Name, l.table, err)
		}
		for _, e := range found {
			places[entryOf(&e.Elem, y.family)] = e.Jump
		}
	}
	return places, nil
}

// queueLimits queues the changes of limits.
func (y *familyGuard) queueLimits(with concerns) {
	if y.limits.changed || !y.ready || with.limited != y.written.limited {
		y.limits.write(&y.tx, y.layout, y.bits, with.limited)
	}
}

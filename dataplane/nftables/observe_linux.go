package nftables

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
)

// Observe reads vipd's tables.
func (d *Dataplane) Observe(context.Context) (dataplane.Observation, error) {
	seen := dataplane.Observation{Digests: map[balancer.Key]dataplane.Digest{}, ReapplyAll: !d.reapplied}
	for _, y := range d.families {
		if err := y.observe(&seen); err != nil {
			return dataplane.Observation{}, fmt.Errorf("reading the table %s: %w", y.schema.table, err)
		}
	}
	if d.direct != nil {
		if err := d.direct.Observe(&seen); err != nil {
			return dataplane.Observation{}, err
		}
	}
	d.reapplied = true
	d.Tracker.Found(seen.Digests)
	return seen, nil
}

func (y *familyTable) observe(seen *dataplane.Observation) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if _, err := y.readLocked(); err != nil {
		return err
	}
	y.doubt = ""
	for k, f := range y.fronts {
		seen.Digests[k] = f.digest
	}
	if y.damage != "" {
		seen.Damage = append(seen.Damage, fmt.Sprintf("table %s: %s", y.schema.table, y.damage))
	}
	return nil
}

// Intact checks the number of the last transaction, and reads vipd's tables if another program has
// committed a transaction since the last check.
func (d *Dataplane) Intact(ctx context.Context) (reason string, failed error) {
	for _, y := range d.families {
		found, err := y.intact()
		if failed = errors.Join(failed, err); found != "" {
			return found, failed
		}
	}
	if d.direct == nil {
		return "", failed
	}
	reason, err := d.direct.Intact()
	if reason == "" && err == nil {
		err = d.direct.Follow(ctx)
	}
	return reason, errors.Join(failed, err)
}

func (y *familyTable) intact() (string, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.doubt != "" || !y.sound {
		return y.doubt, nil
	}
	return y.table.Look(y.readLocked)
}

// brokenLocked reports whether a chain that frontends need is missing, or its rules have changed.
// If the table is not sound, all frontends are applied anyway.
func (y *familyTable) brokenLocked(name string) bool {
	c := y.chains[name]
	return c == nil || y.sound && name != unserved && c.choice == choice{}
}

// tableDump is the content of a table, as read from the kernel.
type tableDump struct {
	shape nft.Shape
	sets  []nft.Found
	elems map[*nft.Set][]nft.FoundElem
}

// of returns the elements of two corresponding maps, for single ports and for ranges.
func (k *tableDump) of(single, ranged *nft.Set) []nft.FoundElem {
	return append(k.elems[single], k.elems[ranged]...)
}

func (y *familyTable) readAll() (k tableDump, err error) {
	return k, y.table.ReadConsistent(func() error {
		x, c := y.schema.table, y.table
		var failed error
		note := func(err error) { failed = errors.Join(failed, err) }
		k.shape, err = c.Read()
		note(err)
		k.sets, err = c.Sets(x)
		note(err)
		k.elems = map[*nft.Set][]nft.FoundElem{}
		for _, set := range y.schema.sets() {
			if set != y.schema.sticky {
				k.elems[set], err = c.Elements(x, set.Name)
				note(err)
			}
		}
		return failed
	})
}

// readLocked reads the table, adopts its content, and returns how it differs from what was last
// written. A changed frontend gets the digest 0 and keeps its elements, so the next Apply writes
// only the difference.
func (y *familyTable) readLocked() (damage string, err error) {
	k, err := y.readAll()
	if err == nil && len(y.chains) == 0 && y.otherVersion(&k) {
		if err = y.table.Remove(); err == nil {
			k, err = y.readAll()
		}
	}
	if err != nil {
		return "", err
	}
	if damage = y.compareRules(&k); damage != "" && !y.sound {
		y.damage = damage
	}
	found := y.frontsOf(&k)
	broken := 0
	for key, f := range found {
		last := y.fronts[key]
		switch {
		case slices.ContainsFunc(f.uses(), y.brokenLocked):
			f.digest = 0
		case last == nil && !y.sound && f.chain != "":
			f.digest = f.stored // an earlier process wrote the frontend
			continue
		case last != nil && last.same(f):
			found[key] = last
			continue
		}
		broken++
	}
	missing := 0
	for key := range y.fronts {
		if found[key] == nil {
			missing++
		}
	}
	if y.sound && damage == "" && broken+missing > 0 {
		damage = fmt.Sprintf("elements of %d frontends were changed, and elements of %d frontends were deleted", broken, missing)
	}
	y.fronts = found
	for _, c := range y.chains {
		c.users = 0
	}
	for _, f := range found {
		for _, name := range f.uses() {
			if c := y.chains[name]; c != nil {
				c.users++
			}
		}
	}
	y.unused = nil
	for name, c := range y.chains {
		if c.users == 0 {
			y.unused = append(y.unused, name)
		}
	}
	return damage, nil
}

// same reports whether the frontend read from the kernel equals f, which was last written.
func (f *front) same(read *front) bool {
	return f.number == read.number && f.chain == read.chain && f.stored == read.stored && f.label == read.label &&
		slices.Equal(f.eps, read.eps) && slices.Equal(f.slots, read.slots) && maps.Equal(f.ids, read.ids) && slices.Equal(f.open, read.open) && maps.Equal(f.targets, read.targets)
}

// otherVersion reports whether the table contains unknown maps. If so, an earlier version created
// the table, and it must be replaced.
func (y *familyTable) otherVersion(k *tableDump) bool {
	return slices.ContainsFunc(k.sets, func(found nft.Found) bool {
		return !slices.ContainsFunc(y.schema.sets(), func(s *nft.Set) bool { return s.Name == found.Name })
	})
}

// foreignNumber is never a chain's number, because numbers are assigned in sequence.
const foreignNumber = math.MaxUint32

// adoptNumbers keeps known chains' numbers, and reads other chains' numbers from the map choices.
// It reports whether the map still matches the last known chains. If not, the map is written again
// with these numbers, so frontends can stay unchanged.
func (y *familyTable) adoptNumbers(k *tableDump, last map[string]*chain) bool {
	want := map[uint32]string{unservedNumber: unserved}
	for name, c := range last {
		if c.number != 0 {
			want[c.number] = name
		}
		if there := y.chains[name]; there != nil {
			there.number = c.number
		}
	}
	choices := k.elems[y.schema.choices]
	same := len(choices) == len(want)
	y.last = max(y.last, unservedNumber)
	slices.SortFunc(choices, func(a, b nft.FoundElem) int { return slices.Compare(a.Key, b.Key) })
	for _, e := range choices {
		n := numberIn(e.Key)
		same = same && want[n] == e.Goto
		y.reserveNumbers(n)
		if c := y.chains[e.Goto]; c != nil && c.number == 0 && n != foreignNumber && e.Goto != unserved && want[n] == "" {
			c.number = n
		}
	}
	return same
}

// reserveNumbers makes new chains' numbers start above n, unless another program's number is so
// high that numbers would run out.
func (y *familyTable) reserveNumbers(n uint32) {
	if n < foreignNumber/2 {
		y.last = max(y.last, n)
	}
}

// numberIn decodes a chain's number or a backend's id. It returns foreignNumber for an invalid
// value, so that the value is replaced.
func numberIn(b []byte) uint32 {
	if len(b) < 4 { // the catch-all element has no key
		return foreignNumber
	}
	if n := binary.NativeEndian.Uint32(b); n > 0 {
		return n
	}
	return foreignNumber
}

// compareRules adopts the existing chains, and describes how they differ from what was last
// written. A chain with changed rules has an unknown choice, and is written again. If a base chain
// has changed, the table is not sound.
func (y *familyTable) compareRules(k *tableDump) (damage string) {
	last, sound := y.chains, y.sound
	find := func(format string, args ...any) {
		if sound && damage == "" {
			damage = fmt.Sprintf(format, args...)
		}
	}
	missing := map[string]bool{} // chains and maps that always exist
	for _, b := range y.schema.baseChains(y.mark) {
		missing[b.Name] = true
	}
	y.chains = map[string]*chain{}
	for name, state := range k.shape {
		same := y.table.Shape[name] == state
		if name == "" {
			if !same {
				find("its dormant flag is set")
				y.sound = false
			}
			continue
		}
		if !same {
			find("chain %s was changed", name)
			y.sound = y.sound && !missing[name]
		}
		if !missing[name] || name == unserved {
			y.chains[name] = &chain{}
			if was := last[name]; was != nil && same {
				y.chains[name].choice = was.choice
			}
		}
		delete(missing, name)
	}
	for name := range last {
		if y.chains[name] == nil {
			find("chain %s is missing", name)
		}
	}
	if !y.adoptNumbers(k, last) {
		find("the elements of map %s were changed", y.schema.choices.Name)
		y.sound = false
	}
	if len(missing) > 0 || len(k.sets) < len(y.schema.sets()) {
		find("chains or maps are missing")
		y.sound = false
	}
	return damage
}

// frontsOf builds the frontends from the elements in k.
func (y *familyTable) frontsOf(k *tableDump) map[balancer.Key]*front {
	all, s := map[balancer.Key]*front{}, y.schema
	chains := map[uint32]string{unservedNumber: unserved}
	for name, c := range y.chains {
		if c.number != 0 {
			chains[c.number] = name
		}
	}
	at := func(key balancer.Key) *front {
		if all[key] == nil {
			all[key] = &front{}
		}
		return all[key]
	}
	of := func(e *nft.FoundElem) (*front, balancer.Key, uint32) {
		key, n, ok := keyOf(e.Key, s.table.Family)
		if !ok {
			return &front{}, key, 0
		}
		return at(key), key, n
	}
	for _, e := range k.elems[s.frontends] {
		x, _, _ := of(&e)
		x.number, x.label = numberIn(e.Data), e.Comment
		x.chain = chains[x.number]
		y.reserveNumbers(x.number)
	}
	for _, e := range k.elems[s.ranges] {
		if key, ports, ok := openPartOf(&e, s.table.Family); ok {
			x := at(key)
			x.open, x.label = append(x.open, ports), e.Comment
		}
	}
	for _, e := range k.elems[s.rangeChoices] {
		x, _, _ := of(&e)
		x.chain = e.Goto
	}
	for _, e := range k.of(s.single.digests, s.ranged.digests) {
		if x, _, _ := of(&e); len(e.Data) >= 8 {
			x.stored = max(1, dataplane.Digest(binary.NativeEndian.Uint32(e.Data))<<32|dataplane.Digest(binary.NativeEndian.Uint32(e.Data[4:]))) // 0 would mean that there is no digest
		}
	}
	for _, e := range k.elems[s.ranged.targets] {
		port, target, ok := targetOf(&e)
		if x, _, _ := of(&e); ok {
			if x.targets == nil {
				x.targets = map[uint16]uint16{}
			}
			x.targets[port] = target
		}
	}
	for _, e := range k.of(s.single.eps, s.ranged.eps) {
		x, key, n := of(&e)
		x.eps = put(x.eps, n, backendOf(key, e.Data, y.firstTarget(key, x.targets)))
	}
	for _, e := range k.of(s.single.slots, s.ranged.slots) {
		x, _, n := of(&e)
		x.slots = put(x.slots, n, numberIn(e.Data))
	}
	for _, e := range k.of(s.single.backends, s.ranged.backends) {
		x, key, n := of(&e)
		if x.ids == nil {
			x.ids = map[uint32]netip.AddrPort{}
		}
		x.ids[n] = backendOf(key, e.Data, y.firstTarget(key, x.targets))
	}
	for key, x := range all {
		x.firstTarget = y.firstTarget(key, x.targets)
		slices.SortFunc(x.open, func(a, b balancer.PortRange) int { return cmp.Compare(a.First(), b.First()) })
	}
	return all
}

// firstTarget returns the first port of a known frontend's backends, if k has a range of ports. For
// an unknown frontend, it uses these elements of range-targets.
func (y *familyTable) firstTarget(k balancer.Key, targets map[uint16]uint16) uint16 {
	if last := y.fronts[k]; last != nil {
		return last.firstTarget
	}
	return firstTargetOf(k, targets)
}

// openPartOf decodes an element of the map ranges. It returns the key of the frontend, and the part
// of its range that the element opens.
func openPartOf(e *nft.FoundElem, f nft.TableFamily) (k balancer.Key, ports balancer.PortRange, ok bool) {
	k, _, ok = keyOf(e.Key, f)
	end, _, okEnd := keyOf(e.KeyEnd, f)
	if !ok || !okEnd || len(e.Data) < 4 {
		return k, 0, false
	}
	ports = balancer.NewPortRange(k.Port.First(), end.Port.First())
	k.Port = balancer.PortRange(binary.NativeEndian.Uint32(e.Data))
	return k, ports, k.Port.IsRange()
}

// targetOf decodes an element of the map range-targets. It returns a port of the range, and the
// endpoints' port. The port is never 0, which means a missing element: another program that writes
// 0 has damaged the element, and any wrong port makes the dataplane repair it.
func targetOf(e *nft.FoundElem) (port, target uint16, ok bool) {
	if len(e.Key) < 4 || len(e.Data) < 2 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(e.Key[len(e.Key)-4:]), max(1, binary.BigEndian.Uint16(e.Data)), true
}

// put sets element n of a list to v, and extends the list if necessary. It ignores an n that is too
// high for any frontend, because another program must have written it.
func put[V any](list []V, n uint32, v V) []V {
	if n >= 1<<20 {
		return list
	}
	for uint32(len(list)) <= n {
		var none V
		list = append(list, none)
	}
	list[n] = v
	return list
}

// keyOf decodes an element's key: its frontend's key, and the number that follows.
func keyOf(b []byte, f nft.TableFamily) (k balancer.Key, n uint32, ok bool) {
	size := 4
	if f == nft.IPv6 {
		size = 16
	}
	if len(b) < size+8 {
		return k, 0, false
	}
	a, _ := netip.AddrFromSlice(b[:size])
	k = balancer.Key{Addr: a, Port: portOf(b[size+4:]), Proto: balancer.ProtocolOf(b[size])}
	if k.Proto == "" {
		return k, 0, false
	}
	if len(b) >= size+12 {
		n = binary.NativeEndian.Uint32(b[size+8:])
	}
	return k, n, true
}

// portOf decodes the port in a key. A single port has two bytes, and the other two are zero. A
// range's number has the first port in the upper half and the last port in the lower half, so
// neither half is zero.
func portOf(b []byte) balancer.PortRange {
	if b[2] == 0 && b[3] == 0 {
		return balancer.PortRange(binary.BigEndian.Uint16(b))
	}
	return balancer.PortRange(binary.NativeEndian.Uint32(b))
}

// backendOf decodes an element's value as a backend of the frontend k. If k has a port range, the
// result has the port firstTarget.
func backendOf(k balancer.Key, b []byte, firstTarget uint16) netip.AddrPort {
	if a, ok := netip.AddrFromSlice(b); ok && k.Port.IsRange() {
		return netip.AddrPortFrom(a, firstTarget)
	}
	if len(b) < 8 {
		return netip.AddrPort{}
	}
	a, _ := netip.AddrFromSlice(b[:len(b)-4])
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[len(b)-4:]))
}

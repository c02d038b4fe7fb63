package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipset"
	"vipd/dataplane/internal/xtables"
)

// Observe reads vipd's chains of the nat table. It recognises frontends by their notes and numbers
// of rules. An earlier process's frontends in another variant count as damaged, and continue to
// serve until they are applied here.
func (d *Dataplane) Observe(ctx context.Context) (dataplane.Observation, error) {
	seen := dataplane.Observation{Digests: map[balancer.Key]dataplane.Digest{}, ReapplyAll: !d.reapplied}
	for _, name := range inet.Families() {
		y := d.families[name]
		if y == nil {
			continue
		}
		if err := y.observe(ctx, &seen); err != nil {
			return dataplane.Observation{}, fmt.Errorf("reading the %s rules: %w", name, err)
		}
	}
	d.reapplied = true
	d.Tracker.Found(seen.Digests)
	return seen, nil
}

func (y *familyRules) observe(ctx context.Context, seen *dataplane.Observation) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	var err error
	if y.slots, err = y.countSets(); err != nil {
		return err
	}
	s := survey{y: y, rules: map[string][]string{}, below: map[string][]string{}}
	stamp, _ := y.tool.Stamp(table) // if it is unknown, the next check compares the table
	leads, err := y.tool.Saved(ctx, table, frontPrefix, s.addChain)
	if err != nil {
		return err
	}
	s.hashes, err = y.tool.ChainHashes(ctx, table, rootChain, slices.AppendSeq(hooks(), maps.Keys(s.rules)))
	if err != nil {
		return err
	}
	y.look.Found(stamp)
	damage := s.adopt(seen.Digests)
	if !y.formerChecked || len(y.former) > 0 { // done last, so a frontend in both variants is applied again, and removed from the other variant
		if err := y.findFormer(ctx, seen.Digests); err != nil {
			return err
		}
	}
	y.formerChecked = true
	if wrong := y.countJumps(leads); wrong != "" && len(y.fronts) > 0 {
		damage = append(damage, fmt.Sprintf("%s leads to %s (%s)", wrong, rootChain, y.name))
	}
	seen.Damage = append(seen.Damage, damage...)
	y.removeOrphansLocked(ctx)
	return nil
}

// findFormer finds the variants in which an earlier process left frontends, and sets the digests of
// these frontends to 0. It removes the rules of variants without frontends.
func (y *familyRules) findFormer(ctx context.Context, digests map[balancer.Key]dataplane.Digest) error {
	y.former, y.formerly = nil, map[balancer.Key]bool{}
	for _, other := range xtables.Existing(ctx, y.name) {
		if other.Variant() == y.tool.Variant() {
			continue
		}
		chains, err := other.Chains(ctx, table, isFront)
		if err != nil {
			return err
		}
		serves := false
		if len(chains) > 0 {
			_, err = other.Saved(ctx, table, frontPrefix, func(_ string, rules []string) error {
				if len(rules) > 0 {
					if n, ok := readNote(rules[len(rules)-1]); ok {
						digests[n.key] = 0
						y.formerly[n.key] = true
						serves = true
					}
				}
				return nil
			})
		}
		if err != nil && !errors.Is(err, xtables.ErrIncompatible) {
			return err
		}
		if serves && err == nil {
			y.former = append(y.former, other)
		} else if err := remove(ctx, other); err != nil {
			return err
		}
	}
	return nil
}

// removeFormer removes an earlier process's rules in another variant when they are no longer
// needed.
func (y *familyRules) removeFormer(ctx context.Context) error {
	for len(y.former) > 0 && len(y.formerly) == 0 {
		if err := remove(ctx, y.former[0]); err != nil {
			return err
		}
		y.former = y.former[1:]
	}
	return nil
}

// countSets counts the sticky sets up to the first that is missing or has another type.
func (y *familyRules) countSets() (int, error) {
	for n := 0; ; n++ {
		h, err := y.sets.Header(stickySet(n, y.name))
		switch {
		case errors.Is(err, ipset.ErrNotFound):
			return n, nil
		case err != nil:
			return 0, err
		case h.Kind != ipset.HashIPPortIP || h.Family != y.name || !h.Timed:
			return n, nil
		}
	}
}

// countJumps records the jumps to the root, and describes the first hook that does not have exactly
// one jump.
func (y *familyRules) countJumps(leads []xtables.Lead) (wrong string) {
	count := map[string]int{}
	y.jumps, y.strayChains = len(hooks()), nil
	for _, lead := range leads {
		switch {
		case lead.Rule == "-j "+rootChain && count[lead.Chain] == 0:
			count[lead.Chain]++
		case lead.Target == rootChain:
			if !isHook(lead.Chain) && !slices.Contains(y.strayChains, lead.Chain) {
				y.strayChains = append(y.strayChains, lead.Chain)
			}
			wrong = "more than one jump in " + lead.Chain
		}
	}
	for _, hook := range hooks() {
		if count[hook] == 0 {
			wrong = "no jump in " + hook
		}
	}
	if wrong != "" {
		y.jumps = 0
	}
	return wrong
}

// survey is the content of the nat table, as read by one call to Observe.
type survey struct {
	y *familyRules
	// rules maps each of vipd's chains to its rules. below maps a frontend's hash to the names of
	// the chains below its chain.
	rules map[string][]string
	below map[string][]string
	// hashes holds the hashes of the chains, and of the jumps in the kernel's own chains.
	hashes map[string]xtables.ChainHash
}

func (s *survey) addChain(chain string, rules []string) error {
	switch {
	case !isOurs(chain):
		return nil
	case strings.HasPrefix(chain, groupPrefix), strings.HasPrefix(chain, stickyPrefix):
		s.below[owner(chain)] = append(s.below[owner(chain)], chain)
	}
	s.rules[chain] = append([]string(nil), rules...)
	return nil
}

// adopt replaces the family's known state with the survey, and adds the digests of its frontends to
// digests. It returns a description of damage to the tree.
func (s *survey) adopt(digests map[balancer.Key]dataplane.Digest) (damage []string) {
	y := s.y
	last := y.fronts
	read, changed := s.compare()
	y.forget()
	y.chains = read
	for name, print := range s.hashes {
		y.hashes[name] = knownHash{print, read[name].text}
	}
	keys := make(map[string]balancer.Key, len(last))
	for k, f := range last {
		keys[f.chain] = k
	}
	for chain, rules := range s.rules {
		if !isFront(chain) {
			continue
		}
		n, ok := note{}, false
		if len(rules) > 0 {
			n, ok = readNote(rules[len(rules)-1])
		}
		if !ok || frontChain(n.key) != chain || inet.Of(n.key.Addr) != y.name {
			k, ours := keys[chain]
			if !ours {
				continue // the chain is an orphan, because its frontend is unknown
			}
			n = note{key: k, service: last[k].service, port: last[k].port}
		}
		f := s.front(n, last[n.key], changed)
		y.fronts[n.key], digests[n.key] = f, f.digest
	}
	if found := s.findTree(); found != "" {
		damage = append(damage, fmt.Sprintf("%s (%s)", found, y.name))
	}
	return damage
}

// compare returns the states of the chains that were read, and the names of changed chains. It
// saves the counts of changed chains.
func (s *survey) compare() (read map[string]chainState, changed map[string]bool) {
	y := s.y
	owners := y.chainOwners()
	read, changed = make(map[string]chainState, len(s.rules)), map[string]bool{}
	for chain, rules := range s.rules {
		now := y.saved(chain, rules)
		last, printed := y.hashes[chain]
		other := printed && last.hash != s.hashes[chain]
		if was, ok := y.chains[chain]; !ok {
			read[chain] = now
		} else if y.alike(was, now) && !other {
			read[chain] = was
		} else {
			read[chain], changed[chain] = now, true
			if other {
				y.broken[chain] = s.hashes[chain]
			}
		}
	}
	for chain := range y.chains {
		if _, there := read[chain]; !there {
			changed[chain] = true
		}
		if f := owners[chain]; changed[chain] && f != nil {
			y.endLocked(f, chain, nil)
		}
	}
	return read, changed
}

// alike reports whether chains have the same rules. If the text of the rules can't be compared, it
// compares their number, and the chains and backends to which they lead.
func (y *familyRules) alike(c, d chainState) bool {
	if y.exact && c.text != 0 && d.text != 0 {
		return c.text == d.text
	}
	return c.rules == d.rules && slices.Equal(c.targets, d.targets) && slices.Equal(c.to, d.to)
}

// saved returns the state of a chain with the rules that iptables-save has printed.
func (y *familyRules) saved(chain string, rules []string) chainState {
	s := y.state(xtables.Chain{Name: chain, Rules: rules})
	if !y.exact {
		s.text = 0
	}
	return s
}

// front returns the state of the frontend that n describes. last is the frontend's last known
// state, or nil. If its chains have changed, the digest is 0.
func (s *survey) front(n note, last *front, changed map[string]bool) *front {
	f := &front{digest: n.digest, service: n.service, port: n.port, first: firstOf(n.key.Port), chain: frontChain(n.key), below: s.below[keyHash(n.key)]}
	intact := !changed[f.chain]
	count := len(s.rules[f.chain])
	for _, name := range f.below {
		intact = intact && !changed[name]
		rules := s.rules[name]
		count += len(rules)
		if n.key.Port.IsRange() && len(rules) > 0 {
			f.first = cmp.Or(backendOf(rules[0]).Port(), f.first) // relevant only for a moved range
		}
		slot, isSlot := slotOf(name)
		if !isSlot || len(rules) == 0 {
			continue
		}
		if to := backendOf(rules[len(rules)-1]); to.IsValid() {
			if f.slots == nil {
				f.slots = map[netip.AddrPort]int{}
			}
			f.slots[to] = slot
			f.used = max(f.used, slot+1)
		}
	}
	if last != nil {
		f.used, f.proved = max(f.used, last.used), last.proved
		if f.slots == nil && len(last.slots) > 0 {
			f.slots = map[netip.AddrPort]int{}
		}
		for b, slot := range last.slots { // including slots without a chain
			if _, ok := f.slots[b]; !ok {
				f.slots[b] = slot
			}
		}
	} else {
		f.used = max(f.used, s.y.slots) // an earlier process may have assigned more slots than there are chains
	}
	if !intact || count != n.rules {
		f.digest, f.proved = 0, false
	}
	return f
}

// slotOf parses the slot in the name of a backend's chain.
func slotOf(chain string) (int, bool) {
	rest, ok := strings.CutPrefix(chain, stickyPrefix)
	_, number, cut := strings.Cut(rest, "-")
	slot, err := strconv.Atoi(number)
	return slot, ok && cut && err == nil
}

// Intact checks whether the table has changed since it was last correct. If so, it compares the
// table with its expected content.
func (d *Dataplane) Intact(ctx context.Context) (reason string, failed error) {
	for _, name := range inet.Families() {
		if y := d.families[name]; y != nil {
			found, err := y.intact(ctx)
			if failed = errors.Join(failed, err); found != "" {
				return found, failed
			}
		}
	}
	return "", failed
}

func (y *familyRules) intact(ctx context.Context) (string, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.jumps == 0 || y.unsure {
		return "", nil
	}
	return y.look.Probe(y.tool, table, y.entriesLocked, func() (string, error) {
		return y.tool.Compare(ctx, table, isOurs, y.sizes())
	}, func() (string, error) { return y.contentLocked(ctx) })
}

// contentLocked compares the chains with their last known hashes. It returns a reason that names a
// chain that differs, or "".
func (y *familyRules) contentLocked(ctx context.Context) (string, error) {
	prints, err := y.tool.ChainHashes(ctx, table, rootChain, slices.AppendSeq(hooks(), maps.Keys(y.chains)))
	if err != nil {
		return "", err
	}
	for name, want := range y.hashes {
		if _, ours := y.chains[name]; (ours || isHook(name)) && prints[name] != want.hash {
			return fmt.Sprintf("rules of chain %s were changed (%s)", name, y.name), nil
		}
	}
	return "", nil
}

// entriesLocked returns the number of vipd's entries in an iptables-legacy table: one for each
// rule, and two for each chain.
func (y *familyRules) entriesLocked() int {
	n := y.jumps
	for _, c := range y.chains {
		n += c.rules + 2
	}
	return n
}

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
)

// Observe reads all virtual servers, and adopts vipd's virtual servers. A frontend is unchanged if
// applying it again would send nothing. A removed frontend's draining destinations are not reported
// while they are correct, because they are removed automatically.
func (d *Dataplane) Observe(ctx context.Context) (dataplane.Observation, error) {
	d.carried.Again()
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := dataplane.Observation{Digests: map[balancer.Key]dataplane.Digest{}, ReapplyAll: !d.reapplied}
	if err := d.readLocked(ctx); err != nil {
		return dataplane.Observation{}, err
	}
	if err := d.setTimeoutsLocked(ctx); err != nil {
		d.log.Warn("the IPVS timeouts can't be set", "err", err)
	}
	damage, err := d.observeMarksLocked(ctx)
	if err != nil {
		return dataplane.Observation{}, err
	}
	now := time.Now()
	for k, s := range d.servers {
		if s.exists && s.front != nil && k.Port.IsRange() && damage != "" {
			seen.Digests[k] = 0
			continue
		}
		switch right := s.plan(now).none(); {
		case s.front != nil && right:
			seen.Digests[k] = digest(s.front)
		case s.exists && (s.front != nil || !s.known || !right): // a process that was killed may have left its removal incomplete
			seen.Digests[k] = 0
		}
	}
	d.reapplied = true
	if len(d.quiet) > 0 {
		d.drains.Look()
	}
	return seen, nil
}

func (d *Dataplane) readLocked(ctx context.Context) error {
	services, err := listed(ctx, d.conn, maps.Keys(d.ledger.entries))
	if err != nil {
		return err
	}
	table, err := d.conn.Table(ctx)
	if err != nil {
		return fmt.Errorf("reading virtual servers: %w", err)
	}
	existing := make(map[balancer.Key]bool, len(services))
	for k, v := range services {
		destinations, err := d.destinationsLocked(ctx, k, table)
		if errors.Is(err, ipvsnl.ErrNoService) {
			continue
		}
		if err != nil {
			return err
		}
		s := d.serverLocked(k)
		if s.isOther(v.Service, destinations) {
			continue
		}
		existing[k] = true
		d.noteReadLocked(s, v.Service, destinations)
		d.resumeLocked(s)
	}
	for k := range d.ledger.entries {
		if !existing[k] {
			d.noteGoneLocked(d.serverLocked(k))
		}
	}
	for k, s := range maps.Clone(d.servers) {
		if s.unsure && !existing[k] {
			d.noteGoneLocked(s)
		}
	}
	n, err := d.conn.Services4(ctx)
	if err != nil {
		return err
	}
	d.foreignIPv4 = n - d.ownIPv4
	return d.ledger.renew()
}

// listed returns the existing virtual servers with these keys. While virtual servers are being
// removed, the kernel (6.1) silently omits others from its list, so listed reads the missing ones
// individually.
func listed(ctx context.Context, conn ipvsnl.Conn, keys iter.Seq[balancer.Key]) (map[balancer.Key]ipvsnl.ServiceState, error) {
	services, err := conn.Services(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading virtual servers: %w", err)
	}
	all := make(map[balancer.Key]ipvsnl.ServiceState, len(services))
	for _, v := range services {
		all[v.Key] = v
	}
	there := make(map[balancer.Key]ipvsnl.ServiceState, len(services))
	for k := range keys {
		v, ok := all[k]
		if !ok {
			v, err = conn.Service(ctx, k)
			if errors.Is(err, ipvsnl.ErrNoService) {
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		there[k] = v
	}
	return there, nil
}

// destinationsLocked returns the destinations of a virtual server that vipd created. It reads them
// individually if they have thresholds, which the table does not show, or if the virtual server is
// missing from the table.
func (d *Dataplane) destinationsLocked(ctx context.Context, k balancer.Key, table map[balancer.Key]ipvsnl.TableService) ([]ipvsnl.Destination, error) {
	s := d.servers[k]
	entry, told := table[k]
	if !told || d.ledger.entries[k].bounded || s != nil && s.bounded() {
		states, err := d.conn.Destinations(ctx, k)
		return plain(states), err
	}
	all := make([]ipvsnl.Destination, len(entry.Destinations))
	for i, t := range entry.Destinations {
		all[i] = ipvsnl.Destination{Addr: t.Addr, Forward: t.Forward, Weight: t.Weight}
	}
	return all, nil
}

// resumeLocked continues the removal of a frontend that an earlier process started.
func (d *Dataplane) resumeLocked(s *server) {
	until := d.ledger.entries[s.key].until
	if s.known || until.IsZero() {
		return
	}
	s.known = true
	s.old = map[netip.AddrPort]time.Time{}
	for _, dest := range s.destinations {
		s.old[dest.Addr] = until
	}
	d.quiet[s.key] = true
}

// comparison schedules comparisons of all virtual servers with the kernel.
type comparison struct {
	// next is the earliest time at which all virtual servers may be compared again. soon replaces
	// it while foreign virtual servers change.
	next, soon time.Time
}

// lookShare limits comparisons to 1/lookShare of the total time. While foreign virtual servers
// change, the limit is 1/countShare, and the pause between comparisons is at most countPause.
const (
	lookShare, countShare = 200, 100
	countPause            = time.Second
)

// Intact checks the number of virtual servers, and reads one virtual server with an IPv6 address.
// The cost of both checks is constant. At intervals (every second if there are few virtual
// servers), it compares all of them.
func (d *Dataplane) Intact(ctx context.Context) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if reason, err := d.intactMarks(); reason != "" || err != nil {
		return reason, err
	}
	n, err := d.conn.Services4(ctx)
	switch {
	case errors.Is(err, ipvsnl.ErrUnsupported) && len(d.servers) > 0: // Observe will load IPVS again
		return fmt.Sprintf("the virtual servers are missing: %v", err), nil
	case err != nil || len(d.servers) == 0:
		return "", err
	}
	gone6, err := d.missingIPv6Locked(ctx)
	if err != nil {
		return "", err
	}
	began, due := time.Now(), d.look.next
	switch {
	case n < d.ownIPv4 || gone6:
		due = time.Time{}
	case n != d.ownIPv4+d.foreignIPv4:
		due = d.look.soon
	}
	if began.Before(due) {
		return "", nil
	}
	reason, err := d.compareLocked(ctx)
	if reason == "" && err == nil {
		d.foreignIPv4 = n - d.ownIPv4
	}
	ended := time.Now()
	d.look = comparison{next: ended.Add(lookShare * ended.Sub(began)), soon: ended.Add(min(countPause, countShare*ended.Sub(began)))}
	return reason, err
}

// missingIPv6Locked reports whether one of vipd's virtual servers with IPv6 addresses, chosen at
// random, is missing. The kernel's count includes only virtual servers with IPv4 addresses.
func (d *Dataplane) missingIPv6Locked(ctx context.Context) (bool, error) {
	if len(d.servers) == d.ownIPv4 {
		return false, nil
	}
	for k, s := range d.servers { // in random order
		if s.exists && !s.unsure && !k.Addr.Is4() {
			_, err := d.conn.Service(ctx, k)
			if errors.Is(err, ipvsnl.ErrNoService) {
				return true, nil
			}
			return false, err
		}
	}
	return false, nil
}

// compareLocked compares all virtual servers with their last known states, and describes a
// difference. It individually reads virtual servers that differ in the kernel's list or are missing
// from it, and those with thresholds, which no list shows.
func (d *Dataplane) compareLocked(ctx context.Context) (string, error) {
	services, err := d.conn.Services(ctx)
	if err != nil {
		return "", err
	}
	table, err := d.conn.Table(ctx)
	if err != nil {
		return "", err
	}
	same := make(map[balancer.Key]bool, len(services))
	for _, v := range services {
		s, entry := d.servers[v.Key], table[v.Key]
		same[v.Key] = s != nil && s.virtual == v.Service && s.matches(entry) && !s.bounded()
	}
	for k, s := range d.servers {
		if s.exists && !s.unsure && !same[k] {
			if reason, err := d.wrongLocked(ctx, s); reason != "" || err != nil {
				return reason, err
			}
		}
	}
	return "", nil
}

// wrongLocked reads a virtual server, and describes how it differs from its last known state, or
// returns "".
func (d *Dataplane) wrongLocked(ctx context.Context, s *server) (string, error) {
	virtual, destinations, err := d.read(ctx, s.key)
	if errors.Is(err, ipvsnl.ErrNoService) {
		return fmt.Sprintf("virtual server %s is missing", s.key), nil
	}
	if err != nil {
		return "", err
	}
	now := *s
	now.noteRead(virtual, destinations)
	p := now.plan(time.Now())
	for _, op := range slices.Concat(p.change, p.remove) {
		switch op.Verb {
		case ipvsnl.AddDestination:
			return fmt.Sprintf("destination %s of virtual server %s is missing", op.Destination.Addr, s.key), nil
		case ipvsnl.EditDestination:
			return fmt.Sprintf("destination %s of virtual server %s was changed", op.Destination.Addr, s.key), nil
		case ipvsnl.DeleteDestination:
			if _, known := s.find(op.Destination.Addr); !known {
				return fmt.Sprintf("virtual server %s has a destination %s that vipd did not add", s.key, op.Destination.Addr), nil
			}
		case ipvsnl.EditService:
			return fmt.Sprintf("virtual server %s was changed", s.key), nil
		}
	}
	return "", nil
}

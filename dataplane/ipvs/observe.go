package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
)

// Observe reads all virtual servers, and takes what it finds of ours for what is there. A frontend is as some Apply left
// it if applying it again would change nothing. What only leads the last connections of a removed frontend to their end
// is not told while it is as it should be: it goes by itself.
func (d *Dataplane) Observe(ctx context.Context) (dataplane.Observation, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := dataplane.Observation{Digests: map[balancer.Key]dataplane.Digest{}, Untold: !d.told}
	if err := d.readLocked(ctx); err != nil {
		return dataplane.Observation{}, err
	}
	if err := setTimeouts(ctx, d.conn, d.ledger, d.timeouts); err != nil {
		d.log.Warn("the kernel keeps its timeouts", "err", err)
	}
	now := time.Now()
	for k, s := range d.servers {
		switch right := s.plan(now).none(); {
		case s.front != nil && right:
			seen.Digests[k] = digest(s.front)
		case s.there && (s.front != nil || !s.told || !right): // the process that ended it may have been killed before it was done
			seen.Digests[k] = 0
		}
	}
	d.told = true
	if len(d.quiet) > 0 {
		d.drains.Look()
	}
	return seen, nil
}

// readLocked makes what the kernel has what is known.
func (d *Dataplane) readLocked(ctx context.Context) error {
	services, err := d.conn.Services(ctx)
	if err != nil {
		return fmt.Errorf("reading virtual servers: %w", err)
	}
	table, err := d.conn.Table(ctx)
	if err != nil {
		return fmt.Errorf("reading virtual servers: %w", err)
	}
	there := make(map[balancer.Key]bool, len(services))
	for _, v := range services {
		if !d.ledger.owns(v.Key) {
			continue
		}
		there[v.Key] = true
		destinations, err := d.destinationsLocked(ctx, v.Key, table)
		if errors.Is(err, ipvsnl.ErrNoService) {
			delete(there, v.Key)
			continue
		}
		if err != nil {
			return err
		}
		s := d.serverLocked(v.Key)
		if s.isOther(v.Service, destinations) {
			delete(there, v.Key)
			continue
		}
		d.sawLocked(s, v.Service, destinations)
		d.resumeLocked(s)
	}
	for k := range d.ledger.entries {
		if !there[k] {
			d.goneLocked(d.serverLocked(k))
		}
	}
	for k, s := range maps.Clone(d.servers) {
		if s.unsure && !there[k] {
			d.goneLocked(s)
		}
	}
	n, err := d.conn.Services4(ctx)
	if err != nil {
		return err
	}
	d.others4 = n - d.ours4
	return d.ledger.save()
}

// destinationsLocked returns the destinations of one of our virtual servers. Only those with thresholds, which the table
// does not show, and those that the kernel has left out of the table are asked for by themselves.
func (d *Dataplane) destinationsLocked(ctx context.Context, k balancer.Key, table map[balancer.Key]ipvsnl.Entry) ([]ipvsnl.Destination, error) {
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

// resumeLocked goes on with the end of a frontend that an earlier process was told to remove.
func (d *Dataplane) resumeLocked(s *server) {
	until := d.ledger.entries[s.key].until
	if s.told || until.IsZero() {
		return
	}
	s.told = true
	s.old = map[netip.AddrPort]time.Time{}
	for _, dest := range s.destinations {
		s.old[dest.Addr] = until
	}
	d.quiet[s.key] = true
}

// look paces the cheap looks.
type look struct {
	// ring are keys still to be looked at in this turn.
	ring []balancer.Key
	// next is when all virtual servers may be listed again, because others come and go.
	next time.Time
	// table is when the kernel's table may be read again.
	table time.Time
}

// lookTime is how long one look at some of the virtual servers may take. At least one is looked at.
const lookTime = 500 * time.Microsecond

// listShare is the part of the time that listing all virtual servers may take while others' come and go, and tableShare
// the part that reading the table may take. listPause is the longest pause between two lists, however long they take.
const (
	listShare, tableShare = 100, 200
	listPause             = time.Second
)

// Intact looks whether there are as many virtual servers as there were, and at a few of ours in turn, as many as there is
// time for: in a small table everything is found within a second. In a larger one it reads the kernel's table from time to
// time, too, which has all but thresholds and flags.
func (d *Dataplane) Intact(ctx context.Context) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.conn.Services4(ctx)
	switch {
	case errors.Is(err, ipvsnl.ErrUnsupported) && len(d.servers) > 0: // to look at all of it loads it again
		return fmt.Sprintf("the virtual servers are gone: %v", err), nil
	case err != nil:
		return "", err
	}
	if n != d.ours4+d.others4 && (n < d.ours4 || time.Now().After(d.look.next)) {
		if reason, err := d.listLocked(ctx, n); reason != "" || err != nil {
			return reason, err
		}
	}
	whole := len(d.look.ring) == 0
	if whole {
		d.look.ring = slices.Collect(maps.Keys(d.servers))
	}
	for began := time.Now(); ; {
		s := d.nextLocked()
		if s == nil && whole {
			return "", nil
		}
		if s == nil {
			return d.tableLocked(ctx)
		}
		if reason, err := d.wrongLocked(ctx, s); reason != "" || err != nil {
			return reason, err
		}
		if time.Since(began) > lookTime {
			return d.tableLocked(ctx)
		}
	}
}

// tableLocked compares the kernel's table with what was left there, unless it has done so lately.
func (d *Dataplane) tableLocked(ctx context.Context) (string, error) {
	began := time.Now()
	if began.Before(d.look.table) {
		return "", nil
	}
	defer func() { d.look.table = time.Now().Add(tableShare * time.Since(began)) }()
	table, err := d.conn.Table(ctx)
	if err != nil {
		return "", err
	}
	for k, s := range d.servers {
		if entry, told := table[k]; told && s.there && !s.unsure && !s.resembles(entry) {
			if reason, err := d.wrongLocked(ctx, s); reason != "" || err != nil {
				return reason, err
			}
		}
	}
	return "", nil
}

// listLocked looks whether all of ours are there.
func (d *Dataplane) listLocked(ctx context.Context, services4 int) (string, error) {
	began := time.Now()
	services, err := d.conn.Services(ctx)
	if err != nil {
		return "", err
	}
	there := make(map[balancer.Key]bool, len(services))
	for _, v := range services {
		there[v.Key] = true
	}
	missing := 0
	var which balancer.Key
	for k, s := range d.servers {
		if s.there && !there[k] {
			missing++
			which = k
		}
	}
	switch missing {
	case 0:
		d.others4 = services4 - d.ours4
		d.look.next = time.Now().Add(min(listPause, listShare*time.Since(began)))
		return "", nil
	case 1:
		return fmt.Sprintf("virtual server %s is gone", which), nil
	}
	return fmt.Sprintf("%d virtual servers are gone, among them %s", missing, which), nil
}

// nextLocked returns the next virtual server to look at; nil means all have been looked at in this turn.
func (d *Dataplane) nextLocked() *server {
	for i, k := range d.look.ring {
		if s := d.servers[k]; s != nil && s.there && !s.unsure {
			d.look.ring = d.look.ring[i+1:]
			return s
		}
	}
	d.look.ring = nil
	return nil
}

// wrongLocked says in what a virtual server is not as it was left; "" means in nothing.
func (d *Dataplane) wrongLocked(ctx context.Context, s *server) (string, error) {
	virtual, err := d.conn.Service(ctx, s.key)
	var states []ipvsnl.DestinationState
	if err == nil {
		states, err = d.conn.Destinations(ctx, s.key)
	}
	if errors.Is(err, ipvsnl.ErrNoService) {
		return fmt.Sprintf("virtual server %s is gone", s.key), nil
	}
	if err != nil {
		return "", err
	}
	now := *s
	now.saw(virtual.Service, plain(states))
	p := now.plan(time.Now())
	for _, op := range slices.Concat(p.change, p.remove) {
		switch op.Verb {
		case ipvsnl.AddDestination:
			return fmt.Sprintf("destination %s of virtual server %s is gone", op.Destination.Addr, s.key), nil
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

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

// Observe reads all virtual servers, and takes what it finds of ours for what is there. A frontend is as some Apply left
// it if applying it again would change nothing. What only leads the last connections of a removed frontend to their end
// is not told while it is as it should be: it goes by itself.
func (d *Dataplane) Observe(ctx context.Context) (dataplane.Observation, error) {
	d.carried.Again()
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := dataplane.Observation{Digests: map[balancer.Key]dataplane.Digest{}, ReapplyAll: !d.told}
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
	services, err := listed(ctx, d.conn, maps.Keys(d.ledger.entries))
	if err != nil {
		return err
	}
	table, err := d.conn.Table(ctx)
	if err != nil {
		return fmt.Errorf("reading virtual servers: %w", err)
	}
	there := make(map[balancer.Key]bool, len(services))
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
		there[k] = true
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
	return d.ledger.renew()
}

// listed returns those virtual servers of keys that are there. One that the list lacks is asked for by itself: while others' come and
// go, the kernel (6.1) leaves out some of those that stay, and does not say so.
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
		v, told := all[k]
		if !told {
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

// destinationsLocked returns the destinations of one of our virtual servers. Only those with thresholds, which the table
// does not show, and those that the kernel has left out of the table are asked for by themselves.
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

// look paces the comparisons of all virtual servers.
type look struct {
	// next is when they may be compared again, and soon, when they may be because others come and go.
	next, soon time.Time
}

// lookShare is the part of the time that comparisons may take, and countShare the part while others' virtual servers come and go.
// countPause is the longest pause between two of the latter, however long they take.
const (
	lookShare, countShare = 200, 100
	countPause            = time.Second
)

// Intact looks whether there are as many virtual servers as there were, and for one of IPv6, which costs the same however many there
// are, and from time to time compares all: each second where there are few.
func (d *Dataplane) Intact(ctx context.Context) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.conn.Services4(ctx)
	switch {
	case errors.Is(err, ipvsnl.ErrUnsupported) && len(d.servers) > 0: // to look at all of it loads it again
		return fmt.Sprintf("the virtual servers are gone: %v", err), nil
	case err != nil || len(d.servers) == 0:
		return "", err
	}
	gone6, err := d.gone6Locked(ctx)
	if err != nil {
		return "", err
	}
	began, due := time.Now(), d.look.next
	switch {
	case n < d.ours4 || gone6:
		due = time.Time{}
	case n != d.ours4+d.others4:
		due = d.look.soon
	}
	if began.Before(due) {
		return "", nil
	}
	reason, err := d.compareLocked(ctx)
	if reason == "" && err == nil {
		d.others4 = n - d.ours4
	}
	ended := time.Now()
	d.look = look{next: ended.Add(lookShare * ended.Sub(began)), soon: ended.Add(min(countPause, countShare*ended.Sub(began)))}
	return reason, err
}

// gone6Locked asks for one of our virtual servers with an IPv6 address, another one each time: the kernel counts the others alone.
func (d *Dataplane) gone6Locked(ctx context.Context) (bool, error) {
	if len(d.servers) == d.ours4 {
		return false, nil
	}
	for k, s := range d.servers { // in random order
		if s.there && !s.unsure && !k.Addr.Is4() {
			_, err := d.conn.Service(ctx, k)
			if errors.Is(err, ipvsnl.ErrNoService) {
				return true, nil
			}
			return false, err
		}
	}
	return false, nil
}

// compareLocked says in what some virtual server is not as it was left. Those that the lists show to be another are read by
// themselves, and so are those with thresholds, which no list has, and those that the kernel has left out of its table.
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
		same[v.Key] = s != nil && s.virtual == v.Service && s.resembles(entry) && !s.bounded()
	}
	for k, s := range d.servers {
		if s.there && !s.unsure && !same[k] {
			if reason, err := d.wrongLocked(ctx, s); reason != "" || err != nil {
				return reason, err
			}
		}
	}
	return "", nil
}

// wrongLocked says in what a virtual server is not as it was left; "" means in nothing.
func (d *Dataplane) wrongLocked(ctx context.Context, s *server) (string, error) {
	virtual, destinations, err := d.read(ctx, s.key)
	if errors.Is(err, ipvsnl.ErrNoService) {
		return fmt.Sprintf("virtual server %s is gone", s.key), nil
	}
	if err != nil {
		return "", err
	}
	now := *s
	now.saw(virtual, destinations)
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

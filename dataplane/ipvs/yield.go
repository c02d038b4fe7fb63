package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

// yieldEvery is the pause between two checks of yielded virtual servers. The kernel updates the
// compared counters every two seconds (net/netfilter/ipvs/ip_vs_est.c).
const yieldEvery = 3 * time.Second

// Yield implements [dataplane.Dataplane]. NAT rules precede IPVS, so a successor that uses them
// gets all new connections, and virtual servers remain until their last connections have closed.
// IPVS precedes sockets, so a successor that uses sockets does not get the new connections of a
// virtual server. Therefore, a virtual server that still gets new connections is removed, which
// ends its connections.
func (d *Dataplane) Yield(ctx context.Context) error {
	if err := d.carried.Close(); err != nil {
		return err
	}
	tick := time.NewTicker(yieldEvery)
	defer tick.Stop()
	var before map[balancer.Key]ipvsnl.ServiceState
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		left, err := d.yield(ctx, before, first)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("handing virtual servers over to another mode: %w", err)
		case len(left) == 0:
			return nil
		}
		before = left
	}
}

// yield removes virtual servers without connections, and virtual servers that have counted more
// connections than in before. It returns vipd's remaining virtual servers. The first check removes
// none, because before is empty.
func (d *Dataplane) yield(ctx context.Context, before map[balancer.Key]ipvsnl.ServiceState, first bool) (map[balancer.Key]ipvsnl.ServiceState, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	services, err := listed(ctx, d.conn, maps.Keys(d.servers))
	if err != nil {
		return nil, err
	}
	table, err := d.conn.Table(ctx)
	if err != nil {
		return nil, err
	}
	left := map[balancer.Key]ipvsnl.ServiceState{}
	r := newRound(ctx, d)
	var work []*server
	for k, v := range services {
		s := d.servers[k]
		if !s.exists {
			continue
		}
		stays := first
		if !first && v.Connections == before[k].Connections {
			if stays, err = d.busy(ctx, k, table); err != nil {
				return nil, err
			}
		}
		if stays {
			left[k] = v
			continue
		}
		if err := d.readCountsLocked(ctx, s); err != nil {
			return nil, err
		}
		work = append(work, s)
	}
	r.send(work, func(s *server) []ipvsnl.Op {
		return []ipvsnl.Op{{Verb: ipvsnl.DeleteService, Service: ipvsnl.Service{Key: s.key}}}
	})
	failed := d.markRangesLocked(ctx)
	for _, s := range work {
		failed = errors.Join(failed, r.errs[s])
	}
	return left, errors.Join(failed, d.ledger.save())
}

// busy reports whether a virtual server has connections. If the kernel's table omits the virtual
// server, busy reads it individually.
func (d *Dataplane) busy(ctx context.Context, k balancer.Key, table map[balancer.Key]ipvsnl.TableService) (bool, error) {
	if e, told := table[k]; told {
		return slices.ContainsFunc(e.Destinations, func(t ipvsnl.TableDestination) bool { return t.Active+t.Inactive > 0 }), nil
	}
	states, err := d.conn.Destinations(ctx, k)
	if errors.Is(err, ipvsnl.ErrNoService) {
		return false, nil
	}
	return slices.ContainsFunc(states, func(s ipvsnl.DestinationState) bool { return s.Active+s.Inactive > 0 }), err
}

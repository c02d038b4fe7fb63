package ipvs

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/ipvsnl"
)

// Connections implements dataplane.Dataplane: what the kernel's table has of ours. The memory of where a client with
// affinity belongs is no connection.
func (d *Dataplane) Connections(ctx context.Context, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	d.mu.Lock()
	services := make(map[balancer.Key]balancer.Name, len(d.servers))
	for k, s := range d.servers {
		if s.there && s.last != nil {
			services[k] = s.last.Service
		}
	}
	d.mu.Unlock()
	idle, err := d.idle(ctx)
	if err != nil {
		return err
	}
	read := 0
	for c, err := range d.conn.Connections(ctx) {
		if err != nil {
			return err
		}
		if read++; read%dataplane.PassedOver == 1 {
			if err := visit(nil); err != nil {
				return err
			}
		}
		k := balancer.Key{Addr: c.Frontend.Addr(), Port: c.Frontend.Port(), Proto: c.Proto}
		service, ours := services[k]
		if !ours || c.Template {
			continue
		}
		state := strings.ReplaceAll(c.State, "_", "-") // the words of all modes: time-wait
		if idle(&c) {
			state = dataplane.Idle
		}
		n := dataplane.Connection{Frontend: k, Service: service, Client: c.Client, Backend: c.Backend, State: state}
		if !q.Names(&n) {
			continue
		}
		if err := visit(&n); err != nil {
			return err
		}
	}
	return nil
}

// Kill implements dataplane.Dataplane: the kernel can't.
func (d *Dataplane) Kill(context.Context, dataplane.ConnectionQuery) (int, error) {
	return 0, errors.New("the kernel can't end single connections of IPVS: \"vipctl drain SERVICE ADDRESS --timeout 1s\" ends all of an endpoint")
}

// idle returns what tells whether a flow of UDP has had no packet for dataplane.IdleAfter.
func (d *Dataplane) idle(ctx context.Context) (func(*ipvsnl.Connection) bool, error) {
	whole, err := d.conn.Timeouts(ctx)
	return func(c *ipvsnl.Connection) bool {
		return c.Proto == balancer.UDP && !c.Template && whole.UDP-c.Expires >= dataplane.IdleAfter
	}, err
}

// idleFlows are the idle flows of endpoints that drain, whose end may be waited for, as they were last counted. To count them the
// whole table of connections is read.
type idleFlows struct {
	reading sync.Mutex // held by who counts them
	// due is when they may be counted again; reading guards it.
	due  time.Time
	last atomic.Pointer[map[balancer.DrainKey]uint64]
}

// idleFlows counts the idle flows of endpoints that drain, unless it did so just now.
func (d *Dataplane) idleFlows(ctx context.Context) map[balancer.DrainKey]uint64 {
	flows := d.drainingFlows()
	if len(flows) == 0 {
		return nil
	}
	i := &d.counts.idle
	if i.reading.TryLock() {
		defer i.reading.Unlock()
		if began := time.Now(); !began.Before(i.due) {
			d.countIdle(ctx, flows)
			i.last.Store(&flows)
			i.due = counters.NextReading(began)
		}
	}
	if last := i.last.Load(); last != nil {
		return *last
	}
	return nil // another counts them for the first time: they are live until then
}

// drainingFlows has the endpoints of UDP that drain.
func (d *Dataplane) drainingFlows() map[balancer.DrainKey]uint64 {
	flows := map[balancer.DrainKey]uint64{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, s := range d.servers {
		if s.there && s.last != nil && k.Proto == balancer.UDP {
			for _, b := range s.last.Backends {
				if b.Drains() {
					flows[balancer.DrainKey{Frontend: k, Backend: b.Addr}] = 0
				}
			}
		}
	}
	return flows
}

// countIdle counts the idle ones among flows.
func (d *Dataplane) countIdle(ctx context.Context, flows map[balancer.DrainKey]uint64) {
	idle, err := d.idle(ctx)
	if err != nil {
		return // all are live
	}
	for c, err := range d.conn.Connections(ctx) {
		if err != nil {
			break
		}
		k := balancer.DrainKey{Frontend: balancer.Key{Addr: c.Frontend.Addr(), Port: c.Frontend.Port(), Proto: c.Proto}, Backend: c.Backend}
		if n, drains := flows[k]; drains && idle(&c) {
			flows[k] = n + 1
		}
	}
}

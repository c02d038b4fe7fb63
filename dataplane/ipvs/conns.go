package ipvs

import (
	"context"
	"errors"
	"strings"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
)

// Connections implements dataplane.ListsConnections: what the kernel's table has of ours. The memory of where a client with
// affinity belongs is no connection.
func (d *Dataplane) Connections(ctx context.Context, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	if err := d.carried.Connections(ctx, q, visit); err != nil {
		return err
	}
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
	for c, err := range d.conn.Connections(ctx) {
		if err != nil {
			return err
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

// Kill implements dataplane.EndsConnections: the kernel can't end those of virtual servers.
func (d *Dataplane) Kill(ctx context.Context, q dataplane.ConnectionQuery) (int, error) {
	n, err := d.carried.Kill(ctx, q)
	return n, errors.Join(err, errors.New("the kernel can't end single connections of IPVS: \"vipctl drain SERVICE ADDRESS --timeout 1s\" ends all of an endpoint"))
}

// idle returns what tells whether a flow of UDP has had no packet for dataplane.IdleAfter.
func (d *Dataplane) idle(ctx context.Context) (func(*ipvsnl.Connection) bool, error) {
	whole, err := d.conn.Timeouts(ctx)
	return func(c *ipvsnl.Connection) bool {
		return c.Proto == balancer.UDP && !c.Template && whole.UDP-c.Expires >= dataplane.IdleAfter
	}, err
}

// idleFlows counts the idle flows of endpoints of UDP that drain, whose end may be waited for: the whole table of connections is
// read. Where it can't be, all are live.
func (d *Dataplane) idleFlows(ctx context.Context) map[balancer.BackendKey]uint64 {
	flows := d.drainingFlows()
	if len(flows) == 0 {
		return nil
	}
	idle, err := d.idle(ctx)
	if err != nil {
		return nil
	}
	for c, err := range d.conn.Connections(ctx) {
		if err != nil {
			break
		}
		k := balancer.BackendKey{Frontend: balancer.Key{Addr: c.Frontend.Addr(), Port: c.Frontend.Port(), Proto: c.Proto}, Backend: c.Backend}
		if n, drains := flows[k]; drains && idle(&c) {
			flows[k] = n + 1
		}
	}
	return flows
}

// drainingFlows has the endpoints of UDP that drain.
func (d *Dataplane) drainingFlows() map[balancer.BackendKey]uint64 {
	flows := map[balancer.BackendKey]uint64{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, s := range d.servers {
		if s.there && s.last != nil && k.Proto == balancer.UDP {
			for _, b := range s.last.Backends {
				if b.Drains() {
					flows[balancer.BackendKey{Frontend: k, Backend: b.Addr}] = 0
				}
			}
		}
	}
	return flows
}

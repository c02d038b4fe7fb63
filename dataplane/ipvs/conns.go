package ipvs

import (
	"context"
	"errors"
	"strings"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/ipvsnl"
)

// Connections implements [dataplane.ListsConnections] with the kernel's table. It omits persistence
// templates, which are not connections.
func (d *Dataplane) Connections(ctx context.Context, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	if err := d.carried.Connections(ctx, q, visit); err != nil {
		return err
	}
	d.mu.Lock()
	services := make(map[balancer.Key]balancer.Name, len(d.servers))
	all := d.indexLocked(func(s *server) bool { return s.exists && s.last != nil })
	for k, s := range d.servers {
		if s.last != nil {
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
		k := balancer.Key{Addr: c.Frontend.Addr(), Port: balancer.PortRange(c.Frontend.Port()), Proto: c.Proto}
		of, ours := all.find(k)
		if !ours || c.Template {
			continue
		}
		state := strings.ReplaceAll(c.State, "_", "-") // all modes use this spelling
		if idle(&c) {
			state = dataplane.Idle
		}
		n := dataplane.Connection{Frontend: k, Service: services[of], Client: c.Client, Backend: c.Backend, State: state}
		if !q.Matches(&n) {
			continue
		}
		if err := visit(&n); err != nil {
			return err
		}
	}
	return nil
}

// Kill implements [dataplane.EndsConnections]. The kernel can't end connections of virtual servers.
func (d *Dataplane) Kill(ctx context.Context, q dataplane.ConnectionQuery) (int, error) {
	n, err := d.carried.Kill(ctx, q)
	return n, errors.Join(err, errors.New("the kernel can't end single IPVS connections: to end all connections to an endpoint, run \"vipctl drain SERVICE ADDRESS --timeout 1s\""))
}

// idle returns a function that reports whether a UDP flow has had no packet for
// dataplane.IdleAfter.
func (d *Dataplane) idle(ctx context.Context) (func(*ipvsnl.Connection) bool, error) {
	whole, err := d.conn.Timeouts(ctx)
	return func(c *ipvsnl.Connection) bool {
		return c.Proto == balancer.UDP && !c.Template && whole.UDP-c.Expires >= dataplane.IdleAfter
	}, err
}

// idleFlows returns the number of idle flows of each draining UDP endpoint. It reads the kernel's
// whole connection table. If this fails, all flows count as live.
func (d *Dataplane) idleFlows(ctx context.Context) map[balancer.BackendKey]uint64 {
	flows, all := d.drainingFlows()
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
		of, _ := all.find(balancer.Key{Addr: c.Frontend.Addr(), Port: balancer.PortRange(c.Frontend.Port()), Proto: c.Proto})
		k := balancer.BackendKey{Frontend: of, Backend: destinationOf(of, c.Backend)}
		if n, drains := flows[k]; drains && idle(&c) {
			flows[k] = n + 1
		}
	}
	return flows
}

// drainingFlows returns a map from each draining UDP endpoint to 0, and an index of the UDP virtual
// servers.
func (d *Dataplane) drainingFlows() (flows map[balancer.BackendKey]uint64, all index) {
	flows = map[balancer.BackendKey]uint64{}
	d.mu.Lock()
	defer d.mu.Unlock()
	all = d.indexLocked(func(s *server) bool { return s.exists && s.key.Proto == balancer.UDP })
	for k, s := range d.servers {
		if s.exists && s.last != nil && k.Proto == balancer.UDP {
			for _, b := range s.last.Backends {
				if b.Drains() {
					flows[balancer.BackendKey{Frontend: k, Backend: b.Addr}] = 0
				}
			}
		}
	}
	return flows, all
}

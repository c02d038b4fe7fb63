package ipvs

import (
	"context"
	"strings"

	"vipd/balancer"
	"vipd/dataplane"
)

// Connections implements dataplane.Dataplane: what the kernel's table has of ours. The memory of where a client with
// affinity belongs is no connection.
func (d *Dataplane) Connections(ctx context.Context) ([]dataplane.Connection, error) {
	d.mu.Lock()
	services := make(map[balancer.Key]balancer.Name, len(d.servers))
	for k, s := range d.servers {
		if s.there && s.last != nil {
			services[k] = s.last.Service
		}
	}
	d.mu.Unlock()
	var all []dataplane.Connection
	for c, err := range d.conn.Connections(ctx) {
		if err != nil {
			return all, err
		}
		k := balancer.Key{Addr: c.Frontend.Addr(), Port: c.Frontend.Port(), Proto: c.Proto}
		if service, ours := services[k]; ours && !c.Template {
			state := strings.ReplaceAll(c.State, "_", "-") // the words of all modes: time-wait
			all = append(all, dataplane.Connection{Frontend: k, Service: service, Client: c.Client, Backend: c.Backend, State: state})
		}
	}
	return all, nil
}

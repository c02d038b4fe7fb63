package dnat

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/totals"
)

// Tracker follows the connections that rules of the kernel lead from frontends to backends. Apart from Applied and Found,
// which belong to the goroutine that applies frontends, its methods may be called at any time.
type Tracker struct {
	flows   *flows
	traffic *traffic
	log     *slog.Logger
}

// Open opens what the tracker needs of the kernel. It begins to work with the first Applied.
func Open(log *slog.Logger) (*Tracker, error) {
	own, err := conntrack.Open()
	if err != nil {
		return nil, err
	}
	other, err := conntrack.Open()
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	t := &Tracker{flows: newFlows(own, log), log: log}
	if t.traffic, err = newTraffic(t.flows, other); err != nil {
		log.Warn("bytes are not counted", "err", err)
	}
	return t, nil
}

// Close ends the tracker's work; what it has counted stays readable.
func (t *Tracker) Close() error { return errors.Join(t.traffic.close(), t.flows.close()) }

// Found takes in which frontends an earlier process left in the kernel: connections to them may lead to backends that are
// gone since.
func (t *Tracker) Found(there map[balancer.Key]dataplane.Digest) { t.flows.find(there) }

// Applied takes in a batch of changes of which all but those in failed are in the kernel. It drops the flows that the batch
// has made stale: those of UDP at once, connections when their time is over. Keys whose flows could not be dropped are added
// to failed, and are dropped when they are applied again.
func (t *Tracker) Applied(ctx context.Context, batch []dataplane.Change, failed dataplane.KeyErrors) {
	t.traffic.start()
	atOnce := t.flows.take(batch, failed)
	if len(atOnce) == 0 {
		return
	}
	_, err := t.flows.conn.Cut(ctx, atOnce, t.flows.judge(atOnce, time.Now()))
	t.flows.cut(atOnce, err)
	if err != nil {
		for k := range atOnce {
			failed[k] = err
		}
	}
}

// Connections lists the flows to frontends and their backends that conntrack knows.
func (t *Tracker) Connections(ctx context.Context) ([]dataplane.Connection, error) {
	wanted, idle := t.flows.frontends(), idle()
	var all []dataplane.Connection
	err := t.traffic.conn.Each(ctx, conntrack.Filter{}, func(flow *conntrack.Flow) error {
		if f := wanted[flow.Frontend()]; f != nil && flow.Status.Has(conntrack.DstNAT) && t.flows.leadsTo(f, flow.Backend()) {
			if idle(flow) {
				flow.State = dataplane.Idle
			}
			all = append(all, dataplane.Connection{
				Frontend: f.Key, Service: f.Service, Client: flow.Client(), Backend: flow.Backend(),
				State: flow.State, Since: flow.Start, In: flow.In, Out: flow.Out,
			})
		}
		return nil
	})
	return all, err
}

// Suspect calls tell with backends that leave a new TCP connection without an answer, or refuse it, until ctx ends
// (dataplane.Dataplane).
func (t *Tracker) Suspect(ctx context.Context, tell func(balancer.Target)) error {
	u, err := conntrack.NewUnanswered(t.flows.targetOf, tell)
	if err != nil {
		return err
	}
	return u.Run(ctx)
}

// Counters adds the live connections, and the bytes where conntrack accounts for them, to the connections that rules have
// counted at each backend (dataplane.Counters).
func (t *Tracker) Counters(ctx context.Context, counts ...map[totals.Backend]uint64) []dataplane.FrontendCount {
	_ = t.traffic.look(ctx)           // what was last seen is better than nothing
	backends := map[totals.Port]int{} // ten thousand services have many: their room is made at once
	for _, of := range counts {
		for k := range of {
			backends[k.Port]++
		}
	}
	byPort := make(map[totals.Port]*dataplane.FrontendCount, len(backends))
	out := make([]dataplane.FrontendCount, 0, len(backends))
	for p, n := range backends {
		v := t.traffic.bytes(p)
		out = append(out, dataplane.FrontendCount{
			Service: p.Service, Port: p.Name, In: v.in, Out: v.out, Backends: make([]dataplane.BackendCount, 0, n),
		})
		byPort[p] = &out[len(out)-1]
	}
	t.traffic.prune(time.Now())
	for _, of := range counts {
		for k, n := range of {
			c := byPort[k.Port]
			if c.Connections += n; k.Addr.IsValid() {
				c.Backends = append(c.Backends, dataplane.BackendCount{Backend: k.Addr, Connections: n, Active: t.traffic.activeAt(k)})
			}
		}
	}
	return out
}

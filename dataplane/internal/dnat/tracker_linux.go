package dnat

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
)

// Tracker follows the connections that kernel rules send from frontends to backends. A dataplane
// embeds it. Applied and Found must be called by the goroutine that applies frontends. The other
// methods are safe for concurrent use.
type Tracker struct {
	flows   *Flows
	traffic *traffic
	// unanswered counts the connections that WatchUnanswered has reported.
	unanswered counters.Unanswered
}

// Open opens the tracker's connections to the kernel. The tracker starts working with the first
// Applied.
func Open(log *slog.Logger) (*Tracker, error) {
	own, err := conntrack.Open()
	if err != nil {
		return nil, err
	}
	other, err := conntrack.Open()
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	flows := NewFlows(own, log)
	return &Tracker{flows: flows, traffic: newTraffic(flows, other)}, nil
}

// Close stops the tracker. Its counts can still be read.
func (t *Tracker) Close() error {
	t.traffic.lookNow()
	return errors.Join(t.traffic.close(), t.flows.Close())
}

// Found records the frontends that an earlier process left in the kernel. Some of their connections
// may use backends that have since been removed.
func (t *Tracker) Found(there map[balancer.Key]dataplane.Digest) { t.flows.find(there) }

// Applied processes a batch whose changes were applied, except for failed keys. It immediately
// removes UDP flows that the batch has made stale. It removes connections when their drain time
// ends. If a key's flows can't be removed, Applied adds the key to failed, and removes the flows
// when the key is applied again.
func (t *Tracker) Applied(ctx context.Context, batch []dataplane.Change, failed dataplane.KeyErrors) {
	t.traffic.start()
	atOnce := t.flows.process(batch, failed)
	if len(atOnce) == 0 {
		return
	}
	_, err := t.flows.conn.Cut(ctx, atOnce, t.flows.judge(time.Now()))
	t.flows.cut(atOnce, err)
	if err != nil {
		for k := range atOnce {
			failed[k] = err
		}
	}
}

// Connections implements [dataplane.ListsConnections]. It calls visit for each flow in conntrack
// whose destination is a backend of its frontend, if the flow matches q. It uses a separate
// connection to conntrack, so a slow visit does not block other readers.
func (t *Tracker) Connections(ctx context.Context, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	return t.flows.connections(ctx, Opened, q, visit)
}

// Kill implements [dataplane.EndsConnections]. It makes conntrack drop the flows that match q. The
// guard's chains then reset a TCP connection at the next packet of either side. The next datagram
// of a UDP client starts a new flow.
func (t *Tracker) Kill(ctx context.Context, q dataplane.ConnectionQuery) (int, error) {
	return t.flows.kill(ctx, Opened, q)
}

// Opened returns a new connection to conntrack.
func Opened() (Conn, error) { return conntrack.Open() }

// Follow implements [dataplane.FollowsConnections].
func (t *Tracker) Follow(ctx context.Context, tell func(began bool, c *dataplane.Connection), lost func(ends uint64)) error {
	return conntrack.Follow(ctx, func(began bool, flow *conntrack.Flow) {
		busy := func(*conntrack.Flow) bool { return false }
		if flow.Backend() != flow.Orig.Dst {
			flow.Status |= conntrack.DstNAT // ipvs mode translated the flow, and the kernel may report its end long after a switch from that mode
		}
		if c, ours := t.flows.connection(t.flows.frontend(flow), flow, busy); ours {
			tell(began, &c)
		}
	}, func() { lost(1) })
}

// WatchUnanswered implements [dataplane.WatchesUnanswered].
func (t *Tracker) WatchUnanswered(ctx context.Context, refusals bool, tell func(dataplane.FailedConnect)) error {
	u, err := conntrack.NewUnanswered(refusals, t.flows.targetOf, func(s conntrack.Suspect) {
		if port, ours := t.flows.portOf(s.Flow); ours && s.Counted {
			t.unanswered.Add(counters.BackendKey{Port: port, Addr: s.Flow.Backend()})
		}
		tell(dataplane.FailedConnect{Target: s.Target, Client: s.Flow.Client().Addr(), Counted: s.Counted})
	})
	if err != nil {
		return err
	}
	return u.Run(ctx)
}

// Counters combines the rules' connection counts with data from conntrack: the live connections,
// and the bytes if conntrack counts them.
func (t *Tracker) Counters(ctx context.Context, counts ...map[counters.BackendKey]counters.Count) []dataplane.FrontendCount {
	backends := map[counters.Port]int{} // to allocate each port's backends in advance, for hosts with 10,000 services
	for _, of := range counts {
		for k := range of {
			backends[k.Port]++
		}
	}
	for _, f := range t.flows.frontends() {
		backends[counters.Port{Service: f.Service, Name: f.Port}] += 0
	}
	_ = t.traffic.look(ctx) // after an error, the last result remains valid
	byPort := make(map[counters.Port]*dataplane.FrontendCount, len(backends))
	out := make([]dataplane.FrontendCount, 0, len(backends))
	for p, n := range backends {
		v, kept := t.traffic.bytes(p)
		out = append(out, dataplane.FrontendCount{
			Service: p.Service, Port: p.Name, In: v.in, Out: v.out, KeptIn: kept.in, KeptOut: kept.out, Tracked: true,
			BytesOnly: n == 0, Backends: make([]dataplane.BackendCount, 0, n),
		})
		byPort[p] = &out[len(out)-1]
	}
	t.traffic.prune(time.Now())
	for _, of := range counts {
		for k, n := range of {
			c := byPort[k.Port]
			if c.Connections += n.All; k.Addr.IsValid() {
				c.Backends = append(c.Backends, dataplane.BackendCount{
					Backend: k.Addr, Connections: n.All, Kept: n.Kept, Active: t.traffic.activeAt(k), Tracked: true,
				})
			}
		}
	}
	return t.unanswered.AddTo(out)
}

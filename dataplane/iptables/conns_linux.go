package iptables

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
)

// Connections implements dataplane.Connections: the flows to frontends that conntrack knows.
func (d *Dataplane) Connections(ctx context.Context) ([]dataplane.Connection, error) {
	wanted := d.flows.frontends()
	var all []dataplane.Connection
	err := d.traffic.conn.Each(ctx, conntrack.Filter{}, func(flow *conntrack.Flow) error {
		if f := wanted[flow.Frontend()]; f != nil && flow.Status.Has(conntrack.DstNAT) {
			all = append(all, dataplane.Connection{
				Frontend: f.Key, Service: f.Service, Client: flow.Client(), Backend: flow.Backend(),
				State: flow.State, Since: flow.Start, In: flow.In, Out: flow.Out,
			})
		}
		return nil
	})
	return all, err
}

// frontends returns those that are carried out.
func (fl *flows) frontends() map[balancer.Key]*balancer.Frontend {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return maps.Clone(fl.wanted)
}

// portKey is a port of a service.
type portKey struct {
	service balancer.Name
	port    string
}

// volume is bytes from and to clients.
type volume struct{ in, out uint64 }

// traffic counts what conntrack knows: live connections, and, where it accounts for them, bytes. Those of a flow are
// told when it ends.
type traffic struct {
	flows *flows
	// conn is its own: a list of all flows takes time, for which a change must not wait.
	conn *conntrack.Conn
	// ends is nil where conntrack does not count bytes.
	ends    *conntrack.Ends
	stop    context.CancelFunc
	running sync.WaitGroup

	mu sync.Mutex // guards what follows
	// ended are the bytes of flows that have ended, and shown what was last said of each port.
	ended, shown map[portKey]volume
	active       map[countKey]uint64
	live         map[portKey]volume
	next         time.Time
}

// newTraffic subscribes to the ends of flows where net.netfilter.nf_conntrack_acct is on.
func newTraffic(fl *flows, conn *conntrack.Conn) (*traffic, error) {
	t := &traffic{flows: fl, conn: conn, ended: map[portKey]volume{}, shown: map[portKey]volume{}}
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_acct")
	if err != nil || strings.TrimSpace(string(text)) != "1" {
		return t, nil
	}
	t.ends, err = conntrack.Subscribe()
	return t, err
}

// start begins to take in the ends of flows.
func (t *traffic) start() {
	if t.ends == nil || t.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.stop = cancel
	t.running.Go(func() {
		lost := false
		err := t.ends.Run(ctx, t.end, func() {
			if !lost {
				t.flows.log.Warn("connections end faster than their bytes can be counted: some are missing from the counters of bytes")
			}
			lost = true
		})
		if err != nil {
			t.flows.log.Warn("bytes are not counted any more", "err", err)
		}
	})
}

// end adds the bytes of a flow.
func (t *traffic) end(flow *conntrack.Flow) {
	f := t.flows.frontend(flow.Frontend())
	if f == nil || !flow.Status.Has(conntrack.DstNAT) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	k := portKey{f.Service, f.Port}
	v := t.ended[k]
	t.ended[k] = volume{v.in + flow.In, v.out + flow.Out}
}

func (fl *flows) frontend(k balancer.Key) *balancer.Frontend {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.wanted[k]
}

// look counts the flows there are, unless that was done just now.
func (t *traffic) look(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	started := time.Now()
	if started.Before(t.next) {
		return nil
	}
	active, live := map[countKey]uint64{}, map[portKey]volume{}
	wanted := t.flows.frontends()
	err := t.conn.Each(ctx, conntrack.Filter{}, func(flow *conntrack.Flow) error {
		f := wanted[flow.Frontend()]
		if f == nil || !flow.Status.Has(conntrack.DstNAT) {
			return nil
		}
		if flow.State != "time-wait" && flow.State != "close" {
			active[countKey{f.Service, f.Port, flow.Backend()}]++
		}
		v := live[portKey{f.Service, f.Port}]
		live[portKey{f.Service, f.Port}] = volume{v.in + flow.In, v.out + flow.Out}
		return nil
	})
	if err == nil {
		t.active, t.live = active, live
	}
	t.next = time.Now().Add(max(readEvery, readShare*time.Since(started)))
	return err
}

// bytes returns the bytes of a port so far. A flow that has just ended may be in neither number for a moment: what was
// said once stays.
func (t *traffic) bytes(k portKey) volume {
	t.mu.Lock()
	defer t.mu.Unlock()
	ended, live, shown := t.ended[k], t.live[k], t.shown[k]
	shown = volume{max(shown.in, ended.in+live.in), max(shown.out, ended.out+live.out)}
	t.shown[k] = shown
	return shown
}

// activeAt returns the live connections of a backend.
func (t *traffic) activeAt(k countKey) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.active[k]
}

func (t *traffic) close() error {
	if t.stop != nil {
		t.stop()
	}
	t.running.Wait()
	failed := t.conn.Close()
	if t.ends != nil {
		failed = errors.Join(failed, t.ends.Close())
	}
	return failed
}

package ipvs

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/sweep"
)

// flows drops what conntrack would go on keeping from virtual servers. Those end their own connections with their
// destinations; what they do not end is
//
//   - flows that began before there was a virtual server, when packets went to nobody or to somebody else. IPVS does not
//     change what conntrack has of them, so that answers would find no way back;
//   - connections of another mode that was in use before, which conntrack leads to their endpoints ahead of IPVS.
//
// Both are looked for in a goroutine of their own, because that takes longer than a change.
type flows struct {
	conn cutter
	log  *slog.Logger
	loop *sweep.Loop

	mu sync.Mutex // guards what follows
	// ends says when flows to a backend end that has no time beyond that.
	ends map[flowKey]time.Time
	// begun are the frontends that began to serve.
	begun map[balancer.Key]bool
}

// flowKey is the flows of a frontend to one backend.
type flowKey struct {
	frontend balancer.Key
	backend  netip.AddrPort
}

// cutter is conntrack.Conn.
type cutter interface {
	Cut(ctx context.Context, keys map[balancer.Key]bool, stale func(*conntrack.Flow) bool) (int, error)
	Close() error
}

// retryCut is the time until what conntrack refused is tried again.
const retryCut = time.Second

func newFlows(conn cutter, log *slog.Logger) *flows {
	fl := &flows{conn: conn, log: log, ends: map[flowKey]time.Time{}, begun: map[balancer.Key]bool{}}
	fl.loop = sweep.New(fl.sweep)
	return fl
}

// take notes what a change comes to; was is what was carried out before, nil where that is not known.
func (fl *flows) take(c dataplane.Change, was *balancer.Frontend, now time.Time) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	until := now
	if c.New == nil && was != nil && c.Key.Proto != balancer.UDP {
		until = now.Add(was.DrainTimeout)
	}
	if was != nil {
		for i := range was.Backends {
			k := flowKey{c.Key, was.Backends[i].Addr}
			if old, ok := fl.ends[k]; !ok || until.Before(old) {
				fl.ends[k] = until
			}
		}
	}
	if c.New == nil {
		return
	}
	for i := range c.New.Backends {
		b := &c.New.Backends[i]
		if b.Until.IsZero() {
			delete(fl.ends, flowKey{c.Key, b.Addr})
		} else {
			fl.ends[flowKey{c.Key, b.Addr}] = b.Until
		}
	}
	// With dr and tunnel, conntrack has nothing to change, and no answer comes by that would tell one flow from another.
	if c.New.Forward == balancer.NATForward && c.New.Serves() && (was == nil || !was.Serves()) {
		fl.begun[c.Key] = true
	}
}

// sweep drops what is due, and returns when something is due again.
func (fl *flows) sweep(ctx context.Context) (next time.Time) {
	now := time.Now()
	fl.mu.Lock()
	keys, due, begun := map[balancer.Key]bool{}, map[flowKey]bool{}, fl.begun
	fl.begun = map[balancer.Key]bool{}
	for k := range begun {
		keys[k] = true
	}
	for k, at := range fl.ends {
		if !at.After(now) {
			keys[k.frontend], due[k] = true, true
		}
	}
	fl.mu.Unlock()
	var err error
	if len(keys) > 0 {
		_, err = fl.conn.Cut(ctx, keys, func(flow *conntrack.Flow) bool { return stale(flow, due, begun) })
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fl.log.Warn("ending flows to endpoints that are gone; trying again", "err", err)
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if err != nil {
		for k := range begun {
			fl.begun[k] = true
		}
		return now.Add(retryCut)
	}
	for k := range due {
		if !fl.ends[k].After(now) {
			delete(fl.ends, k)
		}
	}
	for _, at := range fl.ends {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// stale reports whether a flow has to go: it leads to a backend whose time is over, or it leads nowhere and was there
// before its frontend served. A connection that was answered is somebody else's.
func stale(flow *conntrack.Flow, due map[flowKey]bool, begun map[balancer.Key]bool) bool {
	k := flow.Frontend()
	if flow.Backend() != flow.Orig.Dst {
		return due[flowKey{k, flow.Backend()}]
	}
	return begun[k] && (k.Proto == balancer.UDP || !flow.Status.Has(conntrack.SeenReply))
}

// close ends the goroutine: flows that still have time live as long as their two ends want.
func (fl *flows) close() error {
	fl.loop.Close()
	return fl.conn.Close()
}

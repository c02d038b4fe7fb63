package dnat

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
)

// Carried follows an earlier mode's connections that conntrack still translates. It counts, lists
// and ends them for a mode that does not translate addresses. When none are left, it stops reading
// conntrack until Again is called. A nil Carried has no connections.
type Carried struct {
	flows *Flows
	open  func() (Conn, error)

	looking sync.Mutex // held while conntrack is read, which is slow for a large table

	mu     sync.Mutex // guards the fields below; held only briefly, because changes must not wait
	some   bool       // whether carried connections may exist
	again  bool       // whether more connections may have started since the last reading
	closed bool
	active map[counters.BackendKey]uint64
	next   time.Time // when conntrack may be read again
}

// NewCarried returns a Carried for a mode whose connections the kernel tracks itself. The Carried
// uses flows to remove connections.
func NewCarried(flows *Flows, open func() (Conn, error)) *Carried {
	return &Carried{flows: flows, open: open}
}

// proxied returns a Carried for a mode that terminates connections in this process. own reports
// whether an address belongs to this host.
func proxied(log *slog.Logger, own func(netip.Addr) bool, open func() (Conn, error)) *Carried {
	c := NewCarried(nil, open)
	c.flows = NewFlows(lazyCutter{c}, log)
	c.flows.own = own
	return c
}

// lazyCutter is a Cutter that reads conntrack only while connections are carried.
type lazyCutter struct{ *Carried }

func (s lazyCutter) Cut(ctx context.Context, keys map[balancer.Key]bool, stale func(*conntrack.Flow) bool) (int, error) {
	if !s.look(ctx) {
		return 0, nil
	}
	conn, err := s.open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // all requests were already answered
	return conn.Cut(ctx, keys, stale)
}

func (lazyCutter) Close() error { return nil }

// Applied processes a batch, as [Flows.Applied] does. Another mode may have served a new frontend
// before.
func (c *Carried) Applied(batch []dataplane.Change, failed dataplane.KeyErrors) {
	if c == nil {
		return
	}
	if slices.ContainsFunc(batch, func(c dataplane.Change) bool { return c.Old == nil && c.New != nil }) {
		c.expect()
	}
	c.flows.Applied(batch, failed)
}

// Again requests another reading of conntrack, because another mode's rules may have started more
// connections since the last reading.
func (c *Carried) Again() {
	if c != nil {
		c.expect()
		c.flows.again()
	}
}

func (c *Carried) expect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.some, c.again = !c.closed, true
}

// Close stops all work. The next mode handles the remaining connections.
func (c *Carried) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	was := c.closed
	c.some = false
	c.closed = true
	c.active = nil
	c.mu.Unlock()
	if was {
		return nil
	}
	return c.flows.Close()
}

// look reports whether carried connections may exist. It counts them unless it has counted them
// recently.
func (c *Carried) look(ctx context.Context) bool {
	c.looking.Lock()
	defer c.looking.Unlock()
	began := time.Now()
	c.mu.Lock()
	some := c.some
	due := some && !began.Before(c.next)
	c.again = c.again && !due
	c.mu.Unlock()
	if !due {
		return some
	}
	some, active, err := c.count(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil && !c.closed:
		c.some, c.active = some || c.again, active
	case errors.Is(err, fs.ErrPermission): // without privileges, no mode can have translated connections
		c.some = false
	}
	c.next = counters.NextReading(began)
	return c.some
}

// count reads conntrack. some reports whether carried connections exist. active is each backend's
// number of live connections.
func (c *Carried) count(ctx context.Context) (some bool, active map[counters.BackendKey]uint64, err error) {
	conn, err := c.open()
	if err != nil { // without privileges or conntrack, no connection was translated
		return false, nil, nil
	}
	defer func() { _ = conn.Close() }() // the connection was only used to read
	active = map[counters.BackendKey]uint64{}
	idle := idle()
	err = conn.Each(ctx, conntrack.Filter{}, func(flow *conntrack.Flow) error {
		k, ok := c.flows.portOf(flow)
		if ok && isLive(flow, idle) {
			active[counters.BackendKey{Port: k, Addr: flow.Backend()}]++
		}
		some = some || c.flows.leads(flow)
		return nil
	})
	return some, active, err
}

// Counters returns only live connections. The mode in which they started has already counted
// everything else.
func (c *Carried) Counters(ctx context.Context) (all []dataplane.FrontendCount) {
	if c == nil || !c.look(ctx) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, n := range c.active {
		all = append(all, dataplane.FrontendCount{
			Service: k.Service, Port: k.Name, BytesOnly: true, Backends: []dataplane.BackendCount{{Backend: k.Addr, Active: n, Tracked: true}},
		})
	}
	return all
}

// Connections calls visit for the connections that match q.
func (c *Carried) Connections(ctx context.Context, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	if c == nil || !c.look(ctx) {
		return nil
	}
	return c.flows.connections(ctx, c.open, q, visit)
}

// Kill makes conntrack drop the connections that match q, and returns their number.
func (c *Carried) Kill(ctx context.Context, q dataplane.ConnectionQuery) (int, error) {
	if c == nil || !c.look(ctx) {
		return 0, nil
	}
	return c.flows.kill(ctx, c.open, q)
}

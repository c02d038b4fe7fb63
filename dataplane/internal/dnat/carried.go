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

// Carried counts, lists and ends the connections that conntrack carries on of a mode that translated destinations and was left, for one
// that does not. While there are none, conntrack is not read, until Again. A nil Carried has none.
type Carried struct {
	flows *Flows
	open  func() (Conn, error)

	looking sync.Mutex // held by who reads conntrack, which takes long where it has much

	mu     sync.Mutex // guards what follows; never held for long, because changes do not wait
	some   bool       // there may be such connections
	again  bool       // since conntrack was last begun to be read, more may have come
	closed bool
	active map[counters.BackendKey]uint64
	next   time.Time // when conntrack may be read again
}

// NewCarried returns a Carried for a mode whose connections the kernel tracks by itself: flows drop theirs as well.
func NewCarried(flows *Flows, open func() (Conn, error)) *Carried {
	return &Carried{flows: flows, open: open}
}

// proxied returns a Carried for a mode that ends connections in this process, with the addresses of this host.
func proxied(log *slog.Logger, own func(netip.Addr) bool, open func() (Conn, error)) *Carried {
	c := NewCarried(nil, open)
	c.flows = NewFlows(seldom{c}, log)
	c.flows.own = own
	return c
}

// seldom is a Cutter for which conntrack is read only while connections are carried on.
type seldom struct{ *Carried }

func (s seldom) Cut(ctx context.Context, keys map[balancer.Key]bool, stale func(*conntrack.Flow) bool) (int, error) {
	if !s.look(ctx) {
		return 0, nil
	}
	conn, err := s.open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // what was asked for was answered
	return conn.Cut(ctx, keys, stale)
}

func (seldom) Close() error { return nil }

// Applied takes in a batch, as that of Flows does. What is new may have been another mode's.
func (c *Carried) Applied(batch []dataplane.Change, failed dataplane.KeyErrors) {
	if c == nil {
		return
	}
	if slices.ContainsFunc(batch, func(c dataplane.Change) bool { return c.Old == nil && c.New != nil }) {
		c.expect()
	}
	c.flows.Applied(batch, failed)
}

// Again has conntrack be read again: by what another mode had in the kernel until now, connections may have begun.
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

// Close ends all work: the next mode has the connections that are left.
func (c *Carried) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	was := c.closed
	c.some, c.closed, c.active = false, true, nil
	c.mu.Unlock()
	if was {
		return nil
	}
	return c.flows.Close()
}

// look reports whether there may be connections, and counts them unless that was done just now.
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
	case errors.Is(err, fs.ErrPermission): // anybody may open a connection, and nobody without privilege has made a mode that translates
		c.some = false
	}
	c.next = counters.NextReading(began)
	return c.some
}

// count reads conntrack.
func (c *Carried) count(ctx context.Context) (some bool, active map[counters.BackendKey]uint64, err error) {
	conn, err := c.open()
	if err != nil { // without privilege, or conntrack, nothing can have been translated
		return false, nil, nil
	}
	defer func() { _ = conn.Close() }() // nothing was written
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

// Counters returns the live connections: what else there is of them was counted by the mode that they began in.
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

// Connections calls visit for those that q names.
func (c *Carried) Connections(ctx context.Context, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	if c == nil || !c.look(ctx) {
		return nil
	}
	return c.flows.connections(ctx, c.open, q, visit)
}

// Kill has conntrack forget those that q names, and returns how many there were.
func (c *Carried) Kill(ctx context.Context, q dataplane.ConnectionQuery) (int, error) {
	if c == nil || !c.look(ctx) {
		return 0, nil
	}
	return c.flows.kill(ctx, c.open, q)
}

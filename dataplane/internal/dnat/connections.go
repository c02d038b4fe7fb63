package dnat

import (
	"context"
	"maps"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
)

// Conn is the part of conntrack.Conn that this package uses.
type Conn interface {
	Cutter
	Each(ctx context.Context, f conntrack.Filter, visit func(*conntrack.Flow) error) error
}

func (fl *Flows) frontends() map[balancer.Key]*balancer.Frontend {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return maps.Clone(fl.wanted)
}

func (fl *Flows) frontend(flow *conntrack.Flow) *balancer.Frontend {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.placeLocked(flow)
	return fl.wanted[flow.Frontend()]
}

// leadsTo reports whether a backend belongs or belonged to the frontend. A flow to any other target
// does not result from this mode's rules. For example, userspace mode may have redirected it to its
// own port before a mode switch.
func (fl *Flows) leadsTo(f *balancer.Frontend, backend netip.AddrPort) bool {
	if f.Backend(backend) != nil {
		return true
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	return fl.leaving[f.Key].counts(backend)
}

// portOf returns the service port whose counts include a flow: the port of its frontend, even if
// that frontend was removed. It returns false for a flow whose destination is not a backend,
// because the mode that redirected the flow counts it.
func (fl *Flows) portOf(flow *conntrack.Flow) (counters.Port, bool) {
	if !flow.Status.Has(conntrack.DstNAT) {
		return counters.Port{}, false
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.placeLocked(flow)
	k := flow.Frontend()
	if l := fl.leaving[k]; l.counts(flow.Backend()) {
		return l.port, true
	}
	if f := fl.wanted[k]; f != nil && f.Backend(flow.Backend()) != nil {
		return counters.Port{Service: f.Service, Name: f.Port}, true
	}
	return counters.Port{}, false
}

// connection describes a flow to f as a connection. f is nil if the frontend does not exist. ours
// reports whether the flow's destination is or was a backend of f.
func (fl *Flows) connection(f *balancer.Frontend, flow *conntrack.Flow, idle func(*conntrack.Flow) bool) (c dataplane.Connection, ours bool) {
	if f == nil || !flow.Status.Has(conntrack.DstNAT) || !fl.leadsTo(f, flow.Backend()) {
		return c, false
	}
	c = dataplane.Connection{
		Frontend: flow.Destination(), Service: f.Service, Client: flow.Client(), Backend: flow.Reply.Src,
		State: flow.State, Since: flow.Start, In: flow.In, Out: flow.Out,
	}
	if idle(flow) {
		c.State = dataplane.Idle
	}
	return c, true
}

// connections calls visit for each flow in conntrack whose destination is a backend of its
// frontend, if the flow matches q.
func (fl *Flows) connections(ctx context.Context, open func() (Conn, error), q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	conn, err := open()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the connection was only used to read
	idle := idle()
	filter := conntrack.Filter{Proto: q.Frontend.Proto, Dst: q.Frontend.Addr}
	if !q.Frontend.Port.IsRange() {
		filter.Port = q.Frontend.Port.First()
	}
	return conn.Each(ctx, filter, func(flow *conntrack.Flow) error {
		c, ours := fl.connection(fl.frontend(flow), flow, idle)
		if !ours || !q.Matches(&c) {
			return nil
		}
		return visit(&c)
	})
}

// kill removes the flows that match q from conntrack, and returns their number. It skips closed
// connections unless q selects their state.
func (fl *Flows) kill(ctx context.Context, open func() (Conn, error), q dataplane.ConnectionQuery) (int, error) {
	conn, err := open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // all requests were already answered
	wanted := fl.frontends()
	keys := map[balancer.Key]bool{}
	idle := idle()
	for k, f := range wanted {
		keys[k] = (q.Service == "" || q.Service == f.Service) && (q.Frontend == balancer.Key{} || q.Frontend.Covers(k) || k.Covers(q.Frontend))
	}
	return conn.Cut(ctx, keys, func(flow *conntrack.Flow) bool {
		c, ours := fl.connection(fl.frontend(flow), flow, idle)
		return ours && q.Matches(&c) && (q.State != "" || !c.Closed())
	})
}

// idle returns a function that reports whether a UDP flow has had no packet for
// dataplane.IdleAfter. The function compares the remaining time with the timeout that each packet
// sets (net.netfilter.nf_conntrack_udp_timeout, or nf_conntrack_udp_timeout_stream for assured
// flows). An offloaded flow is not idle, because a flow without packets soon leaves the flowtable.
func idle() func(*conntrack.Flow) bool {
	read := func(name string) time.Duration {
		text, _ := os.ReadFile("/proc/sys/net/netfilter/" + name)
		n, _ := strconv.Atoi(strings.TrimSpace(string(text))) // if the sysctl can't be read, n is 0 and no flow is idle
		return time.Duration(n) * time.Second
	}
	short, long := read("nf_conntrack_udp_timeout"), read("nf_conntrack_udp_timeout_stream")
	return func(f *conntrack.Flow) bool {
		whole := short
		if f.Status.Has(conntrack.Assured) {
			whole = long
		}
		return f.Proto == balancer.UDP && !f.Status.Has(conntrack.Offloaded) && whole-f.Left >= dataplane.IdleAfter
	}
}

// isLive reports whether a flow is an established connection that has not ended. A UDP flow is live
// before its first reply, but not if it is idle.
func isLive(flow *conntrack.Flow, idle func(*conntrack.Flow) bool) bool {
	if flow.Proto != balancer.UDP && !flow.Answered() {
		return false
	}
	return flow.State != "time-wait" && flow.State != "close" && !idle(flow)
}

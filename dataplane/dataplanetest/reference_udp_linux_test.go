package dataplanetest

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"vipd/dataplane"
)

func (r *reference) datagrams(e *front, pc *net.UDPConn) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := pc.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if c, err := r.flow(e, pc, from); err == nil {
			if r.fault == "cuts datagrams" {
				n = min(n, 1472)
			}
			_, _ = c.backend.Write(buf[:n])
		}
	}
}

// flow returns the client's flow, and creates it if missing.
func (r *reference) flow(e *front, pc *net.UDPConn, from netip.AddrPort) (*pair, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := e.flows[from]; c != nil {
		return c, nil
	}
	if e.gone.Load() { // the socket was closed while the datagram was read, so nothing would end the flow
		return nil, net.ErrClosed
	}
	to, err := r.chooseLocked(e, from)
	if err != nil {
		return nil, err
	}
	b, err := r.dial(e.f, to)
	if err != nil {
		return nil, err
	}
	c := &pair{backend: b, from: from, to: to}
	e.flows[from] = c
	r.sockets = append(r.sockets, b)
	if r.fault != "miscounts" {
		r.counted[e.f.Key]++
	}
	r.running.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := b.Read(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteToUDPAddrPort(buf[:n], from)
		}
	})
	return c, nil
}

// Connections calls visit for the open connections that q selects.
func (r *reference) Connections(_ context.Context, q dataplane.ConnectionQuery, visit func(*dataplane.Connection) error) error {
	for _, c := range r.open() {
		if !q.Matches(&c) {
			continue
		}
		if err := visit(&c); err != nil {
			return err
		}
	}
	return nil
}

func (r *reference) open() (all []dataplane.Connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, e := range r.fronts {
		add := func(p *pair) {
			all = append(all, dataplane.Connection{Frontend: k, Service: e.f.Service, Client: p.from, Backend: p.to})
		}
		for p := range e.conns {
			add(p)
		}
		for _, p := range e.flows {
			add(p)
		}
	}
	return all
}

// Counters returns the number of connections to each frontend.
func (r *reference) Counters() []dataplane.FrontendCount {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []dataplane.FrontendCount
	for k, n := range r.counted {
		// The cases that read counters use the service "web", whose ports are named after their
		// protocols.
		all = append(all, dataplane.FrontendCount{Service: "web", Port: string(k.Proto), Connections: n})
	}
	return all
}

func (r *reference) String() string { return fmt.Sprintf("reference with fault %q", r.fault) }

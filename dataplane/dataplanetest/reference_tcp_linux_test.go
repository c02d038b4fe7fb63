package dataplanetest

import (
	"errors"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/balancer/pick"
	"vipd/dataplane/host"
)

func (r *reference) chooseLocked(e *front, client netip.AddrPort) (netip.AddrPort, error) {
	f := e.f
	inRanges := slices.ContainsFunc(f.Sources, func(p netip.Prefix) bool { return p.Contains(client.Addr()) })
	if len(f.Sources) > 0 && !inRanges && !isHosts(client.Addr()) && r.fault != "lets everyone in" {
		return netip.AddrPort{}, errors.New("not within source_ranges")
	}
	if e.sticky != nil {
		to, ok := e.sticky.Lookup(client.Addr(), time.Now())
		if first, known := e.first[client.Addr()]; known && e.active(first) && r.fault == "throws clients back" {
			to = first
		}
		if ok && e.active(to) {
			e.sticky.Store(client.Addr(), to, time.Now())
			return to, nil
		}
	}
	full := func(i int) bool {
		bound := f.Backends[i].MaxConnections
		return bound > 0 && e.load(f.Backends[i].Addr).Load() >= int64(bound) && r.fault != "bounds nothing"
	}
	i := e.picker.Pick(pick.Flow{Client: client, VIP: f.AddrPort()}, full)
	if r.fault == "moves everybody" && f.Scheduler == balancer.Maglev {
		i = int(crc32.ChecksumIEEE(client.Addr().AsSlice()) % uint32(len(f.Backends)))
	}
	if r.chosen++; r.fault == "favours one" && r.chosen%10 == 0 {
		i = 0
	}
	if i < 0 {
		return netip.AddrPort{}, errors.New("no backends")
	}
	to := f.Backends[i].Addr
	if e.sticky != nil {
		e.sticky.Store(client.Addr(), to, time.Now())
		if _, known := e.first[client.Addr()]; !known {
			e.first[client.Addr()] = to
		}
	}
	return to, nil
}

func (e *front) active(to netip.AddrPort) bool {
	return slices.ContainsFunc(e.f.Backends, func(b balancer.Backend) bool { return b.Addr == to && b.State == balancer.Active })
}

func isHosts(a netip.Addr) bool {
	to, err := host.RouteTo(a)
	return to.Local && err == nil
}

func (r *reference) dial(f *balancer.Frontend, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Timeout: f.ConnectTimeout}
	if r.fault == "shows the VIP" && f.Proto == balancer.TCP {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.Addr, 0))
	}
	switch {
	case r.fault == "mixes ports up":
		to = netip.AddrPortFrom(to.Addr(), f.Key.AddrPort().Port())
	case r.fault == "knows one target port":
		to = netip.AddrPortFrom(to.Addr(), targetPort)
	case r.fault == "never meets itself" && isHosts(to.Addr()):
		return nil, errors.New("that is this host")
	}
	return d.Dial(string(f.Proto), to.String())
}

func (r *reference) accept(e *front, ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		r.running.Go(func() {
			if err := r.relay(e, c.(*net.TCPConn)); err != nil && r.fault != "never refuses" {
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
		})
	}
}

func (r *reference) relay(e *front, c *net.TCPConn) error {
	from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
	r.mu.Lock()
	f := e.f
	to, err := r.chooseLocked(e, from)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	load := e.load(to)
	load.Add(1)
	r.mu.Unlock()
	defer load.Add(-1)
	b, err := r.dial(f, to)
	if err != nil {
		return err
	}
	p := &pair{client: c, backend: b, from: from, to: to}
	r.mu.Lock()
	e.conns[p] = true
	r.counted[f.Key]++
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { r.copyHalf(b.(*net.TCPConn), c) })
	both.Go(func() { r.copyHalf(c, b.(*net.TCPConn)) })
	both.Wait()
	r.mu.Lock()
	delete(e.conns, p)
	r.mu.Unlock()
	_ = c.Close() // not reset, because data that was sent may still be in transit
	_ = b.Close()
	return nil
}

func (r *reference) copyHalf(dst, src *net.TCPConn) {
	if _, err := io.Copy(dst, src); err != nil || r.fault == "closes both halves" {
		_ = dst.Close()
		_ = src.Close()
		return
	}
	_ = dst.CloseWrite()
}

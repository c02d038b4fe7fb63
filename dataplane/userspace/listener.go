package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/sockerr"
)

// keepAlive detects clients and backends that have disappeared without a FIN or RST.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 9}

// network returns the form of "tcp" or "udp" for a single family.
func network(k balancer.Key) string {
	if k.Addr.Is4() {
		return string(k.Proto) + "4"
	}
	return string(k.Proto) + "6"
}

// listenConfig returns the configuration of all listeners: plain TCP, because MPTCP is slower and
// loses the original destination. prepare runs before the socket is bound.
func listenConfig(prepare func(fd uintptr) error) *net.ListenConfig {
	lc := &net.ListenConfig{KeepAliveConfig: acceptedKeepAlive}
	lc.SetMultipathTCP(false)
	lc.Control = func(_, _ string, raw syscall.RawConn) error {
		return control(raw, prepare)
	}
	return lc
}

// listen opens the TCP socket at the VIP with its filter, and starts its accept loop.
func (p *portSockets) listen() error {
	f, conf := p.f, p.f.conf.Load()
	if ln := f.d.inherited.listener(p.key()); ln != nil {
		p.acceptFrom(ln)
		return refit(ln, conf)
	}
	lc := listenConfig(func(fd uintptr) error {
		return errors.Join(inheritKeepAlive(fd), anyAddress(fd, f.key.Addr), fit(fd, conf))
	})
	ln, err := lc.Listen(context.Background(), network(f.key), p.at.String())
	if err != nil {
		return explainListen(p.key(), err)
	}
	p.acceptFrom(ln.(*net.TCPListener))
	return nil
}

// acceptFrom starts the accept loop of the socket.
func (p *portSockets) acceptFrom(ln *net.TCPListener) {
	p.listener = ln
	f := p.f
	f.d.goAccept(ln, f, func(c *net.TCPConn, from netip.AddrPort) {
		if !f.conf.Load().allows(f.d, from.Addr()) {
			f.d.budget.give(2)
			reset(c)
			return
		}
		f.d.goServe(f, c, from, p.at)
	})
}

// goAccept starts the accept loop of a socket. It only waits for the kernel.
func (d *Dataplane) goAccept(ln *net.TCPListener, f *frontend, use func(*net.TCPConn, netip.AddrPort)) {
	d.budget.take(1)
	d.tasks.Go(func() {
		defer d.budget.give(1)
		d.acceptLoop(ln, f, use)
	})
}

// acceptLoop passes each connection, with its two descriptors, to use until the listener is closed.
// While all descriptors are in use, or f has used its share, connections wait in the kernel's
// queue. f is the listener's only frontend, or nil. A connection that is accepted after others have
// used up the room waits here.
func (d *Dataplane) acceptLoop(ln *net.TCPListener, f *frontend, use func(*net.TCPConn, netip.AddrPort)) {
	slower := backoff{}
	for {
		if !d.budget.wait(f, d.ctx.Done()) {
			return
		}
		c, err := ln.AcceptTCP()
		switch {
		case err == nil:
			slower = backoff{}
			d.budget.claim(f, d.ctx.Done(), func() bool { return isOpen(ln) })
			from := c.RemoteAddr().(*net.TCPAddr).AddrPort()
			use(c, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded): // a deadline means that the socket is handed over
			return
		case sockerr.Is(err, syscall.ECONNABORTED):
		default:
			if sockerr.Exhausted(err) {
				d.budget.shortage.note()
			}
			d.seldom("accepting is slowed down", "listener", ln.Addr(), "err", err)
			if !slower.sleep(d.ctx.Done()) {
				return
			}
		}
	}
}

// isOpen reports whether a listener is open.
func isOpen(ln *net.TCPListener) bool {
	raw, err := ln.SyscallConn()
	return err == nil && raw.Control(func(uintptr) {}) == nil
}

// goServe starts the goroutine of a client's connection to an address, unless the dataplane is
// closing.
func (d *Dataplane) goServe(f *frontend, c *net.TCPConn, from, to netip.AddrPort) {
	if !d.begin() {
		d.budget.give(2)
		reset(c)
		return
	}
	f.descriptors.Add(2)
	go d.served(f, func() { f.serve(c, from, to) })
}

// served runs the goroutine of a connection, and returns its counts to the budgets.
func (d *Dataplane) served(f *frontend, serve func()) {
	defer d.conns.Done()
	defer d.budget.give(2)
	defer f.descriptors.Add(-2)
	serve()
}

// begin counts another connection. It returns false if no more may start.
func (d *Dataplane) begin() bool {
	d.gate.RLock()
	defer d.gate.RUnlock()
	if d.shutting {
		return false
	}
	d.conns.Add(1)
	return true
}

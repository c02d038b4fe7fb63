package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"vipd/balancer"
)

// keepAlive makes the kernel detect clients and backends that have disappeared without a FIN or
// RST.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 9}

// network returns the network name that package net uses for a key: "tcp4", "tcp6", "udp4" or
// "udp6".
func network(k balancer.Key) string {
	if k.Addr.Is4() {
		return string(k.Proto) + "4"
	}
	return string(k.Proto) + "6"
}

// listenConfig returns the configuration of listeners and UDP sockets. It disables MPTCP, which is
// slower and loses the original destination. prepare is called before the socket is bound.
func listenConfig(prepare func(fd uintptr) error) *net.ListenConfig {
	lc := &net.ListenConfig{KeepAliveConfig: keepAlive}
	lc.SetMultipathTCP(false)
	lc.Control = func(_, _ string, raw syscall.RawConn) error {
		return control(raw, prepare)
	}
	return lc
}

// listen opens the filtered TCP socket at the VIP, or adopts the inherited socket, and accepts
// connections from it.
func (p *portSockets) listen() error {
	f, conf := p.f, p.f.conf.Load()
	if ln := f.d.inherited.listener(p.key()); ln != nil {
		if err := p.accept(ln); err != nil {
			return err
		}
		return p.listener.refit(conf)
	}
	lc := listenConfig(func(fd uintptr) error {
		return errors.Join(inheritOptions(fd), anyAddress(fd, f.key.Addr), fit(fd, conf))
	})
	ln, err := lc.Listen(context.Background(), network(f.key), p.at.String())
	if err != nil {
		return explainListen(p.key(), err)
	}
	return p.accept(ln.(*net.TCPListener))
}

func (p *portSockets) accept(ln *net.TCPListener) (err error) {
	p.listener, err = p.f.d.accept(ln, p.f, func(int) (*frontend, netip.AddrPort) { return p.f, p.at })
	return err
}

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
	lc := &net.ListenConfig{KeepAliveConfig: keepAlive}
	lc.SetMultipathTCP(false)
	lc.Control = func(_, _ string, raw syscall.RawConn) error {
		return control(raw, prepare)
	}
	return lc
}

// listen opens the TCP socket at the VIP with its filter, and accepts its connections.
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

// accept accepts connections from the socket.
func (p *portSockets) accept(ln *net.TCPListener) (err error) {
	p.listener, err = p.f.d.accept(ln, p.f, func(int) (*frontend, netip.AddrPort) { return p.f, p.at })
	return err
}

package userspace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/sockerr"
)

// judge decides whether a failed attempt to connect to b is the backend's or this host's fault. It
// records and reports the backend's failure or this host's shortage. If err is nil, it does
// nothing.
func (f *frontend) judge(b *backend, err error) {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
	case sockerr.Is(err, syscall.EADDRNOTAVAIL, syscall.EAGAIN): // UDP reports EAGAIN
		f.d.ports.note()
		f.conf.Load().counter.failures.Add(1)
		f.d.seldom("no local port is left for connections to a backend: too many are open or were just closed "+
			"(net.ipv4.ip_local_port_range limits their number)", "frontend", f.key, "backend", b.addr)
	case sockerr.Exhausted(err):
		f.d.budget.shortage.note()
		f.d.seldom("no file descriptor is left for a connection to a backend", "frontend", f.key, "backend", b.addr)
	default:
		b.failures.Add(1)
		f.conf.Load().counter.failures.Add(1)
		target := b.target()
		f.d.aside.do(func() { // queued before b.failed, so the report of a later success follows this one
			if f.d.reportDial != nil {
				f.d.reportDial(target, err)
			}
		})
		if b.failed(f.d.now()) {
			f.d.aside.do(func() {
				f.d.log.Warn("a backend does not accept connections; the other backends get its share", "frontend", f.key, "backend", b.addr, "err", err)
			})
		}
	}
}

// lacks returns advice about shortages of descriptors and local ports that affect clients, or "".
func (d *Dataplane) lacks() string {
	lacks := d.budget.lacks()
	if d.ports.isRecent() {
		const text = "clients are reset because no local port is left for connections to an endpoint. Widen net.ipv4.ip_local_port_range, or " +
			"add endpoints: a port stays in use for a minute after its connection ends"
		lacks = strings.TrimPrefix(lacks+"; "+text, "; ")
	}
	return lacks
}

// noteSuccess records that b accepts connections or answers datagrams. If b has not failed, it only
// needs one comparison.
func (f *frontend) noteSuccess(b *backend) {
	if !b.answered() {
		return
	}
	target := b.target()
	f.d.aside.do(func() {
		f.d.log.Info("a backend accepts connections again", "frontend", f.key, "backend", b.addr)
		if f.d.reportDial != nil {
			f.d.reportDial(target, nil)
		}
	})
}

// seldom logs a warning, but at most one in ten seconds, because an event may affect many
// connections at once.
func (d *Dataplane) seldom(what string, args ...any) {
	now, last := d.now(), d.warned.Load()
	if last != 0 && now-last < int64(10*time.Second) || !d.warned.CompareAndSwap(last, now) {
		return
	}
	d.aside.do(func() { d.log.Warn(what, args...) })
}

// explainListen adds the likely cause and advice to an error from opening a listener.
func explainListen(at balancer.Key, err error) error {
	switch {
	case sockerr.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("listening on %s: another program uses the port on this address or on the wildcard address. Find it with `ss -lnp sport = :%d`, "+
			"and stop it or change its address: %w", at, at.Port, err)
	case sockerr.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("listening on %s: %s is not an address of this host: let vipd hold it (addresses.bind) or add it to an interface: %w",
			at, at.Addr, err)
	case sockerr.Is(err, syscall.EACCES):
		return fmt.Errorf("listening on %s: ports below net.ipv4.ip_unprivileged_port_start (1024) need CAP_NET_BIND_SERVICE: run vipd as root, "+
			"give it that capability, or use a higher port: %w", at, err)
	}
	return fmt.Errorf("listening on %s: %w", at, err)
}

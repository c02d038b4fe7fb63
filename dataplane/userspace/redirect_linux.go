package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
)

// redirect is the interception by iptables: one rule a frontend, to one shared port for all TCP frontends of a family,
// and to a port of its own for each of UDP, which can't be asked for the original destination.
//
// Goals, and how each is met:
//  1. A change writes only its own rules: they are added and deleted in one restore, beside those that are there.
//  2. A failure leaves us with what was there before: what is asked for is pending until the kernel has it.
//  3. Rules that are not as we left them are written again as a whole: after a failure, and after damage.
//  4. Rules of an earlier process lead to ports that nobody listens on: the first look at them removes them.
type redirect struct {
	d        *Dataplane
	families map[xtables.Family]*redirectFamily

	mu     sync.RWMutex // guards routes, which accept loops read
	routes map[balancer.Key]*frontend
}

// redirectFamily is one family's half. The dataplane's lock guards it, but for what intact reads, which has its own.
type redirectFamily struct {
	r    *redirect
	name xtables.Family
	tool *xtables.Tool
	// shared is the socket of all TCP frontends, silent that of those that give no answer; nil: not needed so far.
	shared, silent *net.TCPListener
	// rules are those in the kernel, pending those to be there, or not: "".
	pending map[balancer.Key]string

	mu    sync.Mutex // guards what follows
	rules map[balancer.Key]string
	// jumps: the chain was made, and is jumped to.
	jumps bool
	// whole: the kernel may have something else than rules says.
	whole bool
	// looks counts the calls of intact.
	looks int
}

// newRedirect finds out which families iptables works for. An error says why it works for none.
func newRedirect(ctx context.Context, d *Dataplane) (*redirect, error) {
	r := &redirect{d: d, families: map[xtables.Family]*redirectFamily{}, routes: map[balancer.Key]*frontend{}}
	var reasons error
	for _, family := range xtables.Families() {
		tool, err := xtables.Find(ctx, family, xtables.Auto, d.log)
		if err != nil {
			reasons = errors.Join(reasons, err)
			continue
		}
		r.families[family] = &redirectFamily{
			r: r, name: family, tool: tool, whole: true,
			pending: map[balancer.Key]string{}, rules: map[balancer.Key]string{},
		}
	}
	if len(r.families) == 0 {
		return nil, reasons
	}
	return r, nil
}

func familyOf(k balancer.Key) xtables.Family {
	if k.Addr.Is4() {
		return xtables.IPv4
	}
	return xtables.IPv6
}

// open asks for the rule of f. Where iptables does not work for its family, f is bound.
func (r *redirect) open(f *frontend) error {
	family := r.families[familyOf(f.key)]
	if family == nil {
		return bind{}.open(f)
	}
	port, err := family.portOf(f)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.routes[f.key] = f
	r.mu.Unlock()
	if port == 0 {
		family.pending[f.key] = ""
		return nil
	}
	family.pending[f.key] = rule(f.key, port)
	return nil
}

// portOf returns the port that f's traffic is sent to, with its socket open; 0: to none, so that clients find a closed port.
func (y *redirectFamily) portOf(f *frontend) (uint16, error) {
	if f.key.Proto == balancer.UDP {
		return y.packetsOf(f)
	}
	c := f.conf.Load()
	switch {
	case c.closed():
		return 0, nil
	case c.serves:
		return y.listen(&y.shared, nil)
	}
	return y.listen(&y.silent, c)
}

// listen opens a TCP socket on every address, with the filter of c if there is one, unless it is open.
func (y *redirectFamily) listen(at **net.TCPListener, c *config) (uint16, error) {
	if *at == nil {
		lc := listenConfig(func(fd uintptr) error {
			if c != nil {
				return filter(fd, c)
			}
			return inheritKeepAlive(fd)
		})
		ln, err := lc.Listen(context.Background(), y.network("tcp"), y.wildcard())
		if err != nil {
			return 0, fmt.Errorf("listening for redirected connections: %w", err)
		}
		*at = ln.(*net.TCPListener)
		y.r.d.budget.take(1)
		y.r.d.tasks.Add(1)
		go y.accept(*at)
	}
	return (*at).Addr().(*net.TCPAddr).AddrPort().Port(), nil
}

func (y *redirectFamily) network(proto string) string {
	if y.name == xtables.IPv4 {
		return proto + "4"
	}
	return proto + "6"
}

func (y *redirectFamily) wildcard() string {
	if y.name == xtables.IPv4 {
		return "0.0.0.0:0"
	}
	return "[::]:0"
}

// accept hands each connection to the frontend that it was made to. Those made straight to our port are reset.
func (y *redirectFamily) accept(ln *net.TCPListener) {
	d := y.r.d
	defer d.tasks.Done()
	defer d.budget.give(1)
	d.acceptLoop(ln, func(c *net.TCPConn, from netip.AddrPort) {
		var f *frontend
		if at, err := originalOf(c, y.name == xtables.IPv4); err == nil {
			y.r.mu.RLock()
			f = y.r.routes[balancer.Key{Addr: at.Addr(), Port: at.Port(), Proto: balancer.TCP}]
			y.r.mu.RUnlock()
		}
		if f == nil || !f.conf.Load().allows(d, from.Addr()) {
			d.budget.give(2)
			reset(c)
			return
		}
		d.goServe(f, c, from)
	})
}

// packetsOf opens the socket of a UDP frontend and returns its port; 0: it needs none.
func (y *redirectFamily) packetsOf(f *frontend) (uint16, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.wantPacketsLocked() {
		f.shutPacketsLocked()
		return 0, nil
	}
	if f.packets == nil {
		lc := listenConfig(func(fd uintptr) error { return wantDestination(fd, y.name == xtables.IPv4) })
		pc, err := lc.ListenPacket(context.Background(), y.network("udp"), y.wildcard())
		if err != nil {
			return 0, fmt.Errorf("listening for redirected datagrams: %w", err)
		}
		f.receiveFrom(pc.(*net.UDPConn), f.receiveRedirected)
	}
	if c := f.conf.Load(); c.closed() {
		return 0, nil // open for its flows, which conntrack remembers, and for no others
	}
	return f.packets.LocalAddr().(*net.UDPAddr).AddrPort().Port(), nil
}

// receiveRedirected is receive for a socket on every address: an answer has to leave with the address that the datagram
// came to, for conntrack to turn it back.
func (f *frontend) receiveRedirected(pc *net.UDPConn) {
	defer f.d.tasks.Done()
	defer f.d.budget.give(1)
	buf, control := make([]byte, datagram), make([]byte, 256)
	slower := backoff{}
	for {
		n, m, _, from, err := pc.ReadMsgUDPAddrPort(buf, control)
		switch {
		case err == nil:
			slower = backoff{}
			back := way{socket: pc, local: destinationOf(control[:m], f.key.Addr.Is4())}
			f.forward(back, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), buf[:n])
		case errors.Is(err, net.ErrClosed):
			return
		default:
			if !slower.sleep(f.d.ctx.Done()) {
				return
			}
		}
	}
}

// forget asks for the rule of f to go.
func (r *redirect) forget(f *frontend) {
	if family := r.families[familyOf(f.key)]; family != nil {
		family.pending[f.key] = ""
	}
	r.mu.Lock()
	delete(r.routes, f.key)
	r.mu.Unlock()
}

// served reports whether the rule of f is in the kernel.
func (r *redirect) served(f *frontend) bool {
	family := r.families[familyOf(f.key)]
	if family == nil {
		return bind{}.served(f)
	}
	family.mu.Lock()
	defer family.mu.Unlock()
	_, there := family.rules[f.key]
	return there || f.conf.Load().closed()
}

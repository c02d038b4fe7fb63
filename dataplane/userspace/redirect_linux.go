package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"vipd/balancer"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/dnat"
	"vipd/dataplane/internal/inet"
)

// redirect is the interception by netfilter (guard.Redirects). All TCP frontends of a family share
// a port. A UDP frontend has its own port, because UDP sockets do not know the original
// destination. A frontend without active backends has a redirect to a closed port that vipd holds,
// unless the frontend is withdrawn. Otherwise a program on the host that listens on the frontend's
// port would get the clients.
type redirect struct {
	d        *Dataplane
	families map[inet.Family]*redirectFamily
	// origins is used to look up the original destinations of datagrams to port ranges. It is nil
	// until it is needed.
	origins *conntrack.Conn
}

// redirectFamily is the redirect interception of an address family.
type redirectFamily struct {
	r      *redirect
	name   inet.Family
	kernel redirector
	// ranges reports whether the kernel can redirect port ranges.
	ranges bool
	cut    func(ctx context.Context, keys map[balancer.Key]bool, which func(*conntrack.Flow) bool) error
	// shared is the listener for all TCP frontends. It is nil until it is needed.
	shared *listener
	closed map[closedPort]*heldPort
	// ports holds the wanted redirect port of each frontend.
	ports map[balancer.Key]uint16

	mu sync.Mutex // guards the fields below
	// installed holds the redirect port of each frontend in the kernel.
	installed map[balancer.Key]uint16
	// stale holds the keys of frontends whose conntrack flows may lead to a wrong port.
	stale map[balancer.Key]bool
	// sure reports whether the kernel's redirects are known to equal installed, and stale is empty.
	sure bool
}

// redirector redirects the connections in an address family. The type redirects implements it.
type redirector interface {
	// Adopt preserves an earlier process's redirects until the first Set.
	Adopt()
	Set(ctx context.Context, ports map[balancer.Key]uint16) error
	Observe(ctx context.Context) (damage string, err error)
	Intact() (string, error)
	Close(ctx context.Context) error
}

// closedPort identifies a closed port to which clients are redirected if no backend is active. Each
// protocol has two closed ports, one of which is silent.
type closedPort struct {
	proto  balancer.Protocol
	silent bool
}

// newRedirect tests in which address families redirects work. If they work in neither family, it
// returns an error with the reasons.
func newRedirect(d *Dataplane) (*redirect, error) {
	r := &redirect{d: d, families: map[inet.Family]*redirectFamily{}}
	var reasons error
	for _, family := range inet.Families() {
		kernel, err := newRedirects(family)
		if err != nil {
			reasons = errors.Join(reasons, err)
			continue
		}
		r.families[family] = &redirectFamily{
			r: r, name: family, kernel: kernel, ranges: kernel.ranges != nil, cut: cut, closed: map[closedPort]*heldPort{},
			ports: map[balancer.Key]uint16{}, stale: map[balancer.Key]bool{},
		}
	}
	if len(r.families) == 0 {
		return nil, reasons
	}
	return r, nil
}

// translates implements interception. In a family whose redirects do not work, frontends are bound.
func (r *redirect) translates() (some, all bool) {
	return true, len(r.families) == len(inet.Families())
}

// maxPorts implements interception. If redirects do not work in a family, the limit for bound
// frontends applies.
func (r *redirect) maxPorts() int {
	limit := maxPorts
	for _, family := range inet.Families() {
		switch y := r.families[family]; {
		case y == nil:
			limit = min(limit, maxBoundPorts)
		case !y.ranges:
			limit = 0
		}
	}
	return limit
}

// open requests the redirect of f. If redirects do not work in f's family, it binds f.
func (r *redirect) open(f *frontend) error {
	family := r.families[inet.Of(f.key.Addr)]
	if family == nil {
		return bind{}.open(f)
	}
	port, err := family.portOf(f)
	if err != nil {
		return err
	}
	family.ports[f.key] = port
	if f.conf.Load().Withdrawn {
		delete(family.ports, f.key) // routing decides which host gets the clients
	}
	return nil
}

// portOf returns the port to which traffic for f must be redirected, and opens the socket on this
// port.
func (y *redirectFamily) portOf(f *frontend) (uint16, error) {
	if f.key.Proto == balancer.UDP {
		if port, err := y.packetsOf(f); port != 0 || err != nil {
			return port, err
		}
	} else if f.conf.Load().serves {
		return y.listen()
	}
	return y.closedFor(f)
}

func (y *redirectFamily) closedFor(f *frontend) (uint16, error) {
	kind := closedPort{f.key.Proto, f.conf.Load().NoEndpoints == balancer.DropClients}
	if y.closed[kind] == nil {
		held, err := y.r.d.hold(y.wildcard(kind.proto).AddrPort(), kind.proto, kind.silent)
		if err != nil {
			return 0, fmt.Errorf("holding a closed port for redirected clients: %w", err)
		}
		y.closed[kind] = held
	}
	return y.closed[kind].port, nil
}

// listen opens the shared TCP socket on every address, unless it is already open, and returns its
// port.
func (y *redirectFamily) listen() (uint16, error) {
	at := y.wildcard(balancer.TCP)
	if y.shared == nil {
		if ln := y.r.d.inherited.sharedListener(at.Addr); ln != nil {
			if err := y.accept(ln); err != nil {
				return 0, err
			}
		}
	}
	if y.shared == nil {
		ln, err := listenConfig(inheritOptions).Listen(context.Background(), network(at), at.AddrPort().String())
		if err != nil {
			return 0, fmt.Errorf("listening for redirected connections: %w", err)
		}
		if err := y.accept(ln.(*net.TCPListener)); err != nil {
			return 0, err
		}
	}
	return y.port(), nil
}

// wildcard returns a key with the unspecified address of the family and port 0.
func (y *redirectFamily) wildcard(proto balancer.Protocol) balancer.Key {
	if y.name == inet.IPv4 {
		return balancer.Key{Addr: netip.IPv4Unspecified(), Proto: proto}
	}
	return balancer.Key{Addr: netip.IPv6Unspecified(), Proto: proto}
}

// accept accepts connections from the shared socket, and passes each to its frontend. It resets
// connections that clients open directly to the shared port. It also resets connections beyond a
// frontend's share, because all frontends share the queue in which these would wait.
func (y *redirectFamily) accept(ln *net.TCPListener) (err error) {
	d := y.r.d
	if y.shared, err = d.accept(ln, nil, y.frontendOf); err == nil {
		d.accepts = append(d.accepts, dnat.Accepts(y.port()))
	}
	return err
}

func (y *redirectFamily) port() uint16 { return y.shared.addr.AddrPort().Port() }

// frontendOf returns the frontend of a redirected connection, and the original destination. The
// frontend is nil if the connection was not redirected.
func (y *redirectFamily) frontendOf(fd int) (*frontend, netip.AddrPort) {
	at, err := originalOf(fd, y.name == inet.IPv4)
	if err != nil {
		return nil, at
	}
	return y.r.d.chains.at(keyAt(at, balancer.TCP)), at
}

// packetsOf opens or closes a UDP frontend's socket, and returns the port for its redirect. It
// returns 0 if new flows must not reach the socket. The caller holds the dataplane's lock.
func (y *redirectFamily) packetsOf(f *frontend) (uint16, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.redirectedLocked()
	if !f.wantPacketsLocked() && !y.r.d.inherited.hasFlows(f.key) {
		if p.packets != nil {
			y.r.d.loseLocked(f.key)
		}
		f.flows.each(f.endFlowLocked)
		p.shutPacketsLocked()
		return 0, nil
	}
	if f.key.Port.IsRange() {
		if err := y.r.openOrigins(); err != nil {
			return 0, err
		}
	}
	if p.packets == nil {
		if pc := y.r.d.inherited.packets(f.key, true); pc != nil {
			p.receiveFrom(pc, y.anywhere(pc, p.at.Port()))
		}
	}
	if p.packets == nil {
		lc := listenConfig(func(fd uintptr) error { return wantDestination(fd, y.name == inet.IPv4) })
		at := y.wildcard(balancer.UDP)
		pc, err := lc.ListenPacket(context.Background(), network(at), at.AddrPort().String())
		if err != nil {
			return 0, fmt.Errorf("listening for redirected datagrams: %w", err)
		}
		p.receiveFrom(pc.(*net.UDPConn), y.anywhere(pc.(*net.UDPConn), p.at.Port()))
	}
	if !f.conf.Load().serves {
		return 0, nil // open only for existing flows, whose redirect conntrack remembers
	}
	return f.packetsPortLocked(), nil
}

// packetsPortLocked returns the port of the open UDP socket, or 0.
func (f *frontend) packetsPortLocked() uint16 {
	if !f.receivesLocked() {
		return 0
	}
	return f.ports[0].packets.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// anywhere returns a function that reads datagrams from a socket that is bound to every address. It
// also reads each datagram's destination address. A reply needs this address as its source, so
// conntrack can translate it back.
func (y *redirectFamily) anywhere(pc *net.UDPConn, port uint16) reading {
	control := make([]byte, 256)
	return func(buf []byte) (int, netip.AddrPort, way, error) {
		n, m, _, from, err := pc.ReadMsgUDPAddrPort(buf, control)
		return n, from, way{socket: pc, local: destinationOf(control[:m], y.name == inet.IPv4), port: port}, err
	}
}

func (r *redirect) forget(f *frontend) {
	if family := r.families[inet.Of(f.key.Addr)]; family != nil {
		delete(family.ports, f.key)
	}
}

// served reports whether the kernel redirects clients to f. If f is withdrawn, it reports whether
// the kernel does not redirect them.
func (r *redirect) served(f *frontend) bool {
	family := r.families[inet.Of(f.key.Addr)]
	if family == nil {
		return bind{}.served(f)
	}
	family.mu.Lock()
	defer family.mu.Unlock()
	_, there := family.installed[f.key]
	return there != f.conf.Load().Withdrawn
}

package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/sockerr"
)

// datagram is the maximum size of a datagram, in bytes.
const datagram = 64 << 10

// datagrams holds buffers, each for one datagram. A flow or a frontend uses a buffer only between a
// read and the following write.
var datagrams = sync.Pool{New: func() any { return new([datagram]byte) }}

// longAgo is a deadline in the past, which makes reads and writes fail immediately.
var longAgo = time.Unix(1, 0)

// trial is how long a flow to a previously failed backend must continue without a refusal before
// the backend counts as working, even if it sends no answer. The kernel declares a neighbor
// unreachable after three seconds.
const trial = 4 * time.Second

// wantPacketsLocked reports whether the UDP sockets should be open. While no backend is active,
// they stay open for existing flows. See endIdleFlowsLocked.
func (f *frontend) wantPacketsLocked() bool {
	c := f.conf.Load()
	return c.serves || c.NoEndpoints == balancer.DropClients || f.receivesLocked() && len(f.flows.by) > 0
}

func (p *portSockets) openPacketsLocked(want bool) error {
	f, c := p.f, p.f.conf.Load()
	switch {
	case !want:
		if pc := f.d.inherited.packets(p.key(), false); pc != nil {
			p.packets = pc
		}
		p.shutPacketsLocked()
		return p.holdLocked(false)
	case p.packets != nil:
		return refit(p.packets, c)
	}
	p.letGoLocked()
	if pc := f.d.inherited.packets(p.key(), false); pc != nil {
		p.receiveFrom(pc, p.bound(pc))
		return refit(pc, c)
	}
	lc := listenConfig(func(fd uintptr) error { return errors.Join(anyAddress(fd, f.key.Addr), fit(fd, c)) })
	pc, err := lc.ListenPacket(context.Background(), network(f.key), p.at.String())
	if err != nil {
		return explainListen(p.key(), err)
	}
	p.receiveFrom(pc.(*net.UDPConn), p.bound(pc.(*net.UDPConn)))
	return nil
}

// receiveFrom makes pc the UDP socket of p, adopts inherited flows and starts the read loop.
func (p *portSockets) receiveFrom(pc *net.UDPConn, read reading) {
	p.packets = pc
	widen(pc)
	p.adoptFlowsLocked()
	p.f.d.budget.take(1)
	p.f.d.tasks.Go(func() { p.f.receive(pc, read) })
}

// reading is a function that reads a datagram into buf. It returns the datagram's size and sender,
// and the return path for replies.
type reading func(buf []byte) (n int, from netip.AddrPort, back way, err error)

// bound returns a function that reads datagrams from a socket that is bound to one address.
func (p *portSockets) bound(pc *net.UDPConn) reading {
	return func(buf []byte) (int, netip.AddrPort, way, error) {
		n, from, err := pc.ReadFromUDPAddrPort(buf)
		return n, from, way{socket: pc, port: p.at.Port()}, err
	}
}

// receive passes the clients' datagrams to their flows until the socket is closed.
func (f *frontend) receive(pc *net.UDPConn, read reading) {
	defer f.d.budget.give(1)
	slower := backoff{}
	await := arrival(pc)
	for {
		err := await()
		if err == nil {
			err = f.receiveOne(read)
		}
		switch {
		case err == nil:
			slower = backoff{}
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded): // the deadline has passed because the socket is being handed over
			return
		default: // an ICMP error that an earlier reply caused, or a lack of memory
			if !slower.sleep(f.d.ctx.Done()) {
				return
			}
		}
	}
}

func (f *frontend) receiveOne(read reading) error {
	buf := datagrams.Get().(*[datagram]byte)
	defer datagrams.Put(buf)
	n, from, back, err := read(buf[:])
	if err == nil {
		f.forward(back, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), buf[:n])
	}
	return err
}

// way is the return path for a flow's replies: the socket that received the client's datagrams.
type way struct {
	socket *net.UDPConn
	// local is the datagrams' destination address if the socket has several addresses. Otherwise it
	// is invalid.
	local netip.Addr
	// port is the port to which the socket's clients send. It is 0 if the redirect of a port range
	// leads to the socket.
	port uint16
}

// forward sends a datagram to the flow's backend. If the backend refuses the datagram, forward
// tries another backend.
func (f *frontend) forward(back way, client netip.AddrPort, b []byte) {
	var tried []*backend
	for {
		x := f.flowOf(back, client, tried)
		if x == nil {
			return // the datagram is dropped, as networks also do
		}
		x.last.Store(f.d.now())
		switch err := x.deliver(b); {
		case err == nil:
			x.in.Add(uint64(len(b)))
			x.counter.in.Add(uint64(len(b)))
			return
		case f.refusesPort(err):
			f.endFlow(x, nil)
			return
		case refuses(err):
			tried = append(tried, f.endFlow(x, err))
		case !errors.Is(err, net.ErrClosed): // after ErrClosed, the loop tries again, because the flow has ended for another reason
			return // the datagram is too large, or memory is short: this affects only this datagram
		}
	}
}

// deliver sends a datagram to the backend. If the backend expects PROXY headers, every datagram
// before its first reply has one. Otherwise, if the first datagram were lost, the client could
// start the next one with a forged header.
func (x *flow) deliver(b []byte) error {
	if len(x.header) == 0 || x.answered.Load() {
		return x.send(b)
	}
	return x.send(append(x.header, b...))
}

// flowOf returns the client's flow, and creates it if necessary. It returns nil if there is no
// backend or the client may not have a flow. Only the socket's read loop calls it.
func (f *frontend) flowOf(back way, client netip.AddrPort, tried []*backend) *flow {
	x, may := f.known(back, client, back.port)
	if x != nil || !may {
		return x
	}
	port := back.port
	if port == 0 {
		local := netip.AddrPortFrom(back.local, back.socket.LocalAddr().(*net.UDPAddr).AddrPort().Port())
		if port = f.d.tables.portOf(f, client, local); port == 0 {
			return nil
		}
		if x, may = f.known(back, client, port); x != nil || !may {
			return x
		}
	}
	if !f.d.roomForFlow(f) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, may := f.flowLocked(back, client, port); !may { // the state may have changed since the first check
		f.d.flows.give(f)
		return nil
	}
	x = f.newFlowLocked(back, client, port, tried)
	if x == nil {
		f.d.flows.give(f)
	}
	return x
}

func (f *frontend) known(back way, client netip.AddrPort, port uint16) (x *flow, may bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flowLocked(back, client, port)
}

// flowLocked returns the client's flow to a port. If there is none, it reports whether the client
// may have a new flow. A port of 0 means that the port is unknown. Idle flows are then not
// returned, because the client may have started a new flow to another port.
func (f *frontend) flowLocked(back way, client netip.AddrPort, port uint16) (x *flow, may bool) {
	c := f.conf.Load()
	may = !f.removed && c.serves && f.hasSocketLocked(back.socket) && c.allows(f.d, client.Addr())
	x = f.flows.by[flowKey{client, back.port}]
	switch {
	case x == nil:
	case x.back != back, port != 0 && x.port != port: // the client uses another address or port now
		f.endFlowLocked(x)
	case port == 0 && x.idle(f.d.now()):
		return nil, true
	default:
		return x, false
	}
	return nil, may
}

func (f *frontend) hasSocketLocked(pc *net.UDPConn) bool {
	return slices.ContainsFunc(f.ports, func(p *portSockets) bool { return p.packets == pc })
}

// newFlowLocked opens a flow to a backend that it chooses. The caller has reserved a place for the
// flow in the budget. newFlowLocked returns nil if the client is over a limit, or if no backend or
// socket is available.
func (f *frontend) newFlowLocked(back way, client netip.AddrPort, port uint16, tried []*backend) *flow {
	counted, within := f.admitLocked(client.Addr())
	if !within {
		return nil
	}
	opened := false
	defer func() {
		if !opened {
			counted.end()
		}
	}()
	b, c, err := f.chooseLocked(client, tried)
	if err != nil {
		return nil
	}
	var socket *net.UDPConn
	foreign := false
	if to := f.target(b.addr, port); f.d.chains.leadBack(f.key, to) {
		err = errLoop
	} else {
		socket, foreign, err = f.dialFlow(c, client.Addr(), to)
	}
	if err != nil {
		b.release()
		f.judge(b, err)
		return nil
	}
	b.total.Add(1)
	c.counter.connections.Add(1)
	x := &flow{client: client, back: back, port: port, backend: b, socket: socket, since: time.Now(), counter: c.counter, admission: counted, foreign: foreign}
	if c.ProxyProtocol == balancer.ProxyProtocolV2 {
		x.header = f.flowHeader(x)
	}
	opened = true
	f.beginFlowLocked(x)
	if f.d.followers.some() {
		f.d.followers.publish(connEvent{true, f.describeLocked(x)})
	}
	switch {
	case f.handing:
		_ = socket.SetReadDeadline(longAgo)
	case b.restUntil.Load() != 0:
		_ = socket.SetReadDeadline(x.since.Add(trial))
	}
	return x
}

func (f *frontend) flowHeader(x *flow) []byte {
	text, _ := flowHeader(x.client, netip.AddrPortFrom(f.key.Addr, x.port)) // fails only for invalid addresses
	return text
}

func (f *frontend) beginFlowLocked(x *flow) {
	x.send = way{socket: x.socket}.sender(netip.AddrPort{})
	x.placed = f.d.now()
	x.last.Store(x.placed)
	f.flows.add(x)
	f.d.budget.take(1)
	b := x.backend
	f.d.tasks.Go(func() { f.reply(x, b) })
}

// roomForFlow reserves a place in the flow budget for another flow of f. If the budget is used up,
// it ends the oldest flow of the frontend with the most flows, so no service can use up the whole
// budget. The caller holds no frontend's lock.
func (d *Dataplane) roomForFlow(f *frontend) bool {
	const tries = 4 // another flow may get the place that endOldest has freed
	made := d.budget.room(1)
	for range tries {
		if made && d.flows.take(f) {
			return true
		}
		g := d.flows.yields(f)
		if g == nil || !g.endOldest() {
			return false
		}
		made = true
	}
	return false
}

// endOldest ends the flow that has been idle for approximately the longest time. It returns false
// if there are no flows.
func (f *frontend) endOldest() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.flows.oldest()
	if x == nil {
		return false
	}
	f.endFlowLocked(x)
	return true
}

// reply forwards the backend's datagrams to the client until the flow ends. If reading fails, it
// ends the flow.
func (f *frontend) reply(x *flow, backend *backend) {
	send := x.back.sender(x.client)
	use := func(b []byte) {
		f.noteSuccess(backend)
		x.answered.Store(true)
		x.last.Store(f.d.now())
		if err := send(b); err == nil { // otherwise the reply is dropped, as networks also do
			x.out.Add(uint64(len(b)))
			x.counter.out.Add(uint64(len(b)))
		}
	}
	failures := backend.failures.Load()
	err := x.receive(use)
	if errors.Is(err, os.ErrDeadlineExceeded) && f.goesOn(x) {
		if x.in.Load() > 0 && backend.failures.Load() == failures {
			f.noteSuccess(backend)
		}
		err = x.receive(use)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return // the flow is being handed over
	}
	f.endFlow(x, err)
}

// goesOn removes the read deadline of a flow after its trial, and returns true. It returns false if
// the deadline was set for a handover.
func (f *frontend) goesOn(x *flow) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handing {
		return false
	}
	_ = x.socket.SetReadDeadline(time.Time{}) // fails only if the socket is closed, which the next read reports
	return true
}

// refuses reports whether an error means that the backend does not accept datagrams, or that a
// network on the path does not forward datagrams.
func refuses(err error) bool {
	return sockerr.Is(err, syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EACCES, syscall.EPROTO, syscall.ENOPROTOOPT)
}

// isRefusal reports whether err means that a host has no socket at a port.
func isRefusal(err error) bool { return sockerr.Is(err, syscall.ECONNREFUSED) }

// passing reports whether reading from a flow's socket can continue after an error.
func passing(err error) bool {
	return sockerr.Is(err, syscall.EMSGSIZE, syscall.ENOBUFS, syscall.EINTR)
}

// endFlow ends a flow because of err, unless it has already ended, and returns its backend.
func (f *frontend) endFlow(x *flow, err error) *backend {
	f.mu.Lock()
	b := x.backend
	f.endFlowLocked(x)
	f.mu.Unlock()
	if refuses(err) && !f.refusesPort(err) {
		f.judge(b, err)
	}
	return b
}

// endFlowLocked removes a flow and closes its socket, which makes its goroutine return.
func (f *frontend) endFlowLocked(x *flow) {
	if x.ended {
		return
	}
	x.ended = true
	x.admission.end()
	if !f.handing && f.d.followers.some() {
		f.d.followers.publish(connEvent{false, f.describeLocked(x)})
	}
	f.flows.remove(x)
	_ = x.socket.Close()
	f.d.replies.closed(x.foreign)
	x.backend.release()
	f.d.flows.give(f)
	f.d.budget.give(1)
}

// endIdleFlowsLocked ends flows without traffic, and closes sockets that were open only for
// existing flows. The caller also holds the dataplane's lock.
func (f *frontend) endIdleFlowsLocked(c *config) {
	now := f.d.now()
	if c.IdleTimeout > 0 && now-f.idleChecked >= int64(c.IdleTimeout)/10 {
		f.idleChecked = now
		f.flows.each(func(x *flow) {
			if now-x.last.Load() >= int64(c.IdleTimeout) {
				f.endFlowLocked(x)
			}
		})
	}
	if !f.receivesLocked() || f.wantPacketsLocked() {
		return
	}
	for _, p := range f.ports {
		p.shutPacketsLocked()
		if f.bound {
			_ = p.holdLocked(false) // fails if another program has just opened the port, which Observe reports
		}
	}
	if !f.bound {
		f.d.loseLocked(f.key)
	}
}

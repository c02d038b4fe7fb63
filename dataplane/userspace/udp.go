package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/balancer/lib/sockerr"
)

// datagram is the largest that there is.
const datagram = 64 << 10

// datagrams are buffers for one; a flow or a frontend has one only between a read and the write of what it got.
var datagrams = sync.Pool{New: func() any { return new([datagram]byte) }}

// trial is how long a backend that failed may take to refuse a flow, before it counts as one that takes datagrams without an
// answer: the kernel gives a neighbour up after three seconds.
const trial = 4 * time.Second

// wantPacketsLocked reports whether the UDP socket is to be open. While no backend is active it stays for the flows that
// are there: see endIdleFlowsLocked.
func (f *frontend) wantPacketsLocked() bool {
	c := f.conf.Load()
	return c.serves || c.NoEndpoints == balancer.DropClients || f.packets != nil && len(f.flows.by) > 0
}

// openPacketsLocked makes the UDP socket at the VIP what the definition says.
func (f *frontend) openPacketsLocked() error {
	c := f.conf.Load()
	switch {
	case !f.wantPacketsLocked() && !f.d.inherited.hasFlows(f.key):
		if pc := f.d.inherited.packets(f, false); pc != nil {
			f.packets = pc
		}
		f.shutPacketsLocked()
		return f.holdLocked(false)
	case f.packets != nil:
		return refit(f.packets, c)
	}
	f.letGoLocked()
	if pc := f.d.inherited.packets(f, false); pc != nil {
		f.receiveFrom(pc, bound(pc))
		return refit(pc, c)
	}
	lc := listenConfig(func(fd uintptr) error { return errors.Join(anyAddress(fd, f.key.Addr), fit(fd, c)) })
	pc, err := lc.ListenPacket(context.Background(), network(f.key), f.vip.String())
	if err != nil {
		return explainListen(f, err)
	}
	f.receiveFrom(pc.(*net.UDPConn), bound(pc.(*net.UDPConn)))
	return nil
}

// receiveFrom starts the read loop of the frontend's socket.
func (f *frontend) receiveFrom(pc *net.UDPConn, read reading) {
	f.packets = pc
	widen(pc)
	f.adoptFlowsLocked()
	f.d.budget.take(1)
	f.d.tasks.Go(func() { f.receive(pc, read) })
}

// shutPacketsLocked closes the socket and ends all flows.
func (f *frontend) shutPacketsLocked() {
	f.flows.each(f.endFlowLocked)
	if f.packets != nil {
		_ = f.packets.Close() // its loop ends
		f.packets = nil
	}
}

// reading reads one datagram into a buffer, and says who sent it and how an answer goes back.
type reading func(buf []byte) (n int, from netip.AddrPort, back way, err error)

// bound is the reading of a socket at one address.
func bound(pc *net.UDPConn) reading {
	return func(buf []byte) (int, netip.AddrPort, way, error) {
		n, from, err := pc.ReadFromUDPAddrPort(buf)
		return n, from, way{socket: pc}, err
	}
}

// receive hands the clients' datagrams to their flows, until the socket is closed.
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
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded): // the latter: the socket is handed over
			return
		default: // what an earlier reply met, or no memory
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

// way is how a flow's answers go back: through the socket that its datagrams came to.
type way struct {
	socket *net.UDPConn
	// local is the address that they came to, where the socket has several; else invalid.
	local netip.Addr
}

// forward sends one datagram on, to the next backend where one turns out to refuse.
func (f *frontend) forward(back way, client netip.AddrPort, b []byte) {
	var tried []*backend
	for {
		x := f.flowOf(back, client, tried)
		if x == nil {
			return // as networks do: dropped
		}
		x.last.Store(f.d.now())
		switch err := x.send(b); {
		case err == nil:
			x.in.Add(uint64(len(b)))
			x.counter.in.Add(uint64(len(b)))
			return
		case refuses(err):
			tried = append(tried, f.endFlow(x, err))
		case !errors.Is(err, net.ErrClosed): // else it was ended meanwhile, for no fault of its backend
			return // too large, no memory: the datagram's own fate
		}
	}
}

// flowOf returns the client's flow, a new one if need be; nil means there is no backend for it, or it may not have one. It is
// called by the read loop of the frontend's socket alone.
func (f *frontend) flowOf(back way, client netip.AddrPort, tried []*backend) *flow {
	f.mu.Lock()
	x, may := f.flowLocked(back, client)
	f.mu.Unlock()
	if x != nil || !may || !f.d.roomForFlow(f) {
		return x
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, may := f.flowLocked(back, client); !may { // things have changed meanwhile
		f.d.flows.give(f)
		return nil
	}
	x = f.newFlowLocked(back, client, tried)
	if x == nil {
		f.d.flows.give(f)
	}
	return x
}

// flowLocked returns the client's flow, or nil and whether it may have a new one.
func (f *frontend) flowLocked(back way, client netip.AddrPort) (x *flow, may bool) {
	if x := f.flows.by[client]; x != nil {
		if x.back == back {
			return x, false
		}
		f.endFlowLocked(x) // the client comes another way now
	}
	c := f.conf.Load()
	return nil, !f.removed && c.serves && f.packets == back.socket && c.allows(f.d, client.Addr())
}

// newFlowLocked opens a flow to the backend that is chosen, in a place that was taken for it; nil means there is none, or no
// socket for it.
func (f *frontend) newFlowLocked(back way, client netip.AddrPort, tried []*backend) *flow {
	b, c, err := f.chooseLocked(client, tried)
	if err != nil {
		return nil
	}
	var socket *net.UDPConn
	if f.d.chains.leadBack(f.key, b.addr) {
		err = errLoop
	} else {
		socket, err = net.DialUDP(network(f.key), nil, net.UDPAddrFromAddrPort(b.addr))
	}
	if err != nil {
		b.release()
		f.judge(b, err)
		return nil
	}
	b.total.Add(1)
	c.counter.connections.Add(1)
	x := &flow{client: client, back: back, backend: b, socket: socket, since: time.Now(), counter: c.counter}
	f.beginFlowLocked(x)
	if f.d.followers.some() {
		f.d.followers.tell(news{true, f.describeLocked(x)})
	}
	switch {
	case f.handing:
		_ = socket.SetReadDeadline(longAgo)
	case b.restUntil.Load() != 0:
		_ = socket.SetReadDeadline(x.since.Add(trial))
	}
	return x
}

// beginFlowLocked puts a flow among those of f, and starts its goroutine.
func (f *frontend) beginFlowLocked(x *flow) {
	x.send = way{socket: x.socket}.sender(netip.AddrPort{})
	x.placed = f.d.now()
	x.last.Store(x.placed)
	f.flows.add(x)
	f.d.budget.take(1)
	b := x.backend
	f.d.tasks.Go(func() { f.reply(x, b) })
}

// roomForFlow takes a place for one more flow of f. Where there is none, the oldest flow of the frontend with the most
// makes room, so that no service can take the flows of all. No frontend is locked.
func (d *Dataplane) roomForFlow(f *frontend) bool {
	const tries = 4 // others may take the place that was made
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

// endOldest ends the flow that has been quiet for longest, and reports whether there was one.
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

// reply carries the datagrams of backend back until the flow ends, and ends it where it can't go on.
func (f *frontend) reply(x *flow, backend *backend) {
	send := x.back.sender(x.client)
	use := func(b []byte) {
		f.praise(backend)
		x.last.Store(f.d.now())
		if err := send(b); err == nil { // else dropped, as networks do
			x.out.Add(uint64(len(b)))
			x.counter.out.Add(uint64(len(b)))
		}
	}
	failures := backend.failures.Load()
	err := x.receive(use)
	if errors.Is(err, os.ErrDeadlineExceeded) && f.goesOn(x) {
		if x.in.Load() > 0 && backend.failures.Load() == failures {
			f.praise(backend)
		}
		err = x.receive(use)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return // it is handed over
	}
	f.endFlow(x, err)
}

// goesOn has a flow go on whose trial is over. False: it is handed over.
func (f *frontend) goesOn(x *flow) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handing {
		return false
	}
	_ = x.socket.SetReadDeadline(time.Time{}) // fails only where it is closed, as the next read says
	return true
}

// refuses reports whether an error says that the backend, or a network on the way, does not take datagrams.
func refuses(err error) bool {
	return sockerr.Is(err, syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EACCES, syscall.EPROTO, syscall.ENOPROTOOPT)
}

// passing reports whether an error of reading is no reason to stop.
func passing(err error) bool {
	return sockerr.Is(err, syscall.EMSGSIZE, syscall.ENOBUFS, syscall.EINTR)
}

// endFlow ends a flow for the reason err, if it has not ended, and returns its backend.
func (f *frontend) endFlow(x *flow, err error) *backend {
	f.mu.Lock()
	b := x.backend
	f.endFlowLocked(x)
	f.mu.Unlock()
	if refuses(err) {
		f.judge(b, err)
	}
	return b
}

// endFlowLocked takes a flow out and closes its socket, which ends its goroutine.
func (f *frontend) endFlowLocked(x *flow) {
	if x.ended {
		return
	}
	x.ended = true
	if !f.handing && f.d.followers.some() {
		f.d.followers.tell(news{false, f.describeLocked(x)})
	}
	f.flows.remove(x)
	_ = x.socket.Close()
	x.backend.release()
	f.d.flows.give(f)
	f.d.budget.give(1)
}

// endIdleFlowsLocked ends flows without traffic, and closes a socket that was open for its flows only. The dataplane is locked, too.
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
	if f.packets != nil && !f.wantPacketsLocked() {
		f.shutPacketsLocked()
		if f.bound {
			_ = f.holdLocked(false) // fails where another program took the port just now: Observe tells
		} else {
			f.d.loseLocked(f.key)
		}
	}
}

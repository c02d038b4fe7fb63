package userspace

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/handover"
)

// inheritance holds the items of an earlier process that no frontend has adopted yet.
type inheritance struct {
	d *Dataplane
	// sockets holds the listeners and UDP sockets. A redirect's listener has a key without a port.
	sockets map[balancer.Key]inherited
	// redirected reports whether an earlier process redirected connections here.
	redirected   bool
	conns, flows map[balancer.Key][]inherited
	clients      map[balancer.AffinityMemory][]handedClient
	// until is the time until which the items wait for frontends that failed, or zero before the
	// first Discard.
	until time.Time
}

type inherited struct {
	handed
	tail  []byte
	files []int
}

// isForeign reports whether the socket to the backend has the client's address.
func (x *inherited) isForeign() bool {
	at := -1
	switch {
	case x.Kind == connKind && len(x.files) > 1:
		at = x.files[1]
	case x.Kind == flowKind:
		at = x.files[0]
	}
	level, option := unix.SOL_IP, unix.IP_TRANSPARENT
	if x.Key.Addr.Is6() {
		level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	value, err := unix.GetsockoptInt(at, level, option)
	return err == nil && value != 0
}

// close closes the files of an item that no frontend continues.
func (x *inherited) close() { handover.Item{Files: x.files}.Close() }

// inheritTime limits how long discard may take to remove redirects after it has closed items.
const inheritTime = 30 * time.Second

// adoptTime limits how long items wait for frontends that the host does not permit yet or that
// failed.
const adoptTime = 30 * time.Second

var _ dataplane.HandsOver = (*Dataplane)(nil)

// Inherit implements [dataplane.HandsOver]. Each frontend adopts its items when it is applied, and
// Discard closes the unused items.
func (d *Dataplane) Inherit(items []handover.Item) {
	d.applying.Lock()
	defer d.applying.Unlock()
	in := inheritance{
		d: d, sockets: map[balancer.Key]inherited{},
		conns: map[balancer.Key][]inherited{}, flows: map[balancer.Key][]inherited{}, clients: map[balancer.AffinityMemory][]handedClient{},
	}
	ports := map[balancer.Key]uint16{}
	for _, item := range items {
		h, tail, err := decodeHanded(item.Data)
		if err == nil && h.Kind == clientsKind {
			in.clients[h.memory()] = append(in.clients[h.memory()], h.Clients...)
			continue
		}
		if err != nil || len(item.Files) == 0 { // for example, the item of another version
			d.log.Warn("ignoring an unknown object that the previous vipd handed over", "err", err)
			item.Close()
			continue
		}
		x := inherited{h, tail, item.Files}
		d.keepsReplies = d.keepsReplies || x.isForeign()
		switch h.Kind {
		case sharedKind:
			in.redirected = true
			in.sockets[balancer.Key{Addr: portOf(item.Files[0]).Addr()}] = x
		case listenerKind, packetsKind:
			in.sockets[h.Key] = x
			if h.Redirected {
				in.redirected = true
				ports[h.Key] = portOf(item.Files[0]).Port()
			}
		case connKind:
			in.conns[h.Key] = append(in.conns[h.Key], x)
		case flowKind:
			in.flows[h.Key] = append(in.flows[h.Key], x)
		default:
			item.Close()
		}
	}
	d.inherited = in
	d.inheriting.Store(len(items) > 0)
	if in.redirected {
		d.tables.inherit(ports)
	}
}

func (in *inheritance) listener(k balancer.Key) *net.TCPListener {
	return in.listenerAt(k, listenerKind)
}

// sharedListener returns the inherited listener that receives the redirects of an address family,
// or nil. at is its unspecified address.
func (in *inheritance) sharedListener(at netip.Addr) *net.TCPListener {
	return in.listenerAt(balancer.Key{Addr: at}, sharedKind)
}

func (in *inheritance) listenerAt(k balancer.Key, kind string) *net.TCPListener {
	x, ok := in.sockets[k]
	if !ok || x.Kind != kind {
		return nil
	}
	delete(in.sockets, k)
	return in.open(x.files[0])
}

func (in *inheritance) open(fd int) *net.TCPListener {
	file := os.NewFile(uintptr(fd), "inherited")
	defer func() { _ = file.Close() }() // FileListener duplicates the descriptor
	ln, err := net.FileListener(file)
	if err != nil {
		in.d.log.Warn("a socket from the previous vipd can't be used", "err", err)
		return nil
	}
	return ln.(*net.TCPListener)
}

// packets returns the inherited UDP socket for a key, or nil if there is none. If redirected is
// true, it must be a redirect's socket.
func (in *inheritance) packets(k balancer.Key, redirected bool) *net.UDPConn {
	x, ok := in.sockets[k]
	if !ok || x.Kind != packetsKind || x.Redirected != redirected {
		return nil
	}
	delete(in.sockets, k)
	c, err := openConn[*net.UDPConn](x.files[0])
	if err != nil {
		in.d.log.Warn("a socket from the previous vipd can't be used", "frontend", k, "err", err)
		return nil
	}
	return c
}

// openConn converts a descriptor into a net.Conn, and closes the descriptor.
func openConn[C net.Conn](fd int) (C, error) {
	file := os.NewFile(uintptr(fd), "inherited")
	defer func() { _ = file.Close() }() // FileConn duplicates the descriptor
	var none C
	c, err := net.FileConn(file)
	if err != nil {
		return none, err
	}
	is, ok := c.(C)
	if !ok {
		_ = c.Close()
		return none, fmt.Errorf("unexpected kind of socket: %T", c)
	}
	return is, nil
}

// portOf returns the local address of a socket, or the zero AddrPort if it is unknown.
func portOf(fd int) netip.AddrPort {
	var at netip.AddrPort
	sa, _ := unix.Getsockname(fd)
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		at = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		at = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return at
}

// adopt makes a frontend continue its inherited connections. If the frontend no longer has a
// connection's backend, the connection is reset.
func (d *Dataplane) adopt(f *frontend) {
	for _, x := range d.inherited.conns[f.key] {
		if err := f.adoptConn(x); err != nil {
			d.log.Info("resetting a connection from the previous vipd", "frontend", f.key, "client", x.Client, "err", err)
		}
	}
	delete(d.inherited.conns, f.key)
}

// adoptClients restores the affinity of inherited clients before the frontend accepts connections.
func (d *Dataplane) adoptClients(f *frontend) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for _, m := range f.memories {
		for _, c := range d.inherited.clients[m.id] {
			m.Store(c.Client, c.Backend, now.Add(c.Last.Sub(now))) // converted to this process's clock
		}
		delete(d.inherited.clients, m.id)
	}
}

// adoptConn continues a connection of the earlier process, or closes it and returns an error.
func (f *frontend) adoptConn(x inherited) error {
	if len(x.files) == 1 { // no backend was chosen yet
		f.d.budget.take(2)
		f.d.loops.all[0].send(func(l *loop) {
			if x.Introduced {
				l.serve(f, x.files[0], x.Client, x.to(f), false)
			} else { // its sender may no longer be trusted
				l.check(f, x.files[0], x.Client, x.to(f))
			}
		})
		return nil
	}
	conf := f.conf.Load()
	i := conf.index(x.Backend)
	if i < 0 || !conf.keeps(conf.backends[i], time.Now()) || !f.d.begin() {
		x.close()
		return fmt.Errorf("connections to backend %s are no longer kept", x.Backend)
	}
	c := &conn{f: f, from: x.Client, to: x.to(f), since: x.since(), backend: conf.backends[i], entered: true, served: true}
	c.phase, c.counter, c.loop = relaying, conf.counter, f.d.loops.all[0]
	c.sides = [2]side{{fd: x.files[0], readable: true}, {fd: x.files[1], readable: true, foreign: x.isForeign()}}
	f.d.replies.opened(c.sides[serverSide].foreign)
	tail, pipes := c.inherit(clientSide, x.In, x.tail, x.files[2:])
	c.inherit(serverSide, x.Out, tail, pipes)
	c.in.Store(x.In.Bytes)
	c.out.Store(x.Out.Bytes)
	c.half.Store(x.In.Ended || x.Out.Ended)
	c.backend.take(0)
	f.d.budget.take(2)
	f.descriptors.Add(2)
	f.mu.Lock()
	defer f.mu.Unlock()
	c.admission = f.recountLocked(x.Client.Addr())
	f.linkLocked(c)
	if len(f.memories) > 0 {
		who, now := conf.AffinityClient(x.Client.Addr()), time.Now()
		m := f.memories.of(conf.Frontend, who, now)
		if _, known := m.Lookup(who, now); !known { // a known client may have moved to another endpoint since
			m.Store(who, conf.AffinityEndpoint(x.Backend), now)
		}
	}
	c.loop.send(func(l *loop) { l.adopt(c) }) // this must be the first letter about the connection
	return nil
}

// inherit restores the direction whose data comes from the side with index from, as the earlier
// process left it. It returns the unused bytes and pipes, which belong to the other direction.
func (c *conn) inherit(from int, h handedHalf, tail []byte, pipes []int) ([]byte, []int) {
	c.sides[from].ended, c.sides[from].passed = h.Ended, h.Ended
	to := &c.sides[1-from]
	if n := min(h.Pending, len(tail)); n > 0 {
		to.pending, tail = tail[:n:n], tail[n:]
	}
	if h.Piped > 0 && len(pipes) >= 2 {
		to.pipe, to.held = pipe{pipes[0], pipes[1]}, h.Piped
		c.f.d.loops.pipes.add()
		pipes = pipes[2:]
	}
	return tail, pipes
}

// hasFlows reports whether a frontend has inherited flows that it has not adopted yet. They keep
// its socket open.
func (in *inheritance) hasFlows(k balancer.Key) bool { return len(in.flows[k]) > 0 }

// to returns the VIP and port to which the client of a connection or flow sends. Earlier versions,
// which had no port ranges, did not send the port.
func (x *inherited) to(f *frontend) netip.AddrPort {
	if x.Port == 0 {
		return f.vip
	}
	return netip.AddrPortFrom(f.key.Addr, x.Port)
}

// since returns the start of a connection or flow with a monotonic clock reading, so setting the
// system clock does not change its age.
func (x *inherited) since() time.Time {
	now := time.Now()
	return now.Add(x.Since.Sub(now))
}

// adoptFlowsLocked makes the frontend continue the inherited flows that belong to this socket.
func (p *portSockets) adoptFlowsLocked() {
	f, c := p.f, p.f.conf.Load()
	var left []inherited
	for _, x := range f.d.inherited.flows[f.key] {
		port := x.to(f).Port()
		if p.at.Port() != 0 && p.at.Port() != port {
			left = append(left, x)
			continue
		}
		i, foreign := c.index(x.Backend), x.isForeign() // before openConn closes the descriptor
		socket, err := openConn[*net.UDPConn](x.files[0])
		if err != nil {
			continue
		}
		if i < 0 || c.Backends[i].State == balancer.Removed || !f.d.flows.take(f) {
			_ = socket.Close()
			continue
		}
		b := c.backends[i]
		b.take(0)
		n := &flow{
			client: x.Client, back: way{socket: p.packets, local: x.Local, port: p.at.Port()}, port: port, backend: b, socket: socket, since: x.since(), counter: c.counter,
			admission: f.recountLocked(x.Client.Addr()), foreign: foreign,
		}
		f.d.replies.opened(foreign)
		n.in.Store(x.In.Bytes)
		n.out.Store(x.Out.Bytes)
		if x.Unanswered {
			n.header = f.flowHeader(n)
		}
		f.beginFlowLocked(n)
	}
	if delete(f.d.inherited.flows, f.key); len(left) > 0 {
		f.d.inherited.flows[f.key] = left
	}
}

// Discard implements [dataplane.HandsOver].
func (d *Dataplane) Discard(waiting bool) {
	if !waiting || !d.waits(time.Now()) {
		d.discard()
	}
}

// waits reports whether the inherited items may still wait for frontends.
func (d *Dataplane) waits(now time.Time) bool {
	d.applying.Lock()
	defer d.applying.Unlock()
	in := &d.inherited
	if in.until.IsZero() {
		in.until = now.Add(adoptTime)
	}
	return now.Before(in.until)
}

// discard closes the inherited items that no frontend has adopted, which resets their connections.
// It also removes the earlier process's unused redirects.
func (d *Dataplane) discard() {
	d.applying.Lock()
	defer d.applying.Unlock()
	in := d.inherited
	d.inherited = inheritance{}
	d.inheriting.Store(false)
	d.keepsReplies = false
	for _, x := range in.sockets {
		x.close()
	}
	for _, all := range []map[balancer.Key][]inherited{in.conns, in.flows} {
		for _, items := range all {
			for _, x := range items {
				x.close()
			}
		}
	}
	if !in.redirected {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), inheritTime)
	defer cancel()
	err := d.tables.commit(ctx)
	if _, binds := d.tables.(bind); binds && err == nil {
		_, err = Cleanup(ctx, false)
	}
	if err != nil {
		d.log.Warn("redirects from the previous vipd can't be removed: stop vipd, and run vipctl cleanup", "err", err)
	}
}

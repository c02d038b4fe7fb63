package userspace

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/handover"
)

// These are the kinds of items that are handed over.
const (
	listenerKind = "listener" // the listener of a frontend
	sharedKind   = "shared"   // the listener of all redirected frontends of a family
	packetsKind  = "packets"  // the UDP socket of a frontend
	connKind     = "connection"
	flowKind     = "flow"
	clientsKind  = "clients" // some of the clients with affinity
)

// handed describes an item. A connection's buffered bytes follow the description: first In's bytes,
// then Out's bytes.
type handed struct {
	Kind string
	// Key is the frontend's key. It is the zero Key for a shared socket.
	Key balancer.Key `json:",omitzero"`
	// Redirected reports whether the socket receives redirected traffic, and so is not bound to the
	// frontend's address.
	Redirected bool
	// Port is the port to which the client of a connection or flow sends.
	Port   uint16 `json:",omitempty"`
	Client netip.AddrPort
	// Introduced reports whether Client is final, because the PROXY header was read or none is
	// expected.
	Introduced bool `json:",omitempty"`
	// Unanswered reports whether a flow's datagrams still need a PROXY header.
	Unanswered bool `json:",omitempty"`
	// Backend is the backend's address. It is invalid if the connection has no backend yet.
	Backend netip.AddrPort
	// Local is the source address of a redirected flow's replies.
	Local   netip.Addr
	Since   time.Time
	In, Out handedHalf
	Clients []handedClient `json:",omitempty"`
	// VIP, Service and Prefix are the parts of the affinity memory's identity that are missing from
	// Key.
	VIP     netip.Addr    `json:",omitzero"`
	Service balancer.Name `json:",omitempty"`
	Prefix  int           `json:",omitempty"`
}

func (h *handed) memory() balancer.AffinityMemory {
	id := balancer.AffinityMemory{Key: h.Key, Service: h.Service, Prefix: h.Prefix}
	if h.VIP.IsValid() {
		id.Key = balancer.Key{Addr: h.VIP}
	}
	return id
}

func handedClients(id balancer.AffinityMemory, clients []handedClient) handed {
	h := handed{Kind: clientsKind, Clients: clients, Service: id.Service, Prefix: id.Prefix}
	if id.Port == 0 {
		h.VIP = id.Addr
	} else {
		h.Key = id.Key
	}
	return h
}

// handedClient is a client with affinity, its endpoint, and the time of its last use.
type handedClient struct {
	Client  netip.Addr
	Backend netip.AddrPort // as returned by Frontend.AffinityEndpoint
	Last    time.Time
}

// clientsAtOnce is the maximum number of clients in an item. It keeps items well below their
// maximum size.
const clientsAtOnce = 1000

// handedHalf is one direction of a connection or flow.
type handedHalf struct {
	Bytes uint64
	// Ended reports whether the sender's end of data was forwarded to the receiver.
	Ended bool
	// Pending is the number of bytes after the description. Piped is the number of bytes in a pipe.
	// Both ends of the pipe are among the files.
	Pending, Piped int
}

// successor represents the process that takes over the connections.
type successor struct {
	queue *handover.Queue
	// failed is set when the queue no longer accepts items.
	failed atomic.Bool
}

func (h *successor) send(item handed, tail []byte, files ...int) error {
	data, err := json.Marshal(item)
	if err != nil {
		return fmt.Errorf("describing a %s: %w", item.Kind, err)
	}
	if h.failed.Load() {
		return errors.New("the queue is full")
	}
	if err = h.queue.Send(append(data, tail...), files...); err != nil {
		h.failed.Store(true)
	}
	return err
}

// HandOver implements [dataplane.HandsOver]. First, all loops and goroutines stop reading, so new
// data waits in the kernel and is not lost between the two processes. Connections that can't be
// handed over drain as in Close.
func (d *Dataplane) HandOver(ctx context.Context, to *handover.Queue) error {
	d.applying.Lock()
	defer d.applying.Unlock()
	if !d.end() {
		return nil
	}
	frontends, unwatched := d.list(), d.carried.Close()
	d.heir = &successor{queue: to}
	d.cancel() // also stops the janitor
	for _, f := range frontends {
		f.stopReading()
	}
	for _, ln := range d.tables.shared() {
		ln.stop()
	}
	d.tasks.Wait()  // no UDP socket is read any longer
	d.reads.flush() // clients that wait for the node's addresses become connections
	d.loops.halt()
	err := errors.Join(unwatched, d.handOverSockets(frontends), d.inherited.passOn(d.heir))
	d.refuseNew()
	for _, f := range frontends {
		f.handOverConns()
	}
	d.loops.resume() // for the connections that were not handed over
	if left := d.drain(ctx, frontends); left > 0 {
		err = errors.Join(err, fmt.Errorf("%d connections could not be handed over, and were reset", left))
	}
	if failed := d.handOverClients(); failed != nil {
		d.log.Info("some clients with affinity might get another endpoint: the next vipd does not know their endpoints", "err", failed)
	}
	d.stopLoops()
	d.replies.leave()
	for _, f := range frontends {
		f.releaseHeldPorts()
	}
	if err != nil {
		return fmt.Errorf("handing over userspace mode: %w", err)
	}
	return nil
}

// stopReading makes the frontend stop accepting connections and reading datagrams. The sockets stay
// open.
func (f *frontend) stopReading() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handing = true
	for _, p := range f.ports {
		if p.listener != nil {
			p.listener.stop()
		}
		if p.packets != nil {
			_ = p.packets.SetReadDeadline(longAgo) // deadlines fail only if the socket is closed
		}
	}
	f.flows.each(func(x *flow) { _ = x.socket.SetReadDeadline(longAgo) })
}

// handOverSockets sends listeners, UDP sockets and flows, and closes this process's copies.
func (d *Dataplane) handOverSockets(frontends []*frontend) error {
	var failed error
	for _, ln := range d.tables.shared() {
		failed = errors.Join(failed, d.heir.send(handed{Kind: sharedKind}, nil, ln.fd))
		ln.close()
	}
	for _, f := range frontends {
		f.mu.Lock()
		for _, p := range f.ports {
			failed = errors.Join(failed, p.handOver())
		}
		f.flows.each(func(x *flow) {
			failed = errors.Join(failed, d.heir.send(handed{
				Kind: flowKind, Key: f.key, Port: x.port, Client: x.client, Backend: x.backend.addr, Local: x.back.local, Since: x.since,
				In: handedHalf{Bytes: x.in.Load()}, Out: handedHalf{Bytes: x.out.Load()}, Unanswered: len(x.header) > 0 && !x.answered.Load(),
			}, nil, descriptor(x.socket)))
		})
		f.flows.each(f.endFlowLocked)
		for _, p := range f.ports {
			p.shutListenerLocked()
			p.shutPacketsLocked()
		}
		f.mu.Unlock()
	}
	return failed
}

// handOver sends the open socket. A bound socket's item has a key with the socket's port, so a
// later frontend with only this port can adopt it.
func (p *portSockets) handOver() error {
	switch {
	case p.listener != nil:
		return p.f.d.heir.send(handed{Kind: listenerKind, Key: p.key()}, nil, p.listener.fd)
	case p.packets == nil:
		return nil
	case p.f.bound:
		return p.f.d.heir.send(handed{Kind: packetsKind, Key: p.key()}, nil, descriptor(p.packets))
	}
	return p.f.d.heir.send(handed{Kind: packetsKind, Key: p.f.key, Redirected: true}, nil, descriptor(p.packets))
}

// passOn sends the inherited items that no frontend has adopted yet. Such items exist if this
// process stops before everything was applied.
func (in *inheritance) passOn(to *successor) (failed error) {
	all := slices.Collect(maps.Values(in.sockets))
	for _, of := range []map[balancer.Key][]inherited{in.conns, in.flows} {
		for _, items := range of {
			all = append(all, items...)
		}
	}
	for _, x := range all {
		err := to.send(x.handed, x.tail, x.files...)
		failed = cmp.Or(failed, err) // reporting the first error is enough
		if err != nil {
			x.close()
			continue
		}
		for _, fd := range x.files { // the successor has copies
			_ = unix.Close(fd)
		}
	}
	*in = inheritance{clients: in.clients}
	return failed
}

// handOverClients sends the clients with affinity. They are sent last because the queue may not
// have room for all items, and affinity is the least important.
func (d *Dataplane) handOverClients() error {
	send := func(id balancer.AffinityMemory, clients []handedClient) error {
		for some := range slices.Chunk(clients, clientsAtOnce) {
			data, err := json.Marshal(handedClients(id, some))
			if err == nil {
				err = d.heir.queue.Send(data)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for _, m := range d.remembering.list() {
		if err := send(m.id, m.clients(time.Now())); err != nil {
			return err
		}
	}
	for id, clients := range d.inherited.clients {
		if err := send(id, clients); err != nil {
			return err
		}
	}
	return nil
}

// clients returns the clients whose affinity has not expired at the time now. The returned times
// are read from the system clock.
func (m *clientMemory) clients(now time.Time) (all []handedClient) {
	m.All(now, func(client netip.Addr, endpoint netip.AddrPort, last time.Time) {
		all = append(all, handedClient{client, endpoint, now.Round(0).Add(last.Sub(now))})
	})
	return all
}

// handOverConns hands over the connections while the loops are halted. Connections that can't be
// handed over stay with this process.
func (f *frontend) handOverConns() {
	f.mu.Lock()
	var handed []*conn
	for x := f.conns.next; x != &f.conns; x = x.next {
		if !x.cut && !x.failing && x.phase < leaving && f.d.heir.sendConn(x) == nil {
			handed = append(handed, x)
		}
	}
	f.mu.Unlock()
	for _, c := range handed {
		c.loop.drop(c)
	}
}

func (h *successor) sendConn(c *conn) error {
	item := handed{Kind: connKind, Key: c.f.key, Port: c.to.Port(), Client: c.from, Introduced: c.phase != greeting, Since: c.since}
	files := []int{c.sides[clientSide].fd}
	var tail []byte
	if c.phase == relaying {
		item.Backend = c.backend.addr
		files = append(files, c.sides[serverSide].fd)
		item.In, item.Out = c.handedHalf(clientSide), c.handedHalf(serverSide)
		for _, to := range []int{serverSide, clientSide} { // the data of In, then of Out
			s := &c.sides[to]
			tail = append(tail, s.pending...)
			if s.held > 0 {
				files = append(files, s.pipe.r, s.pipe.w)
			}
		}
	}
	return h.send(item, tail, files...)
}

// handedHalf describes the direction whose data comes from the side with index from.
func (c *conn) handedHalf(from int) handedHalf {
	h := handedHalf{Bytes: c.out.Load(), Ended: c.sides[from].passed, Pending: len(c.sides[1-from].pending), Piped: c.sides[1-from].held}
	if from == clientSide {
		h.Bytes = c.in.Load()
	}
	return h
}

// drop closes this process's sockets of a connection that another process continues.
func (l *loop) drop(c *conn) {
	for i := range c.sides {
		if c.sides[i].watched { // otherwise the events of the other process's copy would still arrive here
			l.poller.remove(c.sides[i].fd)
		}
	}
	l.end(c, errHanded)
}

func descriptor(s interface {
	SyscallConn() (syscall.RawConn, error)
}) int {
	raw, err := s.SyscallConn()
	if err != nil {
		return -1
	}
	fd := -1
	_ = raw.Control(func(n uintptr) { fd = int(n) }) // fails only if it is closed, and then sending -1 also fails
	return fd
}

func decodeHanded(data []byte) (h handed, tail []byte, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&h); err != nil {
		return h, nil, fmt.Errorf("reading a handed-over object: %w", err)
	}
	return h, data[dec.InputOffset():], nil
}

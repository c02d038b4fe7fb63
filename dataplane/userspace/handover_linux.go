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

// The kinds of what is handed over.
const (
	listenerKind = "listener" // of a frontend
	sharedKind   = "shared"   // listener of all redirected frontends of a family
	packetsKind  = "packets"  // the UDP socket of a frontend
	connKind     = "connection"
	flowKind     = "flow"
	clientsKind  = "clients" // some of those that have a backend by affinity
)

// handed describes one item. The bytes that a connection holds follow it, those of In first.
type handed struct {
	Kind string
	// Key is the frontend's; the zero Key for a shared socket.
	Key balancer.Key `json:",omitzero"`
	// Redirected means that the socket is not at the frontend's address: a redirect leads to it.
	Redirected bool
	Client     netip.AddrPort
	// Backend is the other side; invalid while a connection has none.
	Backend netip.AddrPort
	// Local is the address from which a redirected flow is answered.
	Local   netip.Addr
	Since   time.Time
	In, Out handedHalf
	Clients []handedClient `json:",omitempty"`
}

// handedClient is one with affinity, and when it made its last connection.
type handedClient struct {
	Client  netip.Addr
	Backend netip.AddrPort
	Last    time.Time
}

// clientsAtOnce are handed over in one item, well within the largest.
const clientsAtOnce = 1000

// handedHalf is one direction of a connection or flow.
type handedHalf struct {
	Bytes uint64
	// Ended means that the end was passed on.
	Ended bool
	// Pending is how many bytes follow the description; Piped is how many are in a pipe, whose two ends are among the files.
	Pending, Piped int
}

// heir is the process that takes over.
type heir struct {
	queue *handover.Queue
	// failed: it takes no more.
	failed atomic.Bool
}

func (h *heir) send(item handed, tail []byte, files ...int) error {
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

// HandOver implements dataplane.HandsOver. All goroutines stop reading first, so that nothing is lost between the two
// processes: what comes meanwhile waits in the kernel. Connections that can't be handed over drain as in Close.
func (d *Dataplane) HandOver(ctx context.Context, to *handover.Queue) error {
	d.applying.Lock()
	defer d.applying.Unlock()
	if !d.end() {
		return nil
	}
	frontends, unwatched := d.list(), d.carried.Close()
	d.heir = &heir{queue: to}
	d.cancel() // also the janitor, and those that wait for descriptors
	for _, f := range frontends {
		f.stopReading()
	}
	for _, ln := range d.tables.shared() {
		_ = ln.SetDeadline(longAgo)
	}
	d.tasks.Wait() // no socket is read any more
	err := errors.Join(unwatched, d.handOverSockets(frontends), d.inherited.passOn(d.heir))
	d.refuseNew()
	for _, f := range frontends {
		f.pause()
	}
	if left := d.drain(ctx, frontends); left > 0 {
		err = errors.Join(err, fmt.Errorf("%d connections could not be handed over, and were reset", left))
	}
	if failed := d.handOverClients(frontends); failed != nil {
		d.log.Info("some clients with affinity may get another endpoint: the vipd after this one does not know them", "err", failed)
	}
	d.pipes.close()
	for _, f := range frontends {
		f.letGo()
	}
	if err != nil {
		return fmt.Errorf("handing over userspace mode: %w", err)
	}
	return nil
}

// stopReading has accept loops, read loops and flows end, and leaves their sockets open. Connections that come out of an accept
// loop now are paused.
func (f *frontend) stopReading() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handing = true
	if f.listener != nil {
		_ = f.listener.SetDeadline(longAgo) // these fail only where they are closed already
	}
	if f.packets != nil {
		_ = f.packets.SetReadDeadline(longAgo)
	}
	f.flows.each(func(x *flow) { _ = x.socket.SetReadDeadline(longAgo) })
}

// pause has the connections stand still. Each is handed over by its own goroutine.
func (f *frontend) pause() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for x := f.conns.next; x != &f.conns; x = x.next {
		x.pauseLocked()
	}
}

// handOverSockets sends listeners, UDP sockets and flows, and closes this process's copies.
func (d *Dataplane) handOverSockets(frontends []*frontend) error {
	var failed error
	for _, ln := range d.tables.shared() {
		failed = errors.Join(failed, d.heir.send(handed{Kind: sharedKind}, nil, descriptor(ln)), ln.Close())
	}
	for _, f := range frontends {
		f.mu.Lock()
		if f.listener != nil {
			failed = errors.Join(failed, d.heir.send(handed{Kind: listenerKind, Key: f.key}, nil, descriptor(f.listener)))
		}
		if f.packets != nil {
			failed = errors.Join(failed, d.heir.send(handed{Kind: packetsKind, Key: f.key, Redirected: !f.bound}, nil, descriptor(f.packets)))
		}
		f.flows.each(func(x *flow) {
			failed = errors.Join(failed, d.heir.send(handed{
				Kind: flowKind, Key: f.key, Client: x.client, Backend: x.backend.addr, Local: x.back.local, Since: x.since,
				In: handedHalf{Bytes: x.in.Load()}, Out: handedHalf{Bytes: x.out.Load()},
			}, nil, descriptor(x.socket)))
		})
		f.shutListenerLocked()
		f.shutPacketsLocked()
		f.mu.Unlock()
	}
	return failed
}

// passOn sends what no frontend has taken: this process ends before all that it serves was applied.
func (in *inheritance) passOn(to *heir) (failed error) {
	all := slices.Collect(maps.Values(in.sockets))
	for _, of := range []map[balancer.Key][]inherited{in.conns, in.flows} {
		for _, items := range of {
			all = append(all, items...)
		}
	}
	for _, x := range all {
		err := to.send(x.handed, x.tail, x.files...)
		failed = cmp.Or(failed, err) // one is as good as a thousand
		if err != nil {
			x.close()
			continue
		}
		for _, fd := range x.files { // copies of what goes on
			_ = unix.Close(fd)
		}
	}
	*in = inheritance{clients: in.clients}
	return failed
}

// handOverClients sends the clients with affinity, after what costs more where there is no room.
func (d *Dataplane) handOverClients(frontends []*frontend) error {
	send := func(key balancer.Key, clients []handedClient) error {
		for some := range slices.Chunk(clients, clientsAtOnce) {
			data, err := json.Marshal(handed{Kind: clientsKind, Key: key, Clients: some})
			if err == nil {
				err = d.heir.queue.Send(data)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	for _, f := range frontends {
		if err := send(f.key, f.clients(time.Now())); err != nil {
			return err
		}
	}
	for key, clients := range d.inherited.clients {
		if err := send(key, clients); err != nil {
			return err
		}
	}
	return nil
}

// clients are those with affinity at now, as the system's clock tells it.
func (f *frontend) clients(now time.Time) (all []handedClient) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sticky != nil {
		f.sticky.All(now, func(client netip.Addr, backend netip.AddrPort, last time.Time) {
			all = append(all, handedClient{client, backend, now.Round(0).Add(last.Sub(now))})
		})
	}
	return all
}

// handOver sends a paused connection with what it holds, and reports whether that is done.
func (c *conn) handOver() bool {
	c.f.mu.Lock()
	heir, cut := c.f.d.heir, c.cut
	c.f.mu.Unlock()
	if heir == nil || cut {
		return false
	}
	item := handed{Kind: connKind, Key: c.f.key, Client: c.from, Since: c.since}
	files := []int{descriptor(c.client)}
	var tail []byte
	if c.server != nil {
		item.Backend = c.backend.addr
		files = append(files, descriptor(c.server))
		for _, side := range []struct {
			p *pump
			h *handedHalf
		}{{&c.relaying.in, &item.In}, {&c.relaying.out, &item.Out}} {
			p := side.p
			*side.h = handedHalf{Bytes: p.count.Load(), Ended: p.ended, Pending: len(p.pending), Piped: p.splicing.held}
			tail = append(tail, p.pending...)
			if p.splicing.held > 0 {
				files = append(files, p.splicing.pipe.r, p.splicing.pipe.w)
			}
		}
	}
	if heir.send(item, tail, files...) != nil {
		return false
	}
	if c.relaying != nil {
		c.relaying.in.dropPipe()
		c.relaying.out.dropPipe()
	}
	return true
}

// dropPipe closes this process's copy of a pipe that is handed over.
func (p *pump) dropPipe() {
	if p.splicing.held > 0 {
		p.pipes.discard(p.splicing.pipe)
		p.splicing.held = 0
	}
}

// descriptor returns the descriptor of a socket that the caller keeps open meanwhile.
func descriptor(s interface {
	SyscallConn() (syscall.RawConn, error)
}) int {
	raw, err := s.SyscallConn()
	if err != nil {
		return -1
	}
	fd := -1
	_ = raw.Control(func(n uintptr) { fd = int(n) }) // fails only where it is closed already, and so does sending -1
	return fd
}

// decodeHanded returns the description of an item, and the bytes that follow it.
func decodeHanded(data []byte) (h handed, tail []byte, err error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&h); err != nil {
		return h, nil, fmt.Errorf("reading what is handed over: %w", err)
	}
	return h, data[dec.InputOffset():], nil
}

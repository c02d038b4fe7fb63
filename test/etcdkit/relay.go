package etcdkit

import (
	"net"
	"sync"
	"testing"
)

// Relay simulates the network between clients and one member.
type Relay struct {
	listener net.Listener
	target   string

	mu     sync.Mutex // guards the fields below
	change sync.Cond  // signals changes of frozen
	cut    bool
	frozen bool
	conns  map[net.Conn]bool
	closed bool
	bytes  int64
	taken  int
	wg     sync.WaitGroup
}

// NewRelay starts a relay to the member at target, which is HOST:PORT. The relay runs until the
// test ends.
func NewRelay(t testing.TB, target string) *Relay {
	t.Helper()
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", host+":0") // the relay uses the member's address, because the member's certificate is for this address
	if err != nil {
		t.Fatal(err)
	}
	return NewRelayOn(t, listener, target)
}

// NewRelayOn is like NewRelay, but accepts a listener, which may be in another network namespace
// than the member. The relay closes the listener.
func NewRelayOn(t testing.TB, listener net.Listener, target string) *Relay {
	t.Helper()
	r := &Relay{listener: listener, target: target, conns: map[net.Conn]bool{}}
	r.change.L = &r.mu
	r.wg.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

// Addr returns HOST:PORT of the relay's listener.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Cut closes all connections and refuses new connections.
func (r *Relay) Cut() { r.set(true, false) }

// Freeze keeps connections open and forwards no bytes, like a firewall that drops packets.
func (r *Relay) Freeze() { r.set(false, true) }

// Heal reverts Cut and Freeze.
func (r *Relay) Heal() { r.set(false, false) }

// Bytes returns the number of bytes received from the member so far.
func (r *Relay) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// Connections returns the number of connections accepted so far.
func (r *Relay) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken
}

func (r *Relay) set(cut, frozen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut, r.frozen = cut, frozen
	if cut {
		r.endLocked()
	}
	r.change.Broadcast()
}

func (r *Relay) endLocked() {
	for conn := range r.conns {
		_ = conn.Close() // the connection's pipe detects the close
	}
	clear(r.conns)
}

func (r *Relay) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	r.endLocked()
	r.change.Broadcast()
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		r.taken++
		r.mu.Unlock()
		r.wg.Go(func() { r.serve(client) })
	}
}

// track records a connection, so that Cut can close it. It returns false if connections are cut.
func (r *Relay) track(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut || r.closed {
		_ = conn.Close()
		return false
	}
	r.conns[conn] = true
	return true
}

func (r *Relay) serve(client net.Conn) {
	if !r.track(client) {
		return
	}
	server, err := net.Dial("tcp", r.target)
	if err != nil || !r.track(server) {
		_ = client.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { r.pipe(server, client, false) })
	both.Go(func() { r.pipe(client, server, true) })
	both.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, client)
	delete(r.conns, server)
}

// pipe copies bytes until either end is closed, and then closes both.
func (r *Relay) pipe(to, from net.Conn, fromServer bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		r.pass(n, fromServer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = to.Close()
	_ = from.Close()
}

// pass waits while the relay is frozen, and then counts the bytes from the member.
func (r *Relay) pass(n int, fromServer bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.frozen && !r.closed && !r.cut {
		r.change.Wait()
	}
	if fromServer {
		r.bytes += int64(n)
	}
}

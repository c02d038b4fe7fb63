package pick

import (
	"math"
	"net/netip"
	"sync"
	"time"
)

// DefaultStickyLimit is the default maximum number of clients of a Sticky. A full table needs about
// 96 MiB.
const DefaultStickyLimit = 1 << 20

// Sticky stores the backend of each of a frontend's clients, until a timeout after the client's
// last new connection. It is safe for concurrent use.
//
// It identifies backends by their address, without a zone, and survives changes to the backends. If
// a client's backend is not usable, the caller picks and stores another backend. The client then
// stays there, even if the first backend returns. A client that does not connect in the meantime
// keeps its first backend.
//
// Times may be slightly out of order, because goroutines race. Clients with the same address on
// different links (IPv6 zones) count as a single client, as do an IPv4 address and its IPv6 form.
type Sticky struct {
	mu      sync.Mutex
	timeout time.Duration
	limit   int
	// epoch is the first time that Store received. Entries store times relative to it.
	epoch time.Time
	// clients maps each client to its index in entries. Neither contains pointers, so the garbage
	// collector need not scan them.
	clients map[[16]byte]int32
	// entries[0] closes the ring: its next is the oldest entry, and its prev is the latest. The
	// other entries are in the ring or free.
	entries []stickyEntry
	free    []int32
}

// stickyEntry is the backend of one client.
type stickyEntry struct {
	client     [16]byte
	last       time.Duration // when the last new connection was made, since epoch
	backend    [16]byte
	port       uint16 // port of the backend
	prev, next int32
}

// NewSticky returns an empty table of at most limit clients, each kept for timeout. A full table
// drops the client whose last new connection is the oldest. If timeout is 0 or less, the table
// stores no clients. If limit is 0 or less, the limit is DefaultStickyLimit.
func NewSticky(timeout time.Duration, limit int) *Sticky {
	if limit <= 0 {
		limit = DefaultStickyLimit
	}
	s := &Sticky{timeout: timeout, limit: min(limit, math.MaxInt32-1)} // entries are numbered by 32 bits
	s.clearLocked()
	return s
}

// Lookup returns client's backend, unless the client's timeout has passed at now. It does not
// restart the timeout.
func (s *Sticky) Lookup(client netip.Addr, now time.Time) (netip.AddrPort, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(now)
	at, ok := s.clients[client.As16()]
	if !ok || s.expiredLocked(&s.entries[at], now) {
		return netip.AddrPort{}, false
	}
	e := &s.entries[at]
	return netip.AddrPortFrom(netip.AddrFrom16(e.backend).Unmap(), e.port), true
}

// Left returns how much longer than now the table stores client without a new connection. It is 0
// for an unknown client.
func (s *Sticky) Left(client netip.Addr, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.clients[client.As16()]
	if !ok {
		return 0
	}
	return max(0, s.timeout+s.entries[at].last-now.Sub(s.epoch))
}

// Store records that at now, client makes a new connection to backend. Call it for every new
// connection, whether its backend is from Lookup or from a picker, because the timeout starts with
// the last connection.
func (s *Sticky) Store(client netip.Addr, backend netip.AddrPort, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timeout <= 0 {
		return
	}
	if s.epoch.IsZero() {
		s.epoch = now
	}
	s.expireLocked(now)
	key, last := client.As16(), now.Sub(s.epoch)
	at, known := s.clients[key]
	if known {
		last = max(s.entries[at].last, last)
		s.unlinkLocked(at)
	} else {
		if len(s.clients) >= s.limit {
			s.removeLocked(s.entries[0].next)
		}
		at = s.newLocked()
		s.clients[key] = at
	}
	s.entries[at] = stickyEntry{client: key, last: last, backend: backend.Addr().As16(), port: backend.Port()}
	s.linkLocked(at)
}

// All calls visit for each client whose timeout has not passed at now, in the order of their last
// new connections. It passes the client, the backend, and the time of that connection. The function
// visit must not use the table.
func (s *Sticky) All(now time.Time, visit func(client netip.Addr, backend netip.AddrPort, last time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := s.entries[0].next; at != 0; at = s.entries[at].next {
		if e := &s.entries[at]; !s.expiredLocked(e, now) {
			visit(netip.AddrFrom16(e.client).Unmap(), netip.AddrPortFrom(netip.AddrFrom16(e.backend).Unmap(), e.port), s.epoch.Add(e.last))
		}
	}
}

// SetTimeout replaces the timeout, even for stored clients: a longer timeout may restore clients
// that had exceeded the old timeout. A timeout of 0 or less drops all clients.
func (s *Sticky) SetTimeout(timeout time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeout = timeout
	if timeout <= 0 {
		s.clearLocked()
	}
}

// expireLocked drops up to two of the oldest clients if their timeout has passed. Each call to
// Store adds at most one client, so the table shrinks with use, at a limited cost per call.
func (s *Sticky) expireLocked(now time.Time) {
	for range 2 {
		at := s.entries[0].next
		if at == 0 || !s.expiredLocked(&s.entries[at], now) {
			return
		}
		s.removeLocked(at)
	}
}

func (s *Sticky) expiredLocked(e *stickyEntry, now time.Time) bool {
	return now.Sub(s.epoch)-e.last >= s.timeout
}

// removeLocked drops a client. After the last client, it frees the memory.
func (s *Sticky) removeLocked(at int32) {
	s.unlinkLocked(at)
	delete(s.clients, s.entries[at].client)
	s.free = append(s.free, at)
	if len(s.clients) == 0 {
		s.clearLocked()
	}
}

func (s *Sticky) clearLocked() {
	s.clients = make(map[[16]byte]int32)
	s.entries = make([]stickyEntry, 1)
	s.free = nil
}

// newLocked returns the index of an unused entry.
func (s *Sticky) newLocked() int32 {
	if n := len(s.free); n > 0 {
		at := s.free[n-1]
		s.free = s.free[:n-1]
		return at
	}
	s.entries = append(s.entries, stickyEntry{})
	return int32(len(s.entries) - 1)
}

// unlinkLocked removes an entry from the ring.
func (s *Sticky) unlinkLocked(at int32) {
	e := &s.entries[at]
	s.entries[e.prev].next, s.entries[e.next].prev = e.next, e.prev
}

// linkLocked adds an entry to the ring as the latest.
func (s *Sticky) linkLocked(at int32) {
	e := &s.entries[at]
	prev := s.entries[0].prev
	e.prev, e.next = prev, 0
	s.entries[prev].next, s.entries[0].prev = at, at
}

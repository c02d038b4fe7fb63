package pick

import (
	"math"
	"net/netip"
	"sync"
	"time"
)

// DefaultStickyLimit is the number of clients that a Sticky remembers unless told otherwise: about 96 MiB when full.
const DefaultStickyLimit = 1 << 20

// Sticky remembers the backend of each client of one frontend, for a time after the client's last new connection. It is
// safe for concurrent use.
//
// It knows backends by their address, which has no zone, and outlives changes of them. A client whose backend is not usable now is for the
// caller to see, who picks another and stores that: the client has moved, and stays there when the first one comes
// back. A client that did not connect meanwhile finds its backend again, if that is back within the timeout.
//
// Times that are passed in may be slightly out of order, as they are among goroutines. Clients of the same address on
// different links (IPv6 zones) count as one, and so do an IPv4 address and its IPv6 form.
type Sticky struct {
	mu      sync.Mutex
	timeout time.Duration
	limit   int
	// epoch is what times are counted from: the first one seen.
	epoch time.Time
	// clients is where each client is in entries. Neither holds pointers: the garbage collector has no work with them.
	clients map[[16]byte]int32
	// entries[0] ties the ring: its next is the oldest, its prev the latest. The others are in the ring, or free.
	entries []stickyEntry
	free    []int32
}

// stickyEntry is what is known of one client.
type stickyEntry struct {
	client     [16]byte
	last       time.Duration // of the last new connection, since epoch
	backend    [16]byte
	port       uint16 // of the backend
	prev, next int32
}

// NewSticky returns an empty table that keeps at most limit clients, each for timeout. A full table forgets the client
// that has been without a new connection for longest. A timeout of 0 or less is no affinity: nothing is kept. A limit
// of 0 or less is DefaultStickyLimit.
func NewSticky(timeout time.Duration, limit int) *Sticky {
	if limit <= 0 {
		limit = DefaultStickyLimit
	}
	s := &Sticky{timeout: timeout, limit: min(limit, math.MaxInt32-1)} // entries are numbered by 32 bits
	s.clearLocked()
	return s
}

// Lookup returns the backend of client, unless its timeout has passed at now. It is a look only: the time counts on
// until the next Store.
func (s *Sticky) Lookup(client netip.Addr, now time.Time) (netip.AddrPort, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expireLocked(now)
	at, ok := s.clients[client.As16()]
	if !ok || s.overLocked(&s.entries[at], now) {
		return netip.AddrPort{}, false
	}
	e := &s.entries[at]
	return netip.AddrPortFrom(netip.AddrFrom16(e.backend).Unmap(), e.port), true
}

// Left is how long client is remembered after now if it makes no new connection; 0 where it is not.
func (s *Sticky) Left(client netip.Addr, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.clients[client.As16()]
	if !ok {
		return 0
	}
	return max(0, s.timeout+s.entries[at].last-now.Sub(s.epoch))
}

// Store notes that client makes a new connection to backend at now. Call it for every new connection, found by Lookup
// or picked: the timeout counts from the last one.
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

// All calls visit for each client that is remembered at now, the one without a new connection for longest first, with its backend
// and when it made the last one. visit may not use the table.
func (s *Sticky) All(now time.Time, visit func(client netip.Addr, backend netip.AddrPort, last time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := s.entries[0].next; at != 0; at = s.entries[at].next {
		if e := &s.entries[at]; !s.overLocked(e, now) {
			visit(netip.AddrFrom16(e.client).Unmap(), netip.AddrPortFrom(netip.AddrFrom16(e.backend).Unmap(), e.port), s.epoch.Add(e.last))
		}
	}
}

// SetTimeout replaces the timeout, for what is remembered too: a longer one may bring back clients that were past the
// old one. 0 or less forgets everything.
func (s *Sticky) SetTimeout(timeout time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeout = timeout
	if timeout <= 0 {
		s.clearLocked()
	}
}

// expireLocked drops up to two of the oldest clients if their time is over. Each call adds one at most, so that the
// table follows its use at a bounded price per call.
func (s *Sticky) expireLocked(now time.Time) {
	for range 2 {
		at := s.entries[0].next
		if at == 0 || !s.overLocked(&s.entries[at], now) {
			return
		}
		s.removeLocked(at)
	}
}

func (s *Sticky) overLocked(e *stickyEntry, now time.Time) bool {
	return now.Sub(s.epoch)-e.last >= s.timeout
}

// removeLocked drops a client. The last one takes the memory with it.
func (s *Sticky) removeLocked(at int32) {
	s.unlinkLocked(at)
	delete(s.clients, s.entries[at].client)
	s.free = append(s.free, at)
	if len(s.clients) == 0 {
		s.clearLocked()
	}
}

// clearLocked starts over with nothing.
func (s *Sticky) clearLocked() {
	s.clients = make(map[[16]byte]int32)
	s.entries = make([]stickyEntry, 1)
	s.free = nil
}

// newLocked returns an entry that is not in use.
func (s *Sticky) newLocked() int32 {
	if n := len(s.free); n > 0 {
		at := s.free[n-1]
		s.free = s.free[:n-1]
		return at
	}
	s.entries = append(s.entries, stickyEntry{})
	return int32(len(s.entries) - 1)
}

// unlinkLocked takes an entry out of the ring.
func (s *Sticky) unlinkLocked(at int32) {
	e := &s.entries[at]
	s.entries[e.prev].next, s.entries[e.next].prev = e.next, e.prev
}

// linkLocked puts an entry into the ring as the latest.
func (s *Sticky) linkLocked(at int32) {
	e := &s.entries[at]
	prev := s.entries[0].prev
	e.prev, e.next = prev, 0
	s.entries[prev].next, s.entries[0].prev = at, at
}

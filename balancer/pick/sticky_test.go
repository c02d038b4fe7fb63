package pick

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
)

// stickyModel is a reference model of Sticky. It keeps a list of clients, with the oldest client
// first.
type stickyModel struct {
	timeout time.Duration
	limit   int
	list    []stickyBinding
}

type stickyBinding struct {
	client  netip.Addr
	backend netip.AddrPort
	last    time.Time
}

// expire drops at most two expired entries, as Sticky does. The other expired entries remain, but
// lookup does not return them.
func (m *stickyModel) expire(now time.Time) {
	for n := 0; n < 2 && len(m.list) > 0 && now.Sub(m.list[0].last) >= m.timeout; n++ {
		m.list = m.list[1:]
	}
}

func (m *stickyModel) find(client netip.Addr) int {
	return slices.IndexFunc(m.list, func(b stickyBinding) bool { return b.client == client })
}

func (m *stickyModel) lookup(client netip.Addr, now time.Time) (netip.AddrPort, bool) {
	m.expire(now)
	i := m.find(client)
	if i < 0 || now.Sub(m.list[i].last) >= m.timeout {
		return netip.AddrPort{}, false
	}
	return m.list[i].backend, true
}

func (m *stickyModel) store(client netip.Addr, backend netip.AddrPort, now time.Time) {
	if m.timeout <= 0 {
		return
	}
	m.expire(now)
	if i := m.find(client); i >= 0 {
		m.list = slices.Delete(m.list, i, i+1)
	} else if len(m.list) == m.limit {
		m.list = m.list[1:]
	}
	m.list = append(m.list, stickyBinding{client, backend, now})
}

func (m *stickyModel) setTimeout(timeout time.Duration) {
	if m.timeout = timeout; timeout <= 0 {
		m.list = nil
	}
}

// TestStickyMatchesModel performs random operations on a Sticky and on its model. Both must return
// the same results. A copy of the Sticky must then find the same backends for equally long.
func TestStickyMatchesModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(17, seed))
		timeout, limit := time.Duration(1+r.IntN(60))*time.Second, 1+r.IntN(12)
		clients, backends := 1+r.IntN(20), 1+r.IntN(6)
		s, m := NewSticky(timeout, limit), &stickyModel{timeout: timeout, limit: limit}
		now := time.Unix(1700000000, 0)
		for step := range 600 {
			now = now.Add(time.Duration(r.IntN(4000)) * time.Millisecond)
			if r.IntN(50) == 0 {
				now = now.Add(timeout)
			}
			client, backend := clientOf(r.IntN(clients)).Addr(), addressOf(r.IntN(backends))
			switch r.IntN(40) {
			case 0, 1:
				timeout = time.Duration(r.IntN(60)) * time.Second
				s.SetTimeout(timeout)
				m.setTimeout(timeout)
			case 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20:
				s.Store(client, backend, now)
				m.store(client, backend, now)
			default:
				got, ok := s.Lookup(client, now)
				if want, known := m.lookup(client, now); got != want || ok != known {
					t.Fatalf("seed %d, step %d: Lookup(%s) = %v %v, want %v %v", seed, step, client, got, ok, want, known)
				}
			}
			if len(s.clients) != len(m.list) {
				t.Fatalf("seed %d, step %d: clients in the table = %d, want %d", seed, step, len(s.clients), len(m.list))
			}
			checkSticky(t, s)
		}
		again := NewSticky(timeout, limit) // a copy of the table, as in another process
		s.All(now, func(client netip.Addr, backend netip.AddrPort, last time.Time) { again.Store(client, backend, last) })
		for i := range clients {
			client := clientOf(i).Addr()
			got, _ := again.Lookup(client, now)
			if want, known := m.lookup(client, now); got != want || known && again.Left(client, now) != s.Left(client, now) {
				t.Fatalf("seed %d: in the copy, client %s has backend %s for another %s, want %s for another %s", seed, client, got, again.Left(client, now), want, s.Left(client, now))
			}
		}
	}
}

func checkSticky(t *testing.T, s *Sticky) {
	t.Helper()
	ring := 0
	for at := s.entries[0].next; at != 0; at = s.entries[at].next {
		if s.clients[s.entries[at].client] != at {
			t.Fatalf("ring entry %d: its client has entry %d, want the same entry", at, s.clients[s.entries[at].client])
		}
		ring++
	}
	if ring != len(s.clients) || ring+len(s.free)+1 != len(s.entries) {
		t.Fatalf("entries in the ring = %d, want %d; free entries = %d, want the remaining ones of %d", ring, len(s.clients), len(s.free), len(s.entries)-1)
	}
}

// TestStickyTimeoutStartsAtLastConnection looks up a client, and stores its connections. Only a new
// connection may restart the timeout; a lookup must not.
func TestStickyTimeoutStartsAtLastConnection(t *testing.T) {
	s, start := NewSticky(10*time.Second, 0), time.Unix(1700000000, 0)
	client, backend := clientOf(1).Addr(), addressOf(1)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	s.Store(client, backend, at(0))
	for _, step := range []struct {
		seconds int
		want    bool
	}{{0, true}, {9, true}, {10, false}} {
		if _, ok := s.Lookup(client, at(step.seconds)); ok != step.want {
			t.Errorf("Lookup %ds after the connection finds the client = %v, want %v", step.seconds, ok, step.want)
		}
	}
	s.Store(client, backend, at(20))
	s.Store(client, backend, at(29))
	s.Store(client, backend, at(28)) // as in a goroutine that has read the clock earlier
	if got, ok := s.Lookup(client, at(38)); !ok || got != backend {
		t.Errorf("Lookup 9s after the last connection = %v %v, want %v", got, ok, backend)
	}
	if got, ok := s.Lookup(client, at(39)); ok {
		t.Errorf("Lookup 10s after the last connection = %v, want no backend", got)
	}
}

// TestStickyTableIsLimited stores more clients than the table may hold. The table must drop the
// oldest clients, and must free its memory after the timeout.
func TestStickyTableIsLimited(t *testing.T) {
	s, now := NewSticky(time.Minute, 1000), time.Unix(1700000000, 0)
	for n := range 5000 {
		s.Store(clientOf(n).Addr(), addressOf(n%3), now)
	}
	if got := len(s.clients); got != 1000 {
		t.Errorf("clients in the table = %d, want 1000", got)
	}
	if _, ok := s.Lookup(clientOf(3999).Addr(), now); ok {
		t.Error("Lookup finds a client that is not among the latest 1000")
	}
	if _, ok := s.Lookup(clientOf(4000).Addr(), now); !ok {
		t.Error("Lookup does not find one of the latest 1000 clients")
	}
	now = now.Add(time.Minute)
	for range 500 {
		s.Lookup(clientOf(0).Addr(), now)
	}
	if got := len(s.clients); got != 0 || cap(s.entries) > 8 {
		t.Errorf("after the timeout and 500 lookups: clients = %d, capacity of entries = %d, want 0 and at most 8", got, cap(s.entries))
	}
}

// TestStickyMovesClients moves one of two clients to another backend, as if their backend were
// temporarily unusable. The moved client must keep its new backend, and the other client must keep
// the old backend.
func TestStickyMovesClients(t *testing.T) {
	s, now := NewSticky(time.Minute, 0), time.Unix(1700000000, 0)
	moved, waited, old, other := clientOf(1).Addr(), clientOf(2).Addr(), addressOf(1), addressOf(2)
	s.Store(moved, old, now)
	s.Store(waited, old, now)
	s.Store(moved, other, now.Add(time.Second))
	for client, want := range map[netip.Addr]netip.AddrPort{moved: other, waited: old} {
		if got, ok := s.Lookup(client, now.Add(2*time.Second)); !ok || got != want {
			t.Errorf("Lookup(%s) = %v %v, want %v", client, got, ok, want)
		}
	}
}

// TestStickyConcurrentUse uses one table in several goroutines, each with different clients. No
// goroutine may affect another goroutine's clients.
func TestStickyConcurrentUse(t *testing.T) {
	s := NewSticky(time.Hour, 0)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			now := time.Unix(1700000000, 0)
			for n := range 2000 {
				client, backend := clientOf(w<<16|n%100).Addr(), addressOf(n%7)
				s.Store(client, backend, now)
				if got, ok := s.Lookup(client, now); !ok || got != backend {
					t.Errorf("Lookup = %v %v, want %v", got, ok, backend)
					return
				}
				s.SetTimeout(time.Hour + time.Duration(n))
				now = now.Add(time.Millisecond)
			}
		})
	}
	wg.Wait()
	if got := len(s.clients); got != 800 {
		t.Errorf("clients in the table = %d, want 800", got)
	}
}

// ExampleSticky shows how a caller chooses the backend of a new connection.
func ExampleSticky() {
	backends := even(3)
	sticky, picker := NewSticky(3*time.Hour, 0), New(balancer.RoundRobin, backends, nil)
	connect := func(f Flow, now time.Time) netip.AddrPort {
		addr, ok := sticky.Lookup(f.Client.Addr(), now)
		if !ok || !slices.ContainsFunc(backends, func(b balancer.Backend) bool { return b.Addr == addr && b.State == balancer.Active }) {
			addr = backends[picker.Pick(f, nil)].Addr
		}
		sticky.Store(f.Client.Addr(), addr, now)
		return addr
	}
	for _, client := range []int{1, 2, 1} {
		fmt.Println(connect(flowOf(client), time.Now()))
	}
	// Output:
	// 10.1.0.0:8080
	// 10.1.0.1:8080
	// 10.1.0.0:8080
}

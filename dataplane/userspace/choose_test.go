package userspace

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/wait"
)

// TestAffinityKeepsClients connects many clients to a frontend with affinity. Each client must stay
// on its backend. If a backend fails, only this backend's clients may move.
func TestAffinityKeepsClients(t *testing.T) {
	servers := map[string]*server{}
	var at []netip.AddrPort
	for _, name := range []string{"a", "b", "c"} {
		servers[name] = serveAt(t, "127.0.0.1:0", named(name))
		at = append(at, servers[name].addr)
	}
	d := start(t, Options{})
	f := frontendAt("127.77.3.1:9000", at...)
	f.AffinityTimeout = time.Hour
	d.apply(f)
	clients := wait.Soak(500, 2000)
	round := func() []string {
		got := make([]string, clients)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := w; i < clients; i += 8 {
					name, err := askOnce(f.AddrPort(), fmt.Sprintf("127.1.%d.%d", i/250, i%250+1))
					if err != nil {
						t.Errorf("client %d: error = %v, want nil", i, err)
					}
					got[i] = name
				}
			})
		}
		wg.Wait()
		return got
	}
	first := round()
	d.apply(with(f, func(f *balancer.Frontend) { f.Scheduler = balancer.Random })) // clients must stay despite another scheduler
	for i, name := range round() {
		if name != first[i] {
			t.Fatalf("client %d moved from %s to %s, want the same backend", i, first[i], name)
		}
	}
	servers["a"].stop()
	for i, name := range round() {
		if name == "a" || first[i] != "a" && name != first[i] {
			t.Fatalf("after backend a failed, client %d moved from %s to %s; want moves only from a to b", i, first[i], name)
		}
	}
}

// TestMaxConnectionsIsNeverExceeded connects more clients at the same time than max_connections
// permits, through two VIPs of a service. The number of served connections must not exceed the
// limit.
func TestMaxConnectionsIsNeverExceeded(t *testing.T) {
	var now, most atomic.Int64
	handle := func(c net.Conn) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		named("x")(c)
		now.Add(-1)
	}
	a := serveAt(t, "127.0.0.1:0", handle)
	d := start(t, Options{})
	bound := func(f *balancer.Frontend) { f.Backends[0].MaxConnections = 7 }
	f, g := with(frontendAt("127.77.3.2:9000", a.addr), bound), with(frontendAt("127.77.3.3:9000", a.addr), bound)
	d.apply(f, g) // both VIPs belong to one service and share its limit
	var held sync.Map
	var ok, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			vip := []*balancer.Frontend{f, g}[i%2].AddrPort()
			c, err := connect(vip, "")
			if err != nil {
				refused.Add(1)
				return
			}
			held.Store(i, c)
			if _, err := c.ask("hello"); err != nil {
				refused.Add(1)
				return
			}
			ok.Add(1)
		})
	}
	wg.Wait()
	if ok.Load() != 7 || refused.Load() != 43 || most.Load() > 7 {
		t.Errorf("served connections = %d, refused = %d, maximum at the same time = %d; want 7, 43, 7", ok.Load(), refused.Load(), most.Load())
	}
	held.Range(func(_, c any) bool { c.(*client).Close(); return true })
	eventually(t, "room again", func() error { _, err := askOnce(f.AddrPort(), ""); return err })
}

// TestLeastConnectionsIsExact connects clients at the same time, with the scheduler lc. Both
// backends must get the same number of connections. After some connections to one backend have
// closed, this backend must get the next connection.
func TestLeastConnectionsIsExact(t *testing.T) {
	a, b := serveAt(t, "127.0.0.1:0", named("a")), serveAt(t, "127.0.0.1:0", named("b"))
	d := start(t, Options{})
	f := with(frontendAt("127.77.3.5:9000", a.addr, b.addr), func(f *balancer.Frontend) { f.Scheduler = balancer.LeastConn })
	d.apply(f)
	held := map[string][]*client{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			c, err := connect(f.AddrPort(), "")
			if err != nil {
				t.Error(err)
				return
			}
			name, err := c.ask("x")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			held[name] = append(held[name], c)
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(held["a"]) != 20 || len(held["b"]) != 20 {
		t.Errorf("connections of a = %d, of b = %d; want 20 each", len(held["a"]), len(held["b"]))
	}
	for _, c := range held["a"] {
		c.Close()
	}
	eventually(t, "the end of a's", func() error {
		for _, n := range d.Counters()[0].Backends {
			if n.Backend == a.addr && n.Active != 0 {
				return fmt.Errorf("active connections = %d, want all open connections", n.Active)
			}
		}
		return nil
	})
	for range 10 {
		if name := mustConnect(t, f.AddrPort()).mustAsk(t); name != "a" {
			t.Errorf("server = %s, want a because it has fewer connections", name)
		}
	}
	for _, c := range held["b"] {
		c.Close()
	}
}

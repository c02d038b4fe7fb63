package traffic

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/dataplane"
	"vipd/test/fake"
	"vipd/test/wait"
)

func web() Port { return Port{Service: "web", Name: "http"} }

// meter is a fake dataplane that reports the counts in its fields.
type meter struct {
	*fake.Dataplane
	counted []dataplane.FrontendCount
}

func (m *meter) Counters() []dataplane.FrontendCount { return m.counted }

// counted returns a port's counts: connections, bytes and live connections, by endpoint.
func counted(port string, in uint64, backends ...dataplane.BackendCount) dataplane.FrontendCount {
	f := dataplane.FrontendCount{Service: "web", Port: port, In: in, Out: 2 * in, Backends: backends}
	for _, b := range backends {
		f.Connections += b.Connections
	}
	return f
}

// counts returns the current counts. On a busy machine, Counts may return the previous reading.
func counts(c *Counters) map[Port]dataplane.FrontendCount {
	c.Counts()
	c.Last()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// TestCountsOfAModeThatComesBack switches back to a mode whose kernel objects have continued to
// count. Their counts must be included exactly once, whether the next dataplane keeps or replaces
// the objects.
func TestCountsOfAModeThatComesBack(t *testing.T) {
	one, two := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.2:80")
	var all Counters
	count := func() dataplane.FrontendCount { return sorted(counts(&all)[web()]) }
	first := &meter{counted: []dataplane.FrontendCount{counted("http", 500, dataplane.BackendCount{Backend: one, Connections: 10, Kept: 8, Active: 3})}}
	all.Begin("a", first, false)
	between := &meter{counted: []dataplane.FrontendCount{counted("http", 70, dataplane.BackendCount{Backend: two, Connections: 7})}}
	all.Begin("b", between, false)
	all.End(first, true)
	resumed := &meter{counted: []dataplane.FrontendCount{counted("http", 0, dataplane.BackendCount{Backend: one, Connections: 8, Active: 2})}}
	all.Begin("a", resumed, true) // an endpoint that was later removed had 2 connections
	all.End(between, false)
	want := counted("http", 570, dataplane.BackendCount{Backend: one, Connections: 10, Active: 2}, dataplane.BackendCount{Backend: two, Connections: 7})
	if d := cmp.Diff(want, count(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Errorf("counts after switching back (-want +got):\n%s", d)
	}
	resumed.counted = []dataplane.FrontendCount{
		counted("http", 50, dataplane.BackendCount{Backend: one, Connections: 9}, dataplane.BackendCount{Backend: two, Connections: 1}),
		counted("more", 5, dataplane.BackendCount{Backend: two, Connections: 1}),
	}
	for _, when := range []string{"after more", "when it is gone"} {
		want = counted("http", 620, dataplane.BackendCount{Backend: one, Connections: 11}, dataplane.BackendCount{Backend: two, Connections: 8})
		if d := cmp.Diff(want, count(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
			t.Errorf("%s (-want +got):\n%s", when, d)
		}
		if n := counts(&all)[Port{Service: "web", Name: "more"}].Connections; n != 1 {
			t.Errorf("%s: connections of another port = %d, want 1", when, n)
		}
		all.End(resumed, false)
	}
}

func sorted(f dataplane.FrontendCount) dataplane.FrontendCount {
	slices.SortFunc(f.Backends, func(a, b dataplane.BackendCount) int { return a.Backend.Compare(b.Backend) })
	return f
}

// objects holds the kernel's counting objects. The keys are their numbers.
type objects map[int]dataplane.BackendCount

// counter is a dataplane whose kernel objects remain after the dataplane is closed.
type counter struct {
	*fake.Dataplane
	kernel objects
	ended  map[netip.AddrPort]uint64 // counts in objects that the dataplane has removed
	busy   int                       // the number of readings that will fail
}

func (c *counter) Counters() []dataplane.FrontendCount {
	if c.busy--; c.busy >= 0 {
		return []dataplane.FrontendCount{{Service: "web", Port: "http", BytesOnly: true}}
	}
	backends := map[netip.AddrPort]dataplane.BackendCount{}
	for at, n := range c.ended {
		backends[at] = dataplane.BackendCount{Backend: at, Connections: n}
	}
	for _, o := range c.kernel {
		b := backends[o.Backend]
		b.Backend, b.Connections, b.Kept = o.Backend, b.Connections+o.Connections, b.Kept+o.Connections
		backends[o.Backend] = b
	}
	return []dataplane.FrontendCount{counted("http", 0, slices.Collect(maps.Values(backends))...)}
}

// TestLiveConnectionsOfTwoModes counts conntrack's connections in a retired mode and in the next
// mode. Each live connection must count once. Connections that a mode terminates in this process
// must be added.
func TestLiveConnectionsOfTwoModes(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:80")
	var all Counters
	for _, b := range []dataplane.BackendCount{{Active: 3, Tracked: true}, {Active: 2}, {Active: 4, Tracked: true}} {
		b.Backend = at
		all.Begin("a", &meter{counted: []dataplane.FrontendCount{counted("http", 0, b)}}, false)
	}
	if got := counts(&all)[web()].Backends; len(got) != 1 || got[0].Active != 6 {
		t.Errorf("backends = %+v, want 6 live connections", got)
	}
}

// TestCountsOfProcesses simulates random histories of a mode's kernel objects, and of processes
// that exit or are killed. The counts must equal the number of sent connections, except for objects
// that were removed between the last reading and a kill. The counts must never decrease.
func TestCountsOfProcesses(t *testing.T) {
	for seed := range uint64(wait.Soak(200, 5000)) {
		r := rand.New(rand.NewPCG(seed, 7))
		dir, kernel, next := t.TempDir(), objects{}, 0
		var sent, lost, shown uint64 // lost is the maximum number of connections that a kill may lose
		for range 6 {
			all, c := &Counters{}, &counter{kernel: kernel, ended: map[netip.AddrPort]uint64{}, busy: r.IntN(5)}
			all.Open(dir, slog.New(slog.DiscardHandler))
			all.Begin("a", c, true)
			var gone uint64
			look := func() {
				now := counts(all)[web()].Connections
				reads := c.busy < 0
				if now < shown || now > sent || reads && now+lost < sent {
					t.Fatalf("seed %d: count = %d of %d sent, previous count = %d; want no decrease and at most %d lost", seed, now, sent, shown, lost)
				}
				if shown = now; reads {
					gone, lost = 0, sent-now
				}
			}
			for range r.IntN(12) {
				switch r.IntN(4) {
				case 0:
					next++
					kernel[next] = dataplane.BackendCount{Backend: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(1+r.IntN(3)))}
				case 1:
					for n, o := range kernel {
						delete(kernel, n)
						c.ended[o.Backend] += o.Connections
						gone += o.Connections
						break
					}
				case 2:
					look()
				}
				for n, o := range kernel {
					o.Connections += uint64(r.IntN(5))
					sent += o.Connections - kernel[n].Connections
					kernel[n] = o
				}
			}
			if r.IntN(2) == 0 {
				look()
				all.Last()
			}
			lost += gone // the kill loses these counts
			if c.busy >= 0 {
				lost += gone // without a reading, the next process can't distinguish new objects from replaced objects
			}
			for n, o := range kernel { // the kernel continues to serve
				o.Connections++
				kernel[n], sent = o, sent+1
			}
		}
	}
}

// TestCountsOfABrokenFile reads a file that was truncated when vipd was killed. The counts must
// include the complete lines and the kernel's counts.
func TestCountsOfABrokenFile(t *testing.T) {
	one := netip.MustParseAddrPort("192.0.2.1:80")
	for text, before := range map[string]uint64{
		"{\"service\": \"web\", \"conn\n": 0,
		"{\"service\":\"web\",\"port\":\"http\",\"endpoint\":\"192.0.2.1:80\",\"connections\":5}\n{\"service\":\"we": 5,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var all Counters
		all.Open(dir, slog.New(slog.DiscardHandler))
		all.Begin(config.NFTablesMode, &meter{counted: []dataplane.FrontendCount{counted("http", 3, dataplane.BackendCount{Backend: one, Connections: 2})}}, true)
		want := counted("http", 3, dataplane.BackendCount{Backend: one, Connections: 2 + before})
		if d := cmp.Diff(want, counts(&all)[web()], cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
			t.Errorf("%s (-want +got):\n%s", text, d)
		}
	}
}

// TestWritesWhatChanged repeatedly reads counts that change. Each reading must add a line for each
// changed backend, and the file must stay short. A file that another program has truncated or
// removed must be rewritten.
func TestWritesWhatChanged(t *testing.T) {
	dir, backends := t.TempDir(), 100
	m := &meter{counted: connectedEndpoints(1, backends)}
	var all Counters
	all.Open(dir, slog.New(slog.DiscardHandler))
	all.Begin(config.UserspaceMode, m, false)
	size := func() int64 {
		all.Last()
		is, err := os.Stat(filepath.Join(dir, FileName))
		if err != nil {
			t.Fatal(err)
		}
		return is.Size()
	}
	told := func() uint64 {
		var next Counters
		next.Open(dir, slog.New(slog.DiscardHandler))
		return next.last[Port{Service: "s0"}].Connections
	}
	most, sent := size(), uint64(backends)
	for i := range 6000 {
		was := most
		m.counted[0].Backends[i%backends].Connections++
		m.counted[0].Connections++
		sent++
		switch i {
		case 100:
			if err := os.Truncate(filepath.Join(dir, FileName), 10); err != nil {
				t.Fatal(err)
			}
		case 200:
			if err := os.Remove(filepath.Join(dir, FileName)); err != nil {
				t.Fatal(err)
			}
		}
		most = max(was, size())
		if i < 10 && most-was > 200 {
			t.Errorf("file growth per connection = %d bytes, want at most 200", most-was)
		}
		if i%97 == 0 || i == 100 || i == 200 {
			if got := told(); got != sent {
				t.Fatalf("connections in the file = %d, want %d", got, sent)
			}
		}
	}
	if most > 3*shortest {
		t.Errorf("file size = %d bytes, want at most three times the smallest size", most)
	}
}

// connectedEndpoints returns services whose endpoints each have one connection.
func connectedEndpoints(services, endpoints int) (all []dataplane.FrontendCount) {
	for i := range services {
		f := dataplane.FrontendCount{Service: balancer.Name(fmt.Sprint("s", i)), Connections: uint64(endpoints)}
		for j := range endpoints {
			f.Backends = append(f.Backends, dataplane.BackendCount{Connections: 1, Kept: 1, Active: 1,
				Backend: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)}), uint16(1000+j))})
		}
		all = append(all, f)
	}
	return all
}

// BenchmarkCounts reads the counters of 10,000 services with ten endpoints each. Some or all of
// them had connections since the last reading.
func BenchmarkCounts(b *testing.B) {
	for _, busy := range []int{0, 100, 10_000} {
		b.Run(fmt.Sprint("changed=", busy), func(b *testing.B) {
			m := &meter{counted: connectedEndpoints(10_000, 10)}
			var all Counters
			all.Open(b.TempDir(), slog.New(slog.DiscardHandler))
			all.Begin(config.NFTablesMode, m, false)
			all.Last()
			for b.Loop() {
				for i := range busy {
					f := &m.counted[i]
					f.Connections += uint64(len(f.Backends))
					for j := range f.Backends {
						f.Backends[j].Connections++
						f.Backends[j].Kept++
					}
				}
				all.Last()
			}
		})
	}
}

package ipvs

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/dnat"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipvsnl"
	"vipd/dataplane/internal/ipvsnl/ipvsnltest"
)

// kernel is a Fake with additional faults: it can lose requests and answers, omit virtual servers
// from lists, and lose all state as if IPVS were unloaded.
type kernel struct {
	*ipvsnltest.Fake
	// lose decides what happens to an op: done reports whether the op is performed, and answered
	// whether its answer arrives. If lose is nil, every op is performed and answered.
	lose   func(ipvsnl.Op) (done, answered bool)
	before func(ipvsnl.Op)
	// trash holds the counts of deleted destinations. If a destination is added again, it continues
	// these counts. If trash is nil, its counts start at 0.
	trash   map[counters.BackendKey]ipvsnl.Stats
	omitted map[balancer.Key]bool
	// skip reports whether lists omit a virtual server. If skip is nil, lists are complete.
	skip   func(balancer.Key) bool
	tables atomic.Int32
	// unloaded reports whether IPVS was unloaded, which deletes its state. Listing the virtual
	// servers loads IPVS again.
	unloaded bool
	// marks holds, for each family, the firewall marks for packets to port ranges.
	marks map[inet.Family]*fakeMarks
}

func newKernel() *kernel {
	return &kernel{Fake: ipvsnltest.NewFake(), marks: map[inet.Family]*fakeMarks{inet.IPv4: {}, inet.IPv6: {}}}
}

// fakeMarks is a [marker] that keeps its marks in memory. They outlive the process that set them.
type fakeMarks struct {
	marks map[balancer.Key]uint32
	// known reports whether this process has set the marks. lost reports whether another program
	// has deleted them since. If refuse is not nil, Set returns it.
	known, lost bool
	refuse      error
}

// lose deletes the marks, as another program could.
func (m *fakeMarks) lose() { m.marks, m.lost = nil, true }

// Set implements [marker].
func (m *fakeMarks) Set(_ context.Context, marks map[balancer.Key]uint32) error {
	if m.refuse == nil && (!m.known || !m.lost) {
		m.marks, m.known, m.lost = maps.Clone(marks), true, false
	}
	return m.refuse
}

// Observe implements [marker].
func (m *fakeMarks) Observe() (string, error) {
	damage, _ := m.Intact() // Intact never returns an error
	if !m.known {
		damage = "unknown"
	}
	m.known = m.known && damage == ""
	return damage, nil
}

// Intact implements [marker].
func (m *fakeMarks) Intact() (string, error) {
	if m.known && m.lost {
		return "the marks are gone", nil
	}
	return "", nil
}

// Remove implements [marker].
func (m *fakeMarks) Remove() error { m.marks = nil; return nil }

// Leave implements [marker].
func (m *fakeMarks) Leave() {}

// Do implements [ipvsnl.Conn].
func (k *kernel) Do(ctx context.Context, ops []ipvsnl.Op) []error {
	errs := make([]error, len(ops))
	failed := false
	for i, op := range ops {
		done, answered := true, true
		if k.lose != nil {
			done, answered = k.lose(op)
		}
		if done {
			if k.before != nil {
				k.before(op)
			}
			errs[i] = k.do(ctx, op)
		}
		if !answered {
			errs[i] = fmt.Errorf("%s: %w", op, ipvsnl.ErrNoAnswer)
		}
		failed = failed || errs[i] != nil
	}
	if !failed {
		return nil
	}
	return errs
}

func (k *kernel) do(ctx context.Context, op ipvsnl.Op) error {
	of := counters.BackendKey{Port: counters.Port{Name: op.Service.Key.String()}, Addr: op.Destination.Addr}
	if op.Verb == ipvsnl.DeleteDestination && k.trash != nil {
		_ = k.SetDestination(op.Service.Key, op.Destination.Addr, func(s *ipvsnl.DestinationState) { k.trash[of] = s.Stats })
	}
	if errs := k.Fake.Do(ctx, []ipvsnl.Op{op}); errs != nil {
		return errs[0]
	}
	if stats, ok := k.trash[of]; ok && op.Verb == ipvsnl.AddDestination {
		return k.SetDestination(op.Service.Key, op.Destination.Addr, func(s *ipvsnl.DestinationState) { s.Stats = stats })
	}
	if op.Verb == ipvsnl.DeleteService {
		clear(k.trash) // if the virtual server is added again, it starts without the earlier counts
	}
	return nil
}

// Services4 returns an error if IPVS was unloaded.
func (k *kernel) Services4(ctx context.Context) (int, error) {
	if k.unloaded {
		return 0, fmt.Errorf("counting IPVS virtual servers: %w: it is not loaded", ipvsnl.ErrUnsupported)
	}
	return k.Fake.Services4(ctx)
}

// Services lists the virtual servers. As in the kernel, each has the sums of its destinations'
// counts. It omits the virtual servers for which skip returns true, like the kernel, whose list may
// be incomplete while virtual servers are added or removed.
func (k *kernel) Services(ctx context.Context) ([]ipvsnl.ServiceState, error) {
	k.unloaded = false
	all, err := k.Fake.Services(ctx)
	for i := range all {
		states, _ := k.Destinations(ctx, all[i].Key)
		for _, s := range states {
			all[i].Connections += s.Connections
			all[i].InBytes += s.InBytes
		}
	}
	return slices.DeleteFunc(all, func(v ipvsnl.ServiceState) bool { return k.skips(v.Key) }), err
}

// Table omits the virtual servers in omitted, and those for which skip returns true. The kernel's
// table also lacks some virtual servers if there are virtual servers in other network namespaces.
func (k *kernel) Table(ctx context.Context) (map[balancer.Key]ipvsnl.TableService, error) {
	k.tables.Add(1)
	table, err := k.Fake.Table(ctx)
	maps.DeleteFunc(table, func(key balancer.Key, _ ipvsnl.TableService) bool { return k.omitted[key] || k.skips(key) })
	return table, err
}

func (k *kernel) skips(key balancer.Key) bool { return k.skip != nil && k.skip(key) }

// Close leaves the Fake usable, because the kernel outlives the process.
func (k *kernel) Close() error { return nil }

// tracked is a conntrack table without flows.
type tracked struct{}

func (tracked) Cut(context.Context, map[balancer.Key]bool, func(*conntrack.Flow) bool) (int, error) {
	return 0, nil
}
func (tracked) Each(context.Context, conntrack.Filter, func(*conntrack.Flow) error) error { return nil }
func (tracked) Close() error                                                              { return nil }

func carried() *dnat.Carried {
	return dnat.NewCarried(dnat.NewFlows(tracked{}, slog.New(slog.DiscardHandler)), func() (dnat.Conn, error) { return tracked{}, nil })
}

// process is a vipd process with a dataplane. The kernel outlives it.
type process struct {
	testing.TB
	k   *kernel
	dir string
	*Dataplane
}

func start(t testing.TB, k *kernel, dir string) *process {
	t.Helper()
	l, err := openLedger(dir, "boot", "namespace")
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDataplane(context.Background(), k, carried(), l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d.marks = map[inet.Family]marker{}
	for family, m := range k.marks {
		m.known, d.marks[family] = false, m
	}
	return &process{t, k, dir, d}
}

// restart stops the process, or simulates a crash if crash is true, and starts the next process.
func (p *process) restart(crash bool) {
	p.Helper()
	if !crash {
		if err := p.Dataplane.Close(context.Background(), true); err != nil {
			p.Fatal(err)
		}
	} else {
		p.drains.Close()
		if err := p.carried.Close(); err != nil {
			p.Fatal(err)
		}
	}
	p.Dataplane = start(p.TB, p.k, p.dir).Dataplane
}

func (p *process) observe() dataplane.Observation {
	p.Helper()
	seen, err := p.Observe(context.Background())
	if err != nil {
		p.Fatal(err)
	}
	return seen
}

// apply applies frontends. If any frontend can't be applied, it fails the test.
func (p *process) apply(frontends ...*balancer.Frontend) {
	p.Helper()
	if err := p.Apply(context.Background(), changes(frontends...)); err != nil {
		p.Fatal(err)
	}
}

func (p *process) remove(f *balancer.Frontend) {
	p.Helper()
	if err := p.Apply(context.Background(), []dataplane.Change{{Key: f.Key, Old: f}}); err != nil {
		p.Fatal(err)
	}
}

func changes(frontends ...*balancer.Frontend) []dataplane.Change {
	var batch []dataplane.Change
	for _, f := range frontends {
		batch = append(batch, dataplane.Change{Key: f.Key, New: f})
	}
	return batch
}

func (p *process) sent(f func()) []ipvsnl.Op {
	n := len(p.k.Ops())
	f()
	return p.k.Ops()[n:]
}

// connect sets the numbers of active and inactive connections of destination i.
func (k *kernel) connect(t testing.TB, f *balancer.Frontend, i int, active, inactive uint32) {
	t.Helper()
	if err := k.SetDestination(f.Key, address(f.Key, i), func(s *ipvsnl.DestinationState) { s.Active, s.Inactive = active, inactive }); err != nil {
		t.Fatal(err)
	}
}

// text returns the kernel's virtual servers for which the function of returns true. Each virtual
// server and each destination is a line in the syntax of ipvsadm.
func (k *kernel) text(t testing.TB, of func(balancer.Key) bool) string {
	t.Helper()
	services, err := k.Fake.Services(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, s := range services {
		if !of(s.Key) {
			continue
		}
		all, err := k.Destinations(context.Background(), s.Key)
		if err != nil {
			t.Fatal(err)
		}
		text := line(ipvsnl.Op{Verb: ipvsnl.AddService, Service: s.Service})
		slices.SortFunc(all, func(a, b ipvsnl.DestinationState) int { return a.Addr.Compare(b.Addr) })
		for _, d := range all {
			text += "\n" + line(ipvsnl.Op{Verb: ipvsnl.AddDestination, Service: s.Service, Destination: d.Destination})
		}
		lines = append(lines, text+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func every(balancer.Key) bool { return true }

// key returns the n-th key. The keys include all protocols and both address families.
func key(n int) balancer.Key {
	k := balancer.Key{
		Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(n / 6)}), Port: 80,
		Proto: []balancer.Protocol{balancer.TCP, balancer.UDP, balancer.SCTP}[n%3],
	}
	if n%6 >= 3 {
		k.Addr = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(n / 6)})
	}
	return k
}

func address(k balancer.Key, i int) netip.AddrPort {
	if k.Addr.Is4() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 8080)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 2, 14: byte(i >> 8), 15: byte(i)}), 8080)
}

// web returns a frontend with the key k, whose active backends are the numbered endpoints.
func web(k balancer.Key, numbers ...int) *balancer.Frontend {
	f := &balancer.Frontend{
		Key: k, Service: "web", Port: "http", Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, Forward: balancer.NATForward, DrainTimeout: time.Minute},
	}
	if k.Port.IsRange() {
		f.Open = []balancer.PortRange{k.Port}
	}
	for _, i := range numbers {
		f.Backends = append(f.Backends, balancer.Backend{Addr: address(k, i), State: balancer.Active, Weight: 1})
	}
	return f
}

// with returns a copy of f in which change has changed backend i.
func with(f *balancer.Frontend, i int, change func(*balancer.Backend)) *balancer.Frontend {
	g := *f
	g.Backends = slices.Clone(f.Backends)
	change(backendOf(&g, address(f.Key, i)))
	return &g
}

// drained returns a copy of f in which backend i gets no new connections because of state, and its
// connections may last until a deadline.
func drained(f *balancer.Frontend, i int, state balancer.BackendState, until time.Time) *balancer.Frontend {
	return with(f, i, func(b *balancer.Backend) { b.State, b.Weight, b.Until = state, 0, until })
}

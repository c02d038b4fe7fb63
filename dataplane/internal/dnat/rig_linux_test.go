package dnat

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/counters"
	"vipd/dataplane/internal/conntrack"
	"vipd/test/fake"
	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// rig is a network with a client, a host, and a server that has many addresses. The host runs a
// simple dataplane that consists of a few rules.
type rig struct {
	*testing.T
	tracker *Tracker
	client  *lab.NS
	server  *lab.NS
	// withRules holds the frontends that have rules. applied reports whether the engine has applied
	// all frontends since the last (simulated) restart.
	withRules map[balancer.Key]*balancer.Frontend
	applied   bool
}

// vip is the frontends' address.
func vip() netip.Addr { return netip.MustParseAddr("10.96.0.10") }

func newRig(t *testing.T) *rig {
	t.Helper()
	lab.Require(t)
	lab.Need(t, "nft")
	l := lab.New(t)
	r := &rig{T: t, client: l.Add("client"), server: l.Add("server"), withRules: map[balancer.Key]*balancer.Frontend{}}
	l.Link(l.Host(), r.client, "10.1.0.1/24", "10.1.0.2/24")
	l.Link(l.Host(), r.server, "10.2.0.1/24", "10.2.0.2/24")
	l.Host().Sysctl("net.ipv4.ip_forward", "1")
	r.client.Default("10.1.0.1")
	r.server.Default("10.2.0.1")
	for i := 3; i < 8; i++ {
		r.server.AddAddr("lo", fmt.Sprintf("10.2.0.%d/32", i))
		l.Host().Route(fmt.Sprintf("10.2.0.%d/32", i), "10.2.0.2")
	}
	for i := 2; i < 8; i++ {
		for _, network := range []string{"tcp", "udp"} {
			r.server.Echo(network, fmt.Sprint("s", i), netip.AddrPortFrom(r.address(i), 8080))
		}
	}
	r.forgetFlows()
	r.open()
	t.Cleanup(func() {
		if err := r.tracker.Close(); err != nil {
			t.Error("Close: ", err)
		}
		r.nft("add table ip web\ndelete table ip web\n")
	})
	return r
}

func (r *rig) open() {
	r.Helper()
	var err error
	if r.tracker, err = Open(slog.New(slog.DiscardHandler)); err != nil {
		r.Fatal(err)
	}
	r.applied = false
}

// forgetFlows deletes the flows that earlier tests left in conntrack.
func (r *rig) forgetFlows() {
	r.Helper()
	c, err := conntrack.Open()
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	keys := map[balancer.Key]bool{}
	for _, p := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		keys[balancer.Key{Addr: vip(), Port: 80, Proto: p}] = true
	}
	if _, err := c.Cut(r.Context(), keys, nil); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) nft(script string) {
	r.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("running a script: %v: %s\n%s", err, out, script)
	}
}

// Apply implements [dataplane.Dataplane]. Each frontend has a rule that selects its active backends
// in turn.
func (r *rig) Apply(ctx context.Context, batch []dataplane.Change) error {
	for _, c := range batch {
		if delete(r.withRules, c.Key); c.New != nil {
			r.withRules[c.Key] = c.New
		}
	}
	var b strings.Builder
	b.WriteString("add table ip web\nadd chain ip web pre { type nat hook prerouting priority -100; }\nflush chain ip web pre\n")
	for k, f := range r.withRules {
		var to []string
		for _, x := range f.Backends {
			if x.State == balancer.Active {
				to = append(to, fmt.Sprintf("%d : %s . %d", len(to), x.Addr.Addr(), x.Addr.Port()))
			}
		}
		if len(to) > 0 {
			fmt.Fprintf(&b, "add rule ip web pre ip daddr %s %s dport %d dnat to numgen inc mod %d map { %s }\n", k.Addr, k.Proto, k.Port, len(to), strings.Join(to, ", "))
		}
	}
	r.nft(b.String())
	failed := dataplane.KeyErrors{}
	if r.tracker.Applied(ctx, batch, failed); len(failed) > 0 {
		return failed
	}
	return nil
}

// Observe implements [dataplane.Dataplane].
func (r *rig) Observe(context.Context) (dataplane.Observation, error) {
	seen := dataplane.Observation{Digests: map[balancer.Key]dataplane.Digest{}, ReapplyAll: !r.applied}
	for k, f := range r.withRules {
		seen.Digests[k] = r.Digest(f)
	}
	r.applied = true
	r.tracker.Found(seen.Digests)
	return seen, nil
}

func (r *rig) Capabilities() balancer.Capabilities               { return balancer.Capabilities{} }
func (r *rig) Digest(f *balancer.Frontend) dataplane.Digest      { return dataplane.DigestOf(f) }
func (r *rig) Traits() dataplane.Traits                          { return dataplane.Traits{} }
func (r *rig) Counters() []dataplane.FrontendCount               { return nil }
func (r *rig) Intact(context.Context) (reason string, err error) { return "", nil }
func (r *rig) Close(context.Context, bool) error                 { return nil }

func (r *rig) address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}) }

// web returns a frontend whose endpoints are the servers with these numbers.
func (r *rig) web(proto balancer.Protocol, servers ...int) *balancer.Frontend {
	f := &balancer.Frontend{Key: balancer.Key{Addr: vip(), Port: 80, Proto: proto}, Service: "web", Port: "http", Policy: balancer.Policy{Scheduler: balancer.RoundRobin}}
	for _, i := range servers {
		f.Backends = append(f.Backends, balancer.Backend{Addr: netip.AddrPortFrom(r.address(i), 8080), State: balancer.Active, Weight: 1})
	}
	return f
}

func (r *rig) apply(frontends ...*balancer.Frontend) {
	r.Helper()
	var batch []dataplane.Change
	for _, f := range frontends {
		batch = append(batch, dataplane.Change{Key: f.Key, New: f})
	}
	if err := r.Apply(context.Background(), batch); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) remove(f *balancer.Frontend) {
	r.Helper()
	if err := r.Apply(context.Background(), []dataplane.Change{{Key: f.Key, Old: f}}); err != nil {
		r.Fatal(err)
	}
}

// ask opens a connection. It returns the connection and the server's name.
func (r *rig) ask(proto balancer.Protocol) (net.Conn, string) {
	r.Helper()
	c, err := r.client.Dial(r.Context(), string(proto), netip.AddrPortFrom(vip(), 80).String())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close() })
	answer, err := lab.Ask(c)
	if err != nil {
		r.Fatal(err)
	}
	return c, answer.Server
}

// readConntrack makes the tracker read conntrack immediately, without the usual pause.
func (r *rig) readConntrack() {
	r.Helper()
	r.tracker.traffic.mu.Lock()
	r.tracker.traffic.next = time.Time{}
	r.tracker.traffic.mu.Unlock()
	if err := r.tracker.traffic.look(context.Background()); err != nil {
		r.Fatal(err)
	}
}

// counted returns the counts of the only frontend.
func (r *rig) counted() dataplane.FrontendCount {
	r.Helper()
	r.readConntrack()
	k := counters.BackendKey{Port: counters.Port{Service: "web", Name: "http"}, Addr: netip.AddrPortFrom(r.address(2), 8080)}
	all := r.tracker.Counters(context.Background(), map[counters.BackendKey]counters.Count{k: {All: 1}})
	if len(all) != 1 || len(all[0].Backends) != 1 {
		r.Fatalf("Counters = %+v, want one frontend", all)
	}
	return all[0]
}

// driven is an engine that drives the rig's dataplane.
type driven struct {
	*rig
	engine *dataplane.Engine
	stop   func()
	sets   int64
}

// drive runs an engine with these frontends, until stop is called or the test ends.
func (r *rig) drive(frontends ...*balancer.Frontend) *driven {
	r.Helper()
	e := &driven{rig: r, engine: dataplane.NewEngine(dataplane.Options{Dataplane: r, Host: fake.NoHost{}, Log: slog.New(slog.DiscardHandler)})}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.engine.Run(ctx) }()
	stopped := false
	e.stop = func() {
		if cancel(); !stopped {
			<-ended
		}
		stopped = true
	}
	r.Cleanup(e.stop)
	e.set(frontends...)
	return e
}

// set replaces the wanted frontends, and returns when they are applied.
func (e *driven) set(frontends ...*balancer.Frontend) {
	e.Helper()
	var d balancer.Desired
	for _, f := range frontends {
		d.Frontends = d.Frontends.Set(f.Key, f)
	}
	e.sets++
	d.Revision.Store = e.sets
	e.engine.Set(d)
	wait.For(e.T, 10*time.Second, "the engine to apply it", func() bool {
		s := e.engine.Status()
		return s.Ready && s.Applied.Store == e.sets && len(s.Failing) == 0
	})
}

// restart simulates another process that adopts the existing rules.
func (e *driven) restart(frontends ...*balancer.Frontend) *driven {
	e.Helper()
	e.stop()
	if err := e.tracker.Close(); err != nil {
		e.Fatal(err)
	}
	e.open()
	return e.drive(frontends...)
}

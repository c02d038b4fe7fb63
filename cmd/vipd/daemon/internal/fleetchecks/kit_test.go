package fleetchecks

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/balancer/health/quorum"
	"vipd/balancer/snap"
	"vipd/cmd/internal/events"
	"vipd/dataplane/probe"
	"vipd/store/etcd/client"
	"vipd/test/etcdkit"
	"vipd/test/lab"
	"vipd/test/wait"
)

func TestMain(m *testing.M) { lab.Main(m) }

// world has targets that the hosts of a fleet check together. The hosts observe the state that the
// test sets.
type world struct {
	t       *testing.T
	cluster *etcdkit.Cluster
	client  *clientv3.Client
	health  *balancer.Health
	targets []balancer.Target
	probes  atomic.Int64
	real    bool          // real checks that use the network
	lease   time.Duration // lease of the hosts
	// patience limits how long etcd may be unavailable before hosts decide alone.
	patience time.Duration
	log      *slog.Logger

	mu        sync.Mutex // guards the fields below
	wanted    snap.Map[balancer.Target, health.Subject]
	down      map[netip.AddrPort]bool
	liars     map[string]bool // hosts whose checks always fail
	cannotRun map[string]bool // hosts that can't run checks
	hosts     []*simulated
}

// simulated is a host that has only checks, and a substitute for the model.
type simulated struct {
	*world
	name   string
	checks *Checks
	runner *probe.Runner
	kicks  chan struct{}
	exec   bool
	own    map[balancer.Target]bool // targets whose service this host defines itself
	relay  *etcdkit.Relay           // the relay between this host and etcd
	stop   func()
	events *events.History

	seen    sync.Mutex // guards the fields below
	all     snap.Map[balancer.Target, balancer.Verdict]
	history []snap.Map[balancer.Target, balancer.Verdict]
}

// newWorld creates targets that have the check h, and starts etcd. No goroutine of its hosts may
// outlive the test.
func newWorld(t *testing.T, targets int, h balancer.Health) *world {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	w := &world{
		t: t, cluster: etcdkit.Start(t, etcdkit.Options{}), health: &h, lease: 2 * time.Second, patience: 300 * time.Millisecond, log: slog.New(slog.DiscardHandler),
		down: map[netip.AddrPort]bool{}, liars: map[string]bool{}, cannotRun: map[string]bool{},
	}
	w.client = w.cluster.Client()
	for i := range targets {
		target := balancer.Target{Service: "web", Addr: netip.AddrFrom4([4]byte{127, 46, byte(i >> 8), byte(i)}), Port: 8080}
		w.targets = append(w.targets, target)
		w.wanted = w.wanted.Set(target, health.Subject{At: netip.AddrPortFrom(target.Addr, target.Port), Proto: balancer.TCP, Health: &h, Fleet: true})
	}
	t.Cleanup(func() {
		var stopping sync.WaitGroup
		for _, h := range w.hosts {
			stopping.Go(h.stop)
		}
		stopping.Wait()
	})
	return w
}

// usual is the default lease of a node.
const usual = 15 * time.Second

// unhurried gives hosts on a busy machine more time to renew their leases. It is for tests that do
// not wait until a lease expires.
func (w *world) unhurried() { w.lease, w.patience = usual, usual }

// quick returns a check that reaches a verdict within a fraction of a second.
func quick() balancer.Health {
	return balancer.Health{
		Type: balancer.TCPHealth, Interval: 400 * time.Millisecond, FastInterval: 100 * time.Millisecond, Timeout: 300 * time.Millisecond, Rise: 2, Fall: 2,
		From: balancer.HealthFromFleet,
	}
}

// join starts a host. edit may change its options.
func (w *world) join(name string, edit ...func(*simulated, *Options)) *simulated {
	w.t.Helper()
	h := &simulated{world: w, name: name, kicks: make(chan struct{}, 1), events: events.New(events.Options{Log: w.log})}
	runner := probe.Options{Check: h.check, Gather: 5 * time.Millisecond, Report: func(changes []probe.Transition) {
		for _, c := range changes {
			h.checks.Vote(c.Targets)
		}
		h.kick()
	}}
	o := Options{
		Config: client.Config{Endpoints: w.cluster.Endpoints(), Prefix: "/vipd"}, Node: name, Log: w.log, Record: h.events.Record, Kick: h.kick,
		Lease: w.lease, Patience: w.patience, Settle: 2 * w.lease,
	}
	h.runner = probe.NewRunner(runner)
	o.Runner = h.runner
	for _, e := range edit {
		e(h, &o)
	}
	var err error
	if h.checks, err = New(o); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { h.runner.Run(ctx) })
	running.Go(func() { _ = h.checks.Run(ctx) })
	running.Go(func() { h.model(ctx) })
	h.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	w.hosts = append(w.hosts, h)
	h.kick()
	return h
}

func (h *simulated) kick() {
	select {
	case h.kicks <- struct{}{}:
	default:
	}
}

// model requests verdicts whenever they may have changed.
func (h *simulated) model(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.kicks:
		}
		h.mu.Lock()
		wanted := h.wanted
		for t := range h.own {
			s := wanted.At(t)
			s.Fleet = false
			wanted = wanted.Set(t, s)
		}
		h.mu.Unlock()
		all := h.checks.Verdicts(wanted, h.exec)
		h.seen.Lock()
		if all != h.all {
			h.history = append(h.history, all)
		}
		h.all = all
		h.seen.Unlock()
	}
}

func (h *simulated) check(ctx context.Context, p *probe.Probe, at netip.AddrPort) health.Result {
	h.probes.Add(1)
	if h.real {
		return p.Check(ctx, at)
	}
	h.mu.Lock()
	failed, lame := h.down[at] || h.liars[h.name], h.cannotRun[h.name]
	h.mu.Unlock()
	switch {
	case lame:
		return health.Result{Outcome: health.NotRun, Began: time.Now(), Text: "no such certificate file"}
	case failed:
		return health.Result{Outcome: health.Failed, Began: time.Now(), Text: "connection refused"}
	}
	return health.Result{Outcome: health.Passed, Began: time.Now(), Text: "connected"}
}

func (h *simulated) verdict(t balancer.Target) balancer.Verdict {
	h.seen.Lock()
	defer h.seen.Unlock()
	return h.all.At(t)
}

func (h *simulated) checking() (n int) {
	for _, t := range h.targets {
		if _, ok := h.runner.Status(t); ok {
			n++
		}
	}
	return n
}

// ever reports whether the host has used the verdict v for any target since the last call.
func (h *simulated) ever(v balancer.Verdict) bool {
	h.seen.Lock()
	defer h.seen.Unlock()
	found := false
	for _, all := range h.history {
		for _, t := range h.targets {
			found = found || all.At(t) == v
		}
	}
	h.history = []snap.Map[balancer.Target, balancer.Verdict]{h.all}
	return found
}

func (h *simulated) eventsWith(text string) (all []events.Event) {
	events, _ := h.events.Read(0, 0)
	for _, e := range events {
		if strings.Contains(e.Text, text) {
			all = append(all, e)
		}
	}
	return all
}

// turn makes targets fail. If down is false, the targets recover.
func (w *world) turn(down bool, targets ...balancer.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range targets {
		w.down[netip.AddrPortFrom(t.Addr, t.Port)] = down
	}
}

// waitUntilStable waits until the votes on each target are equal, every host has received them, and
// no host checks more than necessary.
func (w *world) waitUntilStable(hosts []*simulated, want balancer.Verdict) {
	w.t.Helper()
	size := min(len(hosts), quorum.Size)
	wait.For(w.t, 5*time.Minute, fmt.Sprintf("%d hosts to have shared the checks of %d targets", len(hosts), len(w.targets)), func() bool {
		checking := 0
		for _, h := range hosts {
			checking += h.checking()
			h.checks.mu.Lock()
			nodes, votes, alone := h.checks.board.Nodes.Len(), h.checks.board.Votes.Len(), h.checks.aloneLocked()
			h.checks.mu.Unlock()
			if nodes != len(hosts) || votes != size*len(w.targets) || alone {
				return false
			}
			for _, t := range w.targets {
				if h.verdict(t) != want {
					return false
				}
			}
		}
		return checking == size*len(w.targets)
	})
}

// revision returns etcd's revision, which counts writes.
func (w *world) revision() int64 {
	w.t.Helper()
	answer, err := w.client.Get(w.t.Context(), "/vipd")
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.Header.Revision
}

package fleet

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/checks"
	"vipd/cmd/vipd/daemon/internal/model"
	"vipd/cmd/vipd/daemon/internal/modeswitch"
	"vipd/cmd/vipd/daemon/internal/status"
	"vipd/cmd/vipd/daemon/internal/traffic"
	"vipd/dataplane"
	"vipd/store/etcd"
	"vipd/store/etcd/client"
	"vipd/test/etcdkit"
	"vipd/test/fake"
	"vipd/test/wait"
)

// TestTellsProblemsOfTheHost adds a problem to the host, and removes it. Both changes must be
// published to the fleet even though nothing else changes.
func TestTellsProblemsOfTheHost(t *testing.T) {
	c := etcdkit.Start(t, etcdkit.Options{})
	log := slog.New(slog.DiscardHandler)
	n, err := New(Options{
		Config: client.Config{Endpoints: c.Endpoints(), Prefix: "/vipd"}, Name: "gw1", Lease: 10 * time.Second,
		Log: log, Events: events.New(events.Options{Log: log}),
	})
	if err != nil {
		t.Fatal(err)
	}
	kernel := fake.NewKernel()
	dp := fake.New(kernel)
	var problems atomic.Pointer[[]balancer.Problem]
	from := status.Sources{
		Fleet:        n,
		Checks:       &checks.Checks{},
		Model:        model.New(model.Options{Published: model.NewPublished(config.Config{})}),
		Modes:        modeswitch.New(modeswitch.Options{Counters: &traffic.Counters{}}, &modeswitch.Chosen{Dataplane: dp}),
		Engine:       dataplane.NewEngine(dataplane.Options{Dataplane: dp, Host: fake.NewHost(kernel)}),
		HostProblems: func() []balancer.Problem { return *problems.Load() },
	}
	ill := []balancer.Problem{{Text: "the host is ill"}}
	problems.Store(&ill)
	state := &model.State{Complete: true}
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_ = n.Run(ctx, func() *status.View {
			v := from.Look()
			v.State = state
			return v
		})
	})
	defer running.Wait()
	defer end()

	w, err := etcd.NewStore(n.o.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	for _, now := range [][]balancer.Problem{ill, {}} {
		problems.Store(&now)
		wait.For(t, wait.Patience, "the fleet to be told", func() bool {
			nodes, _, err := w.Nodes(ctx)
			return err == nil && len(nodes) == 1 && nodes[0].Status != nil && nodes[0].Status.ProblemCount == len(now)
		})
	}
}

// TestTooManyAddresses publishes more addresses than fit into a value. The node must report a
// problem until there are fewer addresses.
func TestTooManyAddresses(t *testing.T) {
	n, err := New(Options{
		Config: client.Config{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "/vipd"}, Name: "gw1", Lease: 10 * time.Second,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	state := func(addresses int) *model.State {
		s := &model.State{Complete: true}
		for i := range addresses {
			s.Env.Local = append(s.Env.Local, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
		}
		return s
	}
	for _, addresses := range []int{1, 3000, 2, 3000} {
		n.publish(state(addresses))
		got := n.Problems(true)
		if large := addresses > 2; large != (len(got) == 1) || large && !strings.Contains(got[0].String(), "/vipd/hosts/gw1 would have") {
			t.Errorf("%d addresses: problems = %v, want a problem only if there are too many", addresses, got)
		}
	}
}

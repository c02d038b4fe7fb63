package conntrack

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/wait"
)

// ends collects flows that have ended.
type ends struct {
	mu   sync.Mutex
	got  []Flow
	lost atomic.Int64
}

func (e *ends) flows() []Flow {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.got)
}

func (e *ends) run(ctx context.Context, t *testing.T, s *Ends) {
	err := s.Run(ctx, func(f *Flow) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.got = append(e.got, *f)
	}, func() { e.lost.Add(1) })
	if err != nil {
		t.Error(err)
	}
}

func subscribe(t *testing.T, tab *table) *Ends {
	t.Helper()
	var s *Ends
	err := tab.ns.Do(func() (err error) {
		s, err = Subscribe()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// watch collects flows that end, until the test ends.
func watch(t *testing.T, tab *table) *ends {
	t.Helper()
	s := subscribe(t, tab)
	var e ends
	var w sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	w.Go(func() { e.run(ctx, t, s) })
	t.Cleanup(func() {
		cancel()
		w.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &e
}

// TestEndsReported ends flows in several ways. Each ended flow must be reported exactly once.
func TestEndsReported(t *testing.T) {
	tab := scratch(t)
	ended := watch(t, tab)
	random := rand.New(rand.NewPCG(5, 5))
	flows := randomFlows(random, 2000)
	tab.create(t, whole, flows...)
	keys := map[balancer.Key]bool{}
	var want []Flow
	for i := range flows {
		if k := flows[i].Frontend(); keys[k] || len(keys) < 6 {
			keys[k] = true
		}
	}
	for i := range flows {
		if keys[flows[i].Frontend()] {
			want = append(want, flows[i])
		}
	}
	if _, err := tab.Cut(t.Context(), keys, nil); err != nil {
		t.Fatal(err)
	}
	wait.For(t, 30*time.Second, "all ends", func() bool { return len(ended.flows()) >= len(want) })
	if got, want := identities(ended.flows()), identities(want); !slices.Equal(got, want) {
		t.Errorf("ended flows = %v, want %v", got, want)
	}
}

// TestLostEndsAreReported ends more flows at once than the buffer can hold. The loss must be
// reported, and flows that end later must be reported as usual.
func TestLostEndsAreReported(t *testing.T) {
	tab := scratch(t)
	s := subscribe(t, tab)
	flows := randomFlows(rand.New(rand.NewPCG(6, 6)), 30_000)
	tab.create(t, whole, flows...)
	tab.flush(t)
	var e ends
	ctx, cancel := context.WithCancel(t.Context())
	var w sync.WaitGroup
	w.Go(func() { e.run(ctx, t, s) })
	defer w.Wait()
	defer cancel()
	wait.For(t, 30*time.Second, "the report of lost ends", func() bool { return e.lost.Load() > 0 })
	last := flow(balancer.UDP, "10.9.0.2:1000", "10.96.0.9:53", "10.2.0.1:53")
	wait.For(t, 30*time.Second, "an end after those that were lost", func() bool {
		tab.create(t, whole, last)
		if err := tab.delete(&last); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(e.flows(), func(f Flow) bool { return identityOf(&f) == identityOf(&last) })
	})
	if n := len(e.flows()); n < 1000 || n >= len(flows) {
		t.Errorf("reported flows = %d of %d, want many but not all", n, len(flows))
	}
	cancel()
	w.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestRunReturnsWhenClosed(t *testing.T) {
	s := subscribe(t, scratch(t))
	failed := make(chan error)
	go func() { failed <- s.Run(t.Context(), func(*Flow) {}, func() {}) }()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Error("closed subscription: Run = nil, want an error")
	}
}

package conntrack

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
	"vipd/test/wait"
)

// suspects counts what is told of backends.
type suspects struct {
	mu   sync.Mutex
	told map[balancer.Target]int
}

func (s *suspects) tell(t balancer.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told[t]++
}

func (s *suspects) of(t balancer.Target) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[t]
}

// backendOf takes all translated flows for those of one service.
func backendOf(f *Flow) (balancer.Target, bool) {
	b := f.Backend()
	return balancer.Target{Service: "web", Addr: b.Addr(), Port: b.Port()}, f.Status.Has(DstNAT)
}

// suspect looks for what is not answered, until the test ends.
func suspect(t *testing.T, tab *table) *suspects {
	t.Helper()
	s := &suspects{told: map[balancer.Target]int{}}
	var u *Unanswered
	err := tab.ns.Do(func() (err error) {
		u, err = NewUnanswered(backendOf, s.tell)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- u.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestUnansweredIsTold has a backend answer, refuse and be silent, in both families.
func TestUnansweredIsTold(t *testing.T) {
	c := newCrossing(t)
	s := suspect(t, c.table)
	for _, a := range []struct{ vip, backend, tool string }{{"10.96.0.1:80", "10.2.0.2:8080", "iptables"}, {"[fd96::1]:80", "[fd02::2]:8080", "ip6tables"}} {
		at := netip.MustParseAddrPort(a.backend)
		target := balancer.Target{Service: "web", Addr: at.Addr(), Port: at.Port()}
		try := func(patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			conn, err := c.client.Dial(ctx, "tcp", a.vip)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = lab.Ask(conn)
			return err
		}
		if err := try(wait.Patience); err == nil {
			t.Fatal("it answers though nothing listens")
		}
		wait.For(t, 10*time.Second, "the refusal to be told", func() bool { return s.of(target) == 1 })

		c.server.Exec(a.tool, "-I", "INPUT", "-p", "tcp", "--dport", "8080", "-j", "DROP")
		if err := try(time.Second); err == nil {
			t.Fatal("it answers though it drops all")
		}
		wait.For(t, 20*time.Second, "the silence to be told", func() bool { return s.of(target) == 2 })
		time.Sleep(2 * lookPause) // each is told once, though the kernel remembers it for two minutes
		if n := s.of(target); n != 2 {
			t.Errorf("it was told %d times, want 2", n)
		}

		c.server.Exec(a.tool, "-D", "INPUT", "-p", "tcp", "--dport", "8080", "-j", "DROP")
		c.server.Echo("tcp", "s", at)
		for range 20 {
			if err := try(wait.Patience); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * lookPause) // in which nothing must be told
		if n := s.of(target); n != 2 {
			t.Errorf("it was told %d times though it answers", n-2)
		}
	}
}

// TestUnrepliedEndsOnly is a law: with the filter, those ends are told that have seen no reply, and no others.
func TestUnrepliedEndsOnly(t *testing.T) {
	tab := scratch(t)
	var s *Ends
	err := tab.ns.Do(func() (err error) {
		s, err = subscribeTo(unrepliedOnly(), groupDestroy)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var e ends
	ctx, cancel := context.WithCancel(t.Context())
	var w sync.WaitGroup
	w.Go(func() { e.run(ctx, t, s) })
	flows := crowd(rand.New(rand.NewPCG(8, 8)), 2000)
	var want []Flow
	for i := range flows {
		if i%3 > 0 {
			flows[i].Status = SeenReply
		} else {
			want = append(want, flows[i])
		}
	}
	tab.create(t, whole, flows...)
	tab.want(t, Filter{Unreplied: true}, want)
	tab.flush(t)
	wait.For(t, 30*time.Second, "the ends", func() bool { return len(e.flows()) >= len(want) })
	cancel()
	w.Wait()
	if got, want := identities(e.flows()), identities(want); !slices.Equal(got, want) || e.lost.Load() > 0 {
		t.Errorf("%d ended, want %d", len(got), len(want))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

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

// suspects counts the reports about each backend.
type suspects struct {
	mu       sync.Mutex
	reported map[balancer.Target]int
	// counted is the number of each backend's connections that count as failures.
	counted map[balancer.Target]int
}

func (s *suspects) add(x Suspect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x.Counted {
		s.counted[x.Target]++
	} else {
		s.reported[x.Target]++
	}
}

func (s *suspects) countOf(t balancer.Target) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counted[t]
}

func (s *suspects) count(t balancer.Target) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reported[t]
}

// backendOf assigns all translated flows to a single service, and returns their backend.
func backendOf(f *Flow) (balancer.Target, bool) {
	b := f.Backend()
	return balancer.Target{Service: "web", Addr: b.Addr(), Port: b.Port()}, f.Status.Has(DstNAT)
}

// suspect counts reports about unanswered translated flows until the test ends.
func suspect(t *testing.T, tab *table) *suspects { return suspectAll(t, tab, backendOf) }

// suspectAll counts reports about unanswered flows until the test ends. The function "of" returns a
// flow's backend.
func suspectAll(t *testing.T, tab *table, of func(*Flow) (balancer.Target, bool)) *suspects {
	t.Helper()
	s := &suspects{reported: map[balancer.Target]int{}, counted: map[balancer.Target]int{}}
	var u *Unanswered
	err := tab.ns.Do(func() (err error) {
		u, err = NewUnanswered(true, of, s.add)
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

// TestUnansweredIsTold makes an IPv4 and an IPv6 backend answer, refuse connections, and stay
// silent. Refusals and silence must be reported.
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
			t.Fatal("connection without a listener: error = nil, want a refusal")
		}
		wait.For(t, 10*time.Second, "the refusal to be told", func() bool { return s.count(target) == 1 })

		c.server.Exec(a.tool, "-I", "INPUT", "-p", "tcp", "--dport", "8080", "-j", "DROP")
		if err := try(time.Second); err == nil {
			t.Fatal("connection whose packets are dropped: error = nil, want a timeout")
		}
		wait.For(t, 20*time.Second, "the silence to be told", func() bool { return s.count(target) == 2 })
		wait.For(t, time.Minute, "the silence to be counted", func() bool { return s.countOf(target) == 1 })
		time.Sleep(2 * lookPause) // the kernel keeps each flow for two minutes, but the flow must be reported and counted only once
		if told, counted := s.count(target), s.countOf(target); told != 2 || counted != 1 {
			t.Errorf("reports = %d, counted connections = %d; want 2 and 1", told, counted)
		}

		c.server.Exec(a.tool, "-D", "INPUT", "-p", "tcp", "--dport", "8080", "-j", "DROP")
		c.server.Echo("tcp", "s", at)
		for range 20 {
			if err := try(wait.Patience); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * lookPause) // no more reports may arrive
		if told, counted := s.count(target), s.countOf(target); told != 2 || counted != 1 {
			t.Errorf("additional reports = %d, counted connections = %d; want 0, because the backend answers", told-2, counted-1)
		}
	}
}

// TestUnansweredCountsNewFlows adds unanswered connections to a table before and after the first
// check. Only TCP and SCTP connections that start after the first check must be counted, each once.
func TestUnansweredCountsNewFlows(t *testing.T) {
	tab := scratch(t)
	opening := func(proto balancer.Protocol, state, client string) (Flow, balancer.Target) {
		f := flow(proto, client, "10.96.0.1:80", "10.2.0.1:8080")
		f.State = state
		return f, balancer.Target{Addr: f.Orig.Src.Addr(), Port: f.Orig.Src.Port()}
	}
	old, oldTarget := opening(balancer.TCP, "syn-sent", "10.1.0.1:1000")
	tcp, tcpTarget := opening(balancer.TCP, "syn-sent", "10.1.0.2:1000")
	sctp, sctpTarget := opening(balancer.SCTP, "cookie-wait", "10.1.0.3:1000")
	udp, udpTarget := opening(balancer.UDP, "", "10.1.0.4:1000")
	tab.create(t, whole, old)
	s := suspectAll(t, tab, func(f *Flow) (balancer.Target, bool) {
		return balancer.Target{Addr: f.Orig.Src.Addr(), Port: f.Orig.Src.Port()}, true
	})
	wait.For(t, time.Minute, "the old flow to be told", func() bool { return s.count(oldTarget) == 1 })
	tab.create(t, whole, tcp, sctp, udp)
	wait.For(t, time.Minute, "the new flows to count", func() bool { return s.countOf(tcpTarget) == 1 && s.countOf(sctpTarget) == 1 })
	if old, udp := s.countOf(oldTarget), s.countOf(udpTarget)+s.count(udpTarget); old != 0 || udp != 0 {
		t.Errorf("counted old flows = %d, counted UDP flows = %d; want 0", old, udp)
	}
	tab.flush(t) // has the same effect as a timeout or the removal of an endpoint
	if tcp, sctp := s.countOf(tcpTarget), s.countOf(sctpTarget); tcp != 1 || sctp != 1 {
		t.Errorf("counted TCP flows = %d, SCTP flows = %d; want 1 each", tcp, sctp)
	}
}

// TestUnrepliedEndsOnly ends flows with and without a reply. Only reports of flows without a reply
// must pass the filter.
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
	flows := randomFlows(rand.New(rand.NewPCG(8, 8)), 2000)
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
		t.Errorf("ended flows = %d, want %d", len(got), len(want))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

package outlier

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/cmd/internal/events"
	"vipd/dataplane"
	"vipd/test/fake"
)

// passiveOf returns a Detector that ejects after one failure, and inputs that contain the service
// s.
func passiveOf(s *balancer.Service) (*Detector, *balancer.Inputs) {
	p := New(Options{
		Rules:  health.EjectionRules{Failures: 1, Base: time.Hour, Max: time.Hour, Forgive: time.Hour},
		Events: events.New(events.Options{Log: slog.New(slog.DiscardHandler)}), Hint: func(balancer.Target) {}, Kick: func() {}, Ejects: func(balancer.Name) {},
		Unanswered: func(balancer.Target, netip.Addr, error) {},
	})
	var in balancer.Inputs
	in.Services = in.Services.Set(s.Name, s)
	p.Ejected(&in, &balancer.Env{}, nil)
	return p, &in
}

// large returns a service with two ports with n endpoints, and the targets of its first port.
func large(n int) (*balancer.Service, []balancer.Target) {
	s := &balancer.Service{Name: "web", Ports: []balancer.Port{{Name: "a", Port: 80, TargetPort: 80}, {Name: "b", Port: 443, TargetPort: 443}}}
	var targets []balancer.Target
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		s.Endpoints = append(s.Endpoints, balancer.Endpoint{Address: a, Weight: 1})
		targets = append(targets, balancer.Target{Service: s.Name, Addr: a, Port: 80})
	}
	return s, targets
}

// TestFailedDialsAreCheap ejects half of a thousand endpoints. Another failed dial must cost no
// more than in a service with ten endpoints. Compiling the next inputs must need a single pass over
// the endpoints, regardless of the number of ejections.
func TestFailedDialsAreCheap(t *testing.T) {
	s, targets := large(1000)
	p, in := passiveOf(s)
	for _, at := range targets {
		p.dialed(at, syscall.ECONNREFUSED)
	}
	if n := p.ejections.Ejected().Len(); n != len(targets)/2 {
		t.Fatalf("ejected endpoints = %d of %d, want half", n, len(targets))
	}
	next := 0
	if n := testing.AllocsPerRun(200, func() { p.dialed(targets[len(targets)-1-next%400], syscall.ECONNREFUSED); next++ }); n > 8 {
		t.Errorf("failed dial: allocations = %v, want at most 8", n)
	}
	if n := testing.AllocsPerRun(5, func() { p.Ejected(in, &balancer.Env{}, nil) }); n > 6*float64(len(targets)) {
		t.Errorf("next compilation: allocations = %v for %d endpoints, want at most 6 each", n, len(targets))
	}
}

func BenchmarkFailedDial(b *testing.B) {
	s, targets := large(1000)
	p, _ := passiveOf(s)
	for _, at := range targets {
		p.dialed(at, syscall.ECONNREFUSED)
	}
	for i := 0; b.Loop(); i++ {
		p.dialed(targets[len(targets)-1-i%400], syscall.ECONNREFUSED)
	}
}

func BenchmarkEjectedOfThousand(b *testing.B) {
	s, targets := large(1000)
	p, in := passiveOf(s)
	for _, at := range targets {
		p.dialed(at, syscall.ECONNREFUSED)
	}
	for b.Loop() {
		p.Ejected(in, &balancer.Env{}, nil)
	}
}

// moody is a dataplane whose first attempts to watch the kernel fail. A later attempt succeeds.
type moody struct {
	*fake.Dataplane
	fails int
	at    []time.Time // when the attempts were made
}

func (m *moody) WatchUnanswered(ctx context.Context, _ bool, _ func(dataplane.FailedConnect)) error {
	m.at = append(m.at, time.Now())
	if len(m.at) <= m.fails {
		return errors.New("the dump was torn")
	}
	<-ctx.Done()
	return nil
}

// TestHintsComeBack makes the watch of unanswered connections fail. The watch must be retried with
// growing pauses, and the failure must be logged once.
func TestHintsComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := large(2)
		s.Health = &balancer.Health{}
		p, in := passiveOf(s)
		m := &moody{fails: 10}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = p.Run(ctx) }()
		began := time.Now()
		p.Ejected(in, &balancer.Env{}, m)
		time.Sleep(time.Hour)
		end()
		<-ended
		var pauses []time.Duration
		for i, at := range m.at {
			pauses = append(pauses, at.Sub(append([]time.Time{began}, m.at...)[i]))
		}
		if len(pauses) != 11 || pauses[0] != 0 || pauses[1] != time.Second || pauses[2] != 2*time.Second || pauses[10] != time.Minute {
			t.Errorf("pauses before attempts = %v, want 11 that double from 1 s to 1 min", pauses)
		}
		events, _ := p.o.Events.Read(0, 0)
		if len(events) != 1 || events[0].Cause != "the dump was torn" {
			t.Errorf("events = %+v, want one event with the cause", events)
		}
	})
}

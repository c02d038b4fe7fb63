package transitions

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/events"
	"vipd/cmd/vipd/daemon/internal/model"
)

// TestDrainEventsAlternate simulates random histories of desired states. The events of an
// endpoint's drain must alternate between start and end, and a drain without an end event must be
// in progress.
func TestDrainEventsAlternate(t *testing.T) {
	states := []balancer.BackendState{balancer.Active, balancer.Draining, balancer.Removed, balancer.Down}
	for range 50 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		j := events.New(events.Options{Log: slog.New(slog.DiscardHandler)})
		var drains drainsOpen
		var before balancer.Desired
		now := time.Unix(1e9, 0)
		for range 60 {
			now = now.Add(time.Second)
			after := before
			for range 1 + r.IntN(3) { // up to three frontends of two services
				n := r.IntN(3)
				key := balancer.Key{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), Port: 80, Proto: balancer.TCP}
				if r.IntN(4) == 0 {
					after.Frontends = after.Frontends.Delete(key)
					continue
				}
				f := &balancer.Frontend{Key: key, Service: balancer.Name(fmt.Sprint("s", n/2))}
				for i := range byte(3) {
					if r.IntN(4) > 0 {
						at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, i}), 80)
						f.Backends = append(f.Backends, balancer.Backend{Addr: at, State: states[r.IntN(len(states))]})
					}
				}
				after.Frontends = after.Frontends.Set(key, f)
			}
			drains.next(j, &model.State{Desired: after}, before, now)
			before = after
		}
		open := map[string]bool{}
		events, _ := j.Read(0, 0)
		for _, e := range events {
			begins := e.Lasted == 0
			if open[e.Subject()] == begins {
				t.Fatalf("seed %d: %s has event %q twice in a row, want start and end to alternate", seed, e.Subject(), e.Text)
			}
			open[e.Subject()] = begins
		}
		want := map[string]bool{}
		for _, f := range before.Frontends.All() {
			for _, b := range f.Backends {
				if b.State == balancer.Draining || b.State == balancer.Removed {
					want[fmt.Sprintf("%s %s", f.Service, b.Addr)] = true
				}
			}
		}
		for subject, is := range open {
			if is != want[subject] {
				t.Fatalf("seed %d: drain of %s is in progress according to its events = %v, want %v", seed, subject, is, want[subject])
			}
		}
		for subject := range want {
			if !open[subject] {
				t.Fatalf("seed %d: drain events of %s = none, want a start", seed, subject)
			}
		}
	}
}

// TestProblemEventsAlternate simulates random histories of problems. The events of each problem
// must alternate between start and end, and the end event must contain the duration.
func TestProblemEventsAlternate(t *testing.T) {
	for range 50 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		j := events.New(events.Options{Log: slog.New(slog.DiscardHandler)})
		var now openProblems
		is := map[string]bool{}
		since := map[string]time.Time{}
		at := time.Unix(1e9, 0)
		var last uint64
		for range 40 {
			at = at.Add(time.Minute)
			var all []balancer.Problem
			next := map[string]bool{}
			for i := range 5 {
				if r.IntN(2) == 0 {
					p := balancer.Problem{Severity: balancer.SeverityWarning, Kind: balancer.InPanic, Port: "80/tcp", Text: fmt.Sprint(i)}
					p.Service = balancer.Name(fmt.Sprint("s", i))
					if i > 2 {
						p.Kind, p.Port = "", ""
					}
					all = append(all, p, p) // a problem may be in the list twice
					next[string(p.Service)] = true
				}
			}
			now = now.next(j, at, all, func(balancer.Name, string) bool { return true })
			read, _ := j.Read(last, 0)
			for _, e := range read {
				last = e.Seq
				service := string(e.Service)
				panics := e.Kind == events.Panic
				begins := e.Lasted == 0
				if is[service] == begins || next[service] != begins || panics != (service < "s3") || !begins && e.Lasted != at.Sub(since[service]) {
					t.Fatalf("seed %d: event = %+v, want a start or an end event; problem existed before = %v, exists now = %v", seed, e, is[service], next[service])
				}
				is[service], since[service] = begins, at
			}
			for service := range next {
				if !is[service] {
					t.Fatalf("seed %d: problem events of %s = none, want a start", seed, service)
				}
			}
			for service, there := range is {
				if there != next[service] {
					t.Fatalf("seed %d: last problem event of %s = start, want end", seed, service)
				}
			}
		}
	}
}

// TestSeveralNames formats lists of names. Long lists must name the first three and count the
// others.
func TestSeveralNames(t *testing.T) {
	for want, names := range map[string][]balancer.Name{
		"a and b": {"a", "b"}, "a, b and c": {"a", "b", "c"}, "a, b, c and 2 more": {"a", "b", "c", "d", "e"},
	} {
		if got := several(names); got != want {
			t.Errorf("several(%v) = %q, want %q", names, got, want)
		}
	}
}

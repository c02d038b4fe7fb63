package health_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/balancer/health"
	"vipd/test/wait"
)

// life is a reference model of a single endpoint's ejections. The model advances in steps of one
// second.
type life struct {
	is            bool // the target is an endpoint
	failed, count int
	quiet         int // seconds until the next failure counts
	out, left     int // seconds since the start of the ejection, and seconds until its end; left is 0 if the endpoint is not ejected
	idle          int // seconds since the last ejection ended or was forgiven
	passed        int
}

func (l *life) second(r health.EjectionRules) {
	l.quiet = max(0, l.quiet-1)
	if l.left > 0 {
		l.out++
		if l.left--; l.left == 0 {
			l.end(r)
		}
		return
	}
	if l.count > 0 {
		if l.idle++; time.Duration(l.idle)*time.Second == r.Forgive {
			if l.count, l.idle = l.count-1, 0; l.count == 0 {
				l.failed = 0
			}
		}
	}
}

func (l *life) end(r health.EjectionRules) {
	l.left, l.idle, l.failed, l.quiet = 0, 0, r.Failures-1, 0
}

func (l *life) fail(r health.EjectionRules, room func() int) {
	if l.left > 0 || l.quiet > 0 {
		return
	}
	l.quiet = int(r.Apart / time.Second)
	if l.failed++; l.failed < r.Failures || room() <= 0 {
		return
	}
	most := int(r.Max / r.Base)
	l.count = min(l.count+1, most)
	l.left, l.out, l.passed = l.count*int(r.Base/time.Second), 0, 0
}

func (l *life) answer(r health.EjectionRules) {
	if l.left > 0 {
		l.end(r)
	}
	l.failed, l.quiet = 0, 0
}

func (l *life) check(r health.EjectionRules, passed bool, rise int) {
	if l.left == 0 {
		return
	}
	if l.passed++; !passed {
		l.passed = 0
	}
	if l.passed >= rise {
		l.end(r)
	}
}

// lives holds the models of a service's endpoints, in order. At most half of the endpoints may be
// ejected.
type lives []life

func (l lives) room() int {
	able, out := 0, 0
	for i := range l {
		if l[i].is {
			able++
		}
		if l[i].left > 0 {
			out++
		}
	}
	return able/2 - out
}

// lift ends the latest ejections until at most half of the endpoints are ejected.
func (l lives) lift(r health.EjectionRules) {
	for l.room() < 0 {
		latest := -1
		for i := range l {
			if l[i].left > 0 && (latest < 0 || l[i].out < l[latest].out) {
				latest = i
			}
		}
		l[latest].end(r)
	}
}

func member(i int) balancer.Target {
	return balancer.Target{Service: "web", Addr: netip.AddrFrom4([4]byte{192, 168, 1, byte(i)}), Port: 8080}
}

// TestEjectionsMatchModel applies random sequences of events. Ejections must agree with the
// reference model after each event.
func TestEjectionsMatchModel(t *testing.T) {
	rules := health.EjectionRules{Failures: 3, Apart: 2 * time.Second, Base: 10 * time.Second, Max: 30 * time.Second, Forgive: 40 * time.Second}
	ejections := 0
	for seed := range uint64(wait.Soak(300, 500)) {
		random := rand.New(rand.NewPCG(seed, 9))
		start := time.Unix(1_700_000_000, 0)
		now := start
		model := make(lives, 1+random.IntN(6))
		for i := range model {
			model[i].is = true
		}
		e := health.NewEjections(rules)
		room := func(balancer.Target) int { return model.roomBut(e) }
		is := func(at balancer.Target) bool { return model[at.Addr.As4()[3]].is }
		for step := range 400 {
			i := random.IntN(len(model))
			l := &model[i]
			switch random.IntN(14) {
			case 0, 1:
				for range 1 + random.IntN(15) {
					now = now.Add(time.Second)
					for j := range model {
						model[j].second(rules)
					}
					e.Update(now, is, room)
				}
			case 2:
				l.answer(rules)
				e.Answered(member(i), now)
			case 3, 4:
				passed := random.IntN(3) > 0
				l.check(rules, passed, 2)
				outcome := health.Failed
				if passed {
					outcome = health.Passed
				}
				e.Checked(member(i), health.Result{Outcome: outcome, Began: now}, 2, now)
			case 5: // a check that began before the ejection, and a check that could not run; neither may count
				e.Checked(member(i), health.Result{Outcome: health.Passed, Began: now.Add(-time.Hour)}, 2, now)
				e.Checked(member(i), health.Result{Outcome: health.NotRun, Began: now}, 2, now)
			case 6:
				if *l = (life{is: !l.is}); !l.is {
					e.Update(now, is, room)
				}
			default:
				if !l.is {
					break
				}
				had := l.left
				l.fail(rules, model.room)
				x, began := e.Failed(member(i), "refused", now, room)
				if want := had == 0 && l.left > 0; began != want {
					t.Fatalf("seed %d, step %d: Failed() started an ejection = %v, want %v", seed, step, began, want)
				}
				if began {
					ejections++
					if want := now.Add(time.Duration(l.left) * time.Second); !x.Until.Equal(want) || x.Count != l.count || x.Cause != "refused" {
						t.Fatalf("seed %d, step %d: ejection = %+v, want until %s, count %d", seed, step, x, want, l.count)
					}
				}
			}
			model.lift(rules)
			e.Update(now, is, room)
			if got, want := fmt.Sprint(slices.Collect(e.Ejected().Keys())), fmt.Sprint(model.ejected()); got != want {
				t.Fatalf("seed %d, step %d: Ejected() = %s, want %s", seed, step, got, want)
			}
			if next := e.Next(); !next.Equal(model.next(now)) {
				t.Fatalf("seed %d, step %d: Next() = %s, want %s", seed, step, next, model.next(now))
			}
		}
	}
	if ejections < 1000 {
		t.Errorf("ejections = %d, want at least 1000", ejections)
	}
}

// roomBut returns how many more endpoints may be ejected, in addition to the endpoints that e has
// ejected.
func (l lives) roomBut(e *health.Ejections) int {
	able := 0
	for i := range l {
		if l[i].is {
			able++
		}
	}
	return able/2 - e.Ejected().Len()
}

func (l lives) ejected() (all []balancer.Target) {
	for i := range l {
		if l[i].left > 0 {
			all = append(all, member(i))
		}
	}
	return all
}

func (l lives) next(now time.Time) (next time.Time) {
	for i := range l {
		if until := now.Add(time.Duration(l[i].left) * time.Second); l[i].left > 0 && (next.IsZero() || until.Before(next)) {
			next = until
		}
	}
	return next
}

// TestEjectionEndReasons ends an ejection for each possible reason, with the rules that vipd uses.
// The change that ends the ejection must contain the reason.
func TestEjectionEndReasons(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	room := 1
	rooms := func(balancer.Target) int { return room }
	is := func(balancer.Target) bool { return true }
	for _, c := range []struct {
		why string
		end func(e *health.Ejections, now time.Time) []health.EjectionChange
	}{
		{"it accepted a connection", func(e *health.Ejections, now time.Time) []health.EjectionChange {
			x, _ := e.Answered(member(1), now)
			return []health.EjectionChange{x}
		}},
		{"it passes its checks", func(e *health.Ejections, now time.Time) []health.EjectionChange {
			x, _ := e.Checked(member(1), health.Result{Outcome: health.Passed, Began: now}, 1, now)
			return []health.EjectionChange{x}
		}},
		{"it is no longer an endpoint", func(e *health.Ejections, now time.Time) []health.EjectionChange {
			return e.Update(now, func(balancer.Target) bool { return false }, rooms)
		}},
		{"too many other endpoints are ejected or down", func(e *health.Ejections, now time.Time) []health.EjectionChange {
			return e.Update(now, is, func(balancer.Target) int { return -1 })
		}},
		{"the ejection time has passed", func(e *health.Ejections, now time.Time) []health.EjectionChange { return e.Update(now, is, rooms) }},
	} {
		t.Run(c.why, func(t *testing.T) {
			e := health.NewEjections(health.DefaultEjectionRules())
			for i := range 4 {
				for range 3 { // failures at the same time count as one
					if x, began := e.Failed(member(1), "refused", start.Add(time.Duration(i-4)*time.Second), rooms); began {
						t.Fatalf("ejection before the fifth failure = %+v, want none", x)
					}
				}
			}
			if x, began := e.Failed(member(1), "refused", start, rooms); !began || x.Until.Sub(x.Since) != 30*time.Second || x.End != "" {
				t.Fatalf("ejection after the fifth failure = %+v, started = %v; want 30s and true", x, began)
			}
			after := 20 * time.Second
			if c.why == "the ejection time has passed" {
				after = 30 * time.Second
			}
			ended := c.end(e, start.Add(after))
			if len(ended) != 1 || ended[0].End != c.why || ended[0].For != after || e.Ejected().Len() != 0 {
				t.Errorf("ended ejections = %+v, want one that lasted %s and has the reason %q", ended, after, c.why)
			}
		})
	}
}
